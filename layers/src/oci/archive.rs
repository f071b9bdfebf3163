//! The canonical archive of a tree: one tree, one sequence of bytes (POSIX.1-2017, pax, "ustar Interchange Format";
//! OCI image specification, `layer.md`, for whiteouts).
//!
//! Entries are in the order of the tree. Extended headers stand only where a field of the plain one is too small;
//! their records are sorted. Owners are numbers, times whole seconds.

use std::io::{self, Write};

use infradev_store::ObjectId;
use tar::{EntryType, Header};

use super::BlobError;
use crate::entry::{Content, Entry, Kind, Metadata};
use crate::path::TreePath;
use crate::tree::Tree;

const BLOCK: usize = 512;
/// The largest number of seven, and of eleven octal digits.
const OCTAL_7: u64 = 0o777_7777;
const OCTAL_11: u64 = 0o777_7777_7777;

/// What receives an archive, piece by piece.
pub(super) trait Pieces {
    /// Takes headers, padding and the end.
    fn plain(&mut self, bytes: &[u8]) -> Result<(), BlobError>;

    /// Takes the bytes of a file, which are an object's.
    fn object(&mut self, object: ObjectId, size: u64) -> Result<(), BlobError>;
}

/// Writes the archive of `tree` to `pieces`.
pub(super) fn write_archive(tree: &Tree, pieces: &mut impl Pieces) -> Result<(), BlobError> {
    for entry in tree.entries().iter().filter(|entry| !entry.path.is_root()) {
        write_entry(entry, pieces)?;
    }
    pieces.plain(&[0; 2 * BLOCK])
}

fn write_entry(entry: &Entry, pieces: &mut impl Pieces) -> Result<(), BlobError> {
    let path = entry.path.as_bytes();
    if entry.path.file_name().starts_with(b".wh.") {
        return Err(BlobError::Reserved { path: entry.path.clone() });
    }
    let directory = |metadata: &Metadata| Member {
        name: [path, b"/"].concat(),
        ..Member::new(EntryType::Directory, metadata)
    };
    match &entry.kind {
        Kind::Directory { metadata, opaque } => {
            pieces.plain(&directory(metadata).header())?;
            if *opaque {
                pieces.plain(&removed([path, b"/.wh..wh..opq"].concat()).header())?;
            }
        }
        Kind::ImpliedDirectory => pieces.plain(&directory(&Metadata::implied()).header())?,
        Kind::File { metadata, content } => {
            let mut member = Member { name: path.to_vec(), ..Member::new(EntryType::Regular, metadata) };
            member.size = content.size();
            pieces.plain(&member.header())?;
            if let Content::Object(object, size) = content {
                pieces.object(*object, *size)?;
                let padding = size.next_multiple_of(BLOCK as u64) - size;
                pieces.plain(&[0; BLOCK][..padding as usize])?;
            }
        }
        Kind::Symlink { metadata, target } => {
            let member = Member::new(EntryType::Symlink, metadata);
            pieces.plain(&Member { name: path.to_vec(), link: target.to_vec(), ..member }.header())?;
        }
        Kind::Hardlink { first } => {
            let member = Member::new(EntryType::Link, &Metadata::new(0o644, 0));
            let link = first.as_bytes().to_vec();
            pieces.plain(&Member { name: path.to_vec(), link, ..member }.header())?;
        }
        Kind::Whiteout => pieces.plain(&removed(whiteout(&entry.path)).header())?,
    }
    Ok(())
}

fn whiteout(path: &TreePath) -> Vec<u8> {
    let name = [b".wh.", path.file_name()].concat();
    match path.parent() {
        Some(parent) if !parent.is_root() => [parent.as_bytes(), b"/", &name].concat(),
        _ => name,
    }
}

/// The mark of something that is removed.
fn removed(name: Vec<u8>) -> Member {
    Member { name, ..Member::new(EntryType::Regular, &Metadata::new(0, 0)) }
}

/// One entry of an archive.
struct Member {
    kind: EntryType,
    name: Vec<u8>,
    link: Vec<u8>,
    size: u64,
    metadata: Metadata,
}

impl Member {
    fn new(kind: EntryType, metadata: &Metadata) -> Self {
        Self { kind, name: vec![], link: vec![], size: 0, metadata: metadata.clone() }
    }

