//! Seals: JSON files that carry a hash of themselves, so that a flipped bit in one is damage and not news.
//!
//! The seal is the last member of the outermost object, written by [`sealed`] as
//! `,\n  "check": "<64 hex>"\n}`: blake3 over the text as it would be without it. A text without a seal is
//! read as it is: a flip that hits the seal's own name leaves the rest intact.

use serde::Serialize;
use serde::de::DeserializeOwned;

const BEFORE: &str = ",\n  \"check\": \"";
const AFTER: &str = "\"\n}";
const HEX: usize = 64;

/// Why a sealed text is not what was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error("its bytes are not those that were written: they hash to {found}, not {expected}")]
    Broken { found: String, expected: String },
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Writes `value`, whose JSON is an object with members, with its seal.
pub(crate) fn sealed(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("plain data");
    let hash = blake3::hash(&text).to_hex();
    if text.ends_with(b"\n}") {
        text.truncate(text.len() - 2);
        text.extend_from_slice(format!("{BEFORE}{hash}{AFTER}").as_bytes());
    }
    text
}

/// Reads a value whose text may be sealed.
pub(crate) fn unsealed<T: DeserializeOwned>(text: &[u8]) -> Result<T, SealError> {
    if let Some((body, expected)) = split(text) {
        let mut hasher = blake3::Hasher::new();
        let found = hasher.update(body).update(b"\n}").finalize().to_hex();
        if found.as_bytes() != expected {
            let expected = String::from_utf8_lossy(expected).into_owned();
            return Err(SealError::Broken { found: found.to_string(), expected });
        }
    }
    Ok(serde_json::from_slice(text)?)
}

/// Splits off the seal: what was hashed, less its end, and the hash.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, hash) = text.strip_suffix(AFTER.as_bytes())?.split_last_chunk::<HEX>()?;
    Some((rest.strip_suffix(BEFORE.as_bytes())?, hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn no_flipped_bit_changes_what_is_read() {
        let value: BTreeMap<String, Vec<u32>> = BTreeMap::from([("layers".to_owned(), vec![1, 20, 300])]);
        let text = sealed(&value);
        let read = |text: &[u8]| {
            unsealed::<BTreeMap<String, serde_json::Value>>(text)
                .map(|members| members.get("layers").cloned())
        };
        let expected = read(&text).unwrap();
        assert_eq!(expected, Some(serde_json::json!([1, 20, 300])));
        assert_eq!(read(br#"{"layers": [1, 20, 300]}"#).unwrap(), expected);
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(found) = read(&flipped) {
                assert_eq!(found, expected, "bit {bit}: {}", String::from_utf8_lossy(&flipped));
            }
        }
        for length in 0..text.len() {
            assert!(read(&text[..length]).is_err(), "cut to {length} bytes");
        }
    }
}
