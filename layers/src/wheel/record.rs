//! RECORD: every file of an installed distribution with hash and size, sorted.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

use super::WheelTarget;
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

/// Returns the hash of `bytes`, as RECORD wants it.
pub(super) fn hash(bytes: &[u8]) -> String {
    encode(&Sha256::digest(bytes))
}

/// `sha256=…` in the URL-safe base 64 alphabet without padding.
fn encode(digest: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::from("sha256=");
    for chunk in digest.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, &byte| group << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let digit = (group >> (18 - 6 * place)) & 63;
            text.push(char::from(ALPHABET[digit as usize]));
        }
    }
    text
}

/// Hashes what is read: RECORD states what was installed, whatever the wheel's own RECORD claims.
pub(super) struct Hashed<'a> {
    content: &'a mut dyn Read,
    hasher: Sha256,
}

impl<'a> Hashed<'a> {
    pub(super) fn new(content: &'a mut dyn Read) -> Self {
        Self { content, hasher: Sha256::new() }
    }

    /// Returns the hash of what was read, as RECORD wants it.
    pub(super) fn finish(self) -> String {
        encode(&self.hasher.finalize())
    }
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// Writes `rows` and RECORD's own line, sorted by path.
pub(super) fn write(mut rows: Vec<Row>, own: Row) -> String {
    rows.push(own);
    rows.sort_by(|left, right| left.path.cmp(&right.path));
    let mut text = String::new();
    for row in rows {
        let path = if row.path.contains([',', '"', '\n', '\r']) {
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
    fn odd_paths_are_quoted() {
        let row = |path: &str| Row { path: path.to_owned(), hash: "sha256=x".to_owned(), size: Some(3) };
        let own = Row { path: "x/RECORD".to_owned(), hash: String::new(), size: None };
        let text = write(vec![row("plain"), row("a,\"b\".py"), row("a\nb")], own);
        assert_eq!(
            text,
            "\"a\nb\",sha256=x,3\n\"a,\"\"b\"\".py\",sha256=x,3\nplain,sha256=x,3\nx/RECORD,,\n"
        );
    }
}
