//! Identities: 32 bytes of blake3, one Rust type per kind of thing.
//!
//! The types exist so that a layer can never be looked up as an object. All print as 64 lower-case
//! hexadecimal digits and parse back from exactly that, so a logged id can be pasted into a command.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A string that is not the hexadecimal form of an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id: expected 64 lower-case hexadecimal digits")]
pub struct ParseIdError(pub String);

fn parse_hex(text: &str) -> Result<[u8; 32], ParseIdError> {
    let fail = || ParseIdError(text.to_owned());
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err(fail());
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (high, low) = value(pair[0]).zip(value(pair[1])).ok_or_else(fail)?;
        *byte = high << 4 | low;
    }
    Ok(bytes)
}

fn write_hex(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Takes 32 bytes that were computed elsewhere as an id.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// Names `bytes` by their blake3 hash.
            pub fn of(bytes: &[u8]) -> Self {
                Self(*blake3::hash(bytes).as_bytes())
            }

            /// Returns the raw 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Returns the 64 hexadecimal digits.
            pub fn to_hex(&self) -> String {
                let mut digits = vec![0; 64];
                write_hex(&self.0, &mut digits);
                digits.into_iter().map(char::from).collect()
            }

            /// Returns the first twelve digits, for tables; never accepted as an id.
            pub fn short(&self) -> String {
                let mut digits = self.to_hex();
                digits.truncate(12);
                digits
            }
        }

        impl From<blake3::Hash> for $name {
            fn from(hash: blake3::Hash) -> Self {
                Self(*hash.as_bytes())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.to_hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.to_hex())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id_type! {
    /// Names the bytes of one regular file: blake3 of the raw content.
    ObjectId
}
id_type! {
    /// Names a layer: blake3 of its canonical encoding.
    LayerId
}
id_type! {
    /// Names everything that may change what a build step produces.
    StepKey
}
id_type! {
    /// Names an ordered stack of layers, and so the image merged from it.
    StackId
}

id_type! {
    /// Names a pack: blake3 of its table.
    PackId
}

impl StackId {
    /// Names the stack `layers`, lowest first.
    pub fn of_layers(layers: &[LayerId]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("infradev stack v1");
        for layer in layers {
            hasher.update(layer.as_bytes());
        }
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_parses() {
        let id = ObjectId::of(b"abc");
        assert_eq!(id.to_string().parse::<ObjectId>(), Ok(id));
        // The published blake3 value of "abc".
        assert_eq!(id.short(), "6437b3ac3846");
    }

    #[test]
    fn refuses_anything_but_64_lower_case_digits() {
        let id = ObjectId::of(b"abc").to_string();
        for bad in ["", &id[1..], &id.to_uppercase(), &format!("{}g", &id[1..]), "../../etc"] {
            assert!(bad.parse::<ObjectId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_stack_is_not_its_reverse() {
        let (a, b) = (LayerId::of(b"a"), LayerId::of(b"b"));
        assert_ne!(StackId::of_layers(&[a, b]), StackId::of_layers(&[b, a]));
    }
}