    /// Returns the header, after the extended one if there must be one.
    fn header(&self) -> Vec<u8> {
        let mut records: Vec<(Vec<u8>, Vec<u8>)> = vec![];
        let mut record = |key: &[u8], value: Vec<u8>| records.push((key.to_vec(), value));
        let mut header = Header::new_ustar();
        header.set_entry_type(self.kind);
        header.set_mode(self.metadata.mode.into());
        let ustar = header.as_ustar_mut().expect("a ustar header");
        match split_name(&self.name) {
            Some((prefix, name)) => {
                ustar.prefix[..prefix.len()].copy_from_slice(prefix);
                ustar.name[..name.len()].copy_from_slice(name);
            }
            None => {
                ustar.name.copy_from_slice(&self.name[..100]);
                record(b"path", self.name.clone());
            }
        }
        match self.link.len() {
            0..=100 => ustar.linkname[..self.link.len()].copy_from_slice(&self.link),
            _ => {
                ustar.linkname.copy_from_slice(&self.link[..100]);
                record(b"linkpath", self.link.clone());
            }
        }
        let mut number = |key: &[u8], value: u64, most: u64| {
            if value <= most {
                return value;
            }
            record(key, value.to_string().into_bytes());
            0
        };
        header.set_uid(number(b"uid", self.metadata.uid.into(), OCTAL_7));
        header.set_gid(number(b"gid", self.metadata.gid.into(), OCTAL_7));
        header.set_size(number(b"size", self.size, OCTAL_11));
        match u64::try_from(self.metadata.mtime) {
            Ok(mtime) => header.set_mtime(number(b"mtime", mtime, OCTAL_11)),
            Err(_) => {
                header.set_mtime(0);
                record(b"mtime", self.metadata.mtime.to_string().into_bytes());
            }
        }
        for (name, value) in &self.metadata.xattrs {
            record(&[b"SCHILY.xattr.", &**name].concat(), value.to_vec());
        }
        header.set_cksum();
        let mut bytes = extended(records);
        bytes.extend_from_slice(header.as_bytes());
        bytes
    }
}

/// Splits a name into the prefix and name fields; `None` if it does not fit.
fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((b"", name));
    }
    // The slash between the two is in neither, and the name is not empty.
    let from = name.len() - 101;
    let slash = from + name[from..name.len() - 1].iter().position(|&byte| byte == b'/')?;
    (1..=155).contains(&slash).then(|| (&name[..slash], &name[slash + 1..]))
}

/// An extended header with `records`; nothing if there are none.
fn extended(mut records: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<u8> {
    if records.is_empty() {
        return vec![];
    }
    records.sort();
    let mut data = vec![];
    for (key, value) in &records {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        let _vectors_take_all: io::Result<()> = write!(data, "{length} ");
        data.extend([key, &b"="[..], value, b"\n"].concat());
    }
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.as_ustar_mut().expect("a ustar header").name[..9].copy_from_slice(b"PaxHeader");
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(data.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    data.resize(data.len().next_multiple_of(BLOCK), 0);
    bytes.extend(data);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_where_they_fit() {
        let long = [vec![b'd'; 60], b"/".to_vec(), vec![b'e'; 60], b"/".to_vec(), vec![b'f'; 30]].concat();
        let (prefix, name) = split_name(&long).unwrap();
        assert_eq!((prefix.len(), name.len()), (60, 91));
        assert_eq!(split_name(b"a/b"), Some((&b""[..], &b"a/b"[..])));
        assert_eq!(split_name(&[b'x'; 101]), None);
        let directory = [vec![b'd'; 101], b"/".to_vec()].concat();
        assert_eq!(split_name(&directory), None, "a name is not empty");
        assert_eq!(split_name(&[vec![b'a'; 200], b"/b".to_vec()].concat()), None);
    }

    #[test]
    fn the_length_of_a_record_counts_itself() {
        for (value, length) in [(1, 8), (2, 9), (3, 11), (90, 98), (91, 99), (92, 101)] {
            let bytes = extended(vec![(b"key".to_vec(), vec![b'v'; value])]);
            let text = String::from_utf8_lossy(&bytes[BLOCK..]).into_owned();
            let record = text.trim_end_matches('\0');
            assert_eq!(record.len(), length, "{record}");
            assert!(record.starts_with(&format!("{length} key=v")), "{record}");
        }
    }
}
