//! RECORD: every file of an installed distribution with hash and size, sorted.

use std::collections::HashMap;
use std::io::{Read, Seek};

use sha2::{Digest, Sha256};
use zip::ZipArchive;

use super::{WheelError, WheelTarget, read_text};
use crate::path::TreePath;

/// One line of a RECORD.
pub(super) struct Row {
    path: String,
    hash: String,
    size: Option<u64>,
}

impl Row {
    pub(super) fn new(path: &TreePath, target: &WheelTarget, hash: String, size: u64) -> Self {
        Self { path: relative(path, target), hash, size: Some(size) }
    }

    /// The line of RECORD itself, which can have neither hash nor size.
    pub(super) fn own(path: &TreePath, target: &WheelTarget) -> Self {
        Self { path: relative(path, target), hash: String::new(), size: None }
    }
}

/// Returns `path` as RECORD gives it: relative to site-packages.
fn relative(path: &TreePath, target: &WheelTarget) -> String {
    let text = |path: &TreePath| String::from_utf8_lossy(path.as_bytes()).into_owned();
    let (path, site, prefix) = (text(path), text(&target.site_packages()), text(&target.prefix));
    match path.strip_prefix(&format!("{site}/")) {
        Some(below) => below.to_owned(),
        None => format!("../../..{}", &path[prefix.len()..]),
    }
}

/// Returns `sha256=…` in the URL-safe base 64 alphabet without padding, as RECORD wants it.
pub(super) fn hash(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::from("sha256=");
    for chunk in Sha256::digest(bytes).chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, &byte| group << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let digit = (group >> (18 - 6 * place)) & 63;
            text.push(char::from(ALPHABET[digit as usize]));
        }
    }
    text
}

/// Reads the hashes of the archive's own RECORD by entry name.
pub(super) fn read<R: Read + Seek>(
    zip: &mut ZipArchive<R>,
    dist_info: &str,
) -> Result<HashMap<String, String>, WheelError> {
    let text =
        read_text(zip, &format!("{dist_info}/RECORD"))?.ok_or(WheelError::Missing("dist-info/RECORD"))?;
    let mut hashes = HashMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut fields = split(line);
        fields.truncate(2);
        if let (Some(hash), Some(path)) = (fields.pop(), fields.pop()) {
            hashes.insert(path, hash);
        }
    }
    Ok(hashes)
}

/// Splits a line of comma-separated values; a quote inside a quoted field is doubled.
fn split(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let (mut quoted, mut characters) = (false, line.trim_end_matches('\r').chars().peekable());
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                fields.last_mut().expect("never empty").push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => fields.last_mut().expect("never empty").push(other),
        }
    }
    fields
}

/// Writes `rows` and RECORD's own line, sorted by path.
pub(super) fn write(mut rows: Vec<Row>, own: Row) -> String {
    rows.push(own);
    rows.sort_by(|left, right| left.path.cmp(&right.path));
    let mut text = String::new();
    for row in rows {
        let path = if row.path.contains([',', '"']) {
            format!("\"{}\"", row.path.replace('"', "\"\""))
        } else {
            row.path
        };
        let size = row.size.map(|size| size.to_string()).unwrap_or_default();
        text.push_str(&format!("{path},{},{size}\n", row.hash));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_as_the_specification_writes_them() {
        // sha256 of nothing, in the form that pip writes for every empty __init__.py.
        assert_eq!(hash(b""), "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU");
    }

    #[test]
    fn quoted_paths_survive() {
        assert_eq!(split("\"a,\"\"b\"\".py\",sha256=x,3"), ["a,\"b\".py", "sha256=x", "3"]);
    }
}
