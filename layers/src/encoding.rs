//! The canonical encoding of a layer: one tree, one sequence of bytes, one `LayerId`.
//!
//! ```text
//! head       object table, see infradev_store::references
//! count      varint: number of entries, the root first
//! entries    kind   1 byte
//!            path   varint bytes shared with the previous path, varint rest, rest
//!            then by kind
//!   0 directory, 1 opaque directory     metadata
//!   2 implied directory                 nothing
//!   3 file                              metadata, varint 0 (empty) or 1 + row of the object table
//!   4 symlink                           metadata, varint length, target
//!   5 hardlink                          varint number of the entry that it names
//!   6 whiteout                          nothing
//! metadata   varint mode, varint uid, varint gid, varint zigzag mtime,
//!            varint count of xattrs, each varint length, name, varint length, value
//! ```
//!
//! A varint is LEB128 in its shortest form. The decoder accepts exactly what the encoder writes: bytes that
//! decode encode to themselves, so an id never has two encodings.

use infradev_store::LayerId;
use infradev_store::references::{self, Reference, ReferenceError};

use crate::entry::{Content, Entry, Kind, Metadata, Xattr, clean_mode, xattr_allowed};
use crate::path::{PathError, TreePath};
use crate::tree::Tree;

/// Bytes that are no canonical encoding of a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The head is wrong.
    #[error(transparent)]
    Head(#[from] ReferenceError),
    /// A path is wrong.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The encoding ends early, or goes on after its last entry.
    #[error("the tree is cut short or too long at byte {0}")]
    Length(usize),
    /// Something is not in its only allowed form.
    #[error("the tree is not canonical at entry {entry}: {what}")]
    NotCanonical {
        /// The number of the entry.
        entry: usize,
        /// Which rule it breaks.
        what: &'static str,
    },
}

impl Tree {
    /// Returns the canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let references = self.references();
        let mut out = Vec::with_capacity(64 + references.len() * 40 + self.entries().len() * 48);
        references::write_head(&references, &mut out);
        write_varint(self.entries().len() as u64, &mut out);
        let mut previous: &[u8] = &[];
        for entry in self.entries() {
            self.encode_entry(entry, previous, &references, &mut out);
            previous = entry.path.as_bytes();
        }
        out
    }

    /// Returns the id of the layer that consists of this tree.
    pub fn layer_id(&self) -> LayerId {
        LayerId::of(&self.encode())
    }

    fn encode_entry(&self, entry: &Entry, previous: &[u8], references: &[Reference], out: &mut Vec<u8>) {
        let path = entry.path.as_bytes();
        let tag = match &entry.kind {
            Kind::Directory { opaque: false, .. } => 0,
            Kind::Directory { opaque: true, .. } => 1,
            Kind::ImpliedDirectory => 2,
            Kind::File { .. } => 3,
            Kind::Symlink { .. } => 4,
            Kind::Hardlink { .. } => 5,
            Kind::Whiteout => 6,
        };
        out.push(tag);
        let shared = path.iter().zip(previous).take_while(|(a, b)| a == b).count();
        write_varint(shared as u64, out);
        write_bytes(&path[shared..], out);
        if let Some(metadata) = entry.kind.metadata() {
            write_metadata(metadata, out);
        }
        match &entry.kind {
            Kind::File { content: Content::Empty, .. } => write_varint(0, out),
            Kind::File { content: Content::Object(object, _), .. } => {
                let row = references.binary_search_by(|reference| reference.object.cmp(object));
                write_varint(1 + row.expect("the table holds every object of the tree") as u64, out);
            }
            Kind::Symlink { target, .. } => write_bytes(target, out),
            Kind::Hardlink { first } => {
                let position = self.position(first).expect("a tree has no dangling hardlinks");
                write_varint(position as u64, out);
            }
            Kind::Directory { .. } | Kind::ImpliedDirectory | Kind::Whiteout => {}
        }
    }

    /// Reads a canonical encoding.
    pub fn decode(encoding: &[u8]) -> Result<Self, DecodeError> {
        let (references, at) = references::read_head(encoding)?;
        let mut reader = Reader { encoding, at };
        let count = reader.varint()?;
        // An entry takes at least three bytes; a larger count is a lie that must not reserve memory.
        if count > (encoding.len() - reader.at) as u64 / 3 {
            return Err(DecodeError::Length(reader.at));
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(count as usize);
        let mut used = vec![false; references.len()];
        let mut parents: Vec<usize> = vec![];
        for number in 0..count as usize {
            let bad = |what| DecodeError::NotCanonical { entry: number, what };
            let entry = decode_entry(&mut reader, &entries, &references, &mut used, number)?;
            if number == 0 {
                if !entry.path.is_root() || !entry.kind.is_directory() {
                    return Err(bad("the first entry is not the root directory"));
                }
            } else {
                if entries[number - 1].path >= entry.path {
                    return Err(bad("the paths are not in order"));
                }
                while parents.last().is_some_and(|&parent| !entry.path.starts_with(&entries[parent].path)) {
                    parents.pop();
                }
                let parent = entry.path.parent().expect("only the root has no parent");
                if parents.last().is_none_or(|&last| entries[last].path != parent) {
                    return Err(bad("the parent is missing or no directory"));
                }
            }
            if entry.kind.is_directory() {
                parents.push(number);
            }
            entries.push(entry);
        }
        if reader.at != encoding.len() {
            return Err(DecodeError::Length(reader.at));
        }
        if count == 0 || used.contains(&false) {
            let what = "the tree is empty or an object of the table is not used";
            return Err(DecodeError::NotCanonical { entry: count as usize, what });
        }
        Ok(Self::from_sorted(entries))
    }
}

fn decode_entry(
    reader: &mut Reader<'_>,
    before: &[Entry],
    references: &[Reference],
    used: &mut [bool],
    number: usize,
) -> Result<Entry, DecodeError> {
    let bad = |what| DecodeError::NotCanonical { entry: number, what };
    let tag = reader.byte()?;
    let shared = reader.varint()? as usize;
    let rest = reader.bytes()?;
    let previous = before.last().map_or(&[][..], |entry| entry.path.as_bytes());
    let prefix = previous.get(..shared).ok_or_else(|| bad("the path shares more than there is"))?;
    if previous.get(shared).is_some_and(|next| rest.first() == Some(next)) {
        return Err(bad("the path shares less than it could"));
    }
    let path = TreePath::from_vec([prefix, rest].concat())?;
    let kind = match tag {
        0 | 1 => Kind::Directory { metadata: read_metadata(reader, number)?, opaque: tag == 1 },
        2 => Kind::ImpliedDirectory,
        3 => {
            let metadata = read_metadata(reader, number)?;
            let content = match reader.varint()?.checked_sub(1) {
                None => Content::Empty,
                Some(row) => {
                    let reference =
                        references.get(row as usize).ok_or_else(|| bad("the object is not in the table"))?;
                    used[row as usize] = true;
                    Content::Object(reference.object, reference.size)
                }
            };
            Kind::File { metadata, content }
        }
        4 => {
            let metadata = read_metadata(reader, number)?;
            Kind::Symlink { metadata, target: reader.bytes()?.into() }
        }
        5 => {
            let named = before
                .get(reader.varint()? as usize)
                .ok_or_else(|| bad("the hardlink names a later entry"))?;
            if !matches!(named.kind, Kind::File { .. } | Kind::Symlink { .. }) {
                return Err(bad("the hardlink names no file"));
            }
            Kind::Hardlink { first: named.path.clone() }
        }
        6 => Kind::Whiteout,
        _ => return Err(bad("the kind is unknown")),
    };
    Ok(Entry { path, kind })
}

fn write_metadata(metadata: &Metadata, out: &mut Vec<u8>) {
    write_varint(metadata.mode.into(), out);
    write_varint(metadata.uid.into(), out);
    write_varint(metadata.gid.into(), out);
    write_varint(zigzag(metadata.mtime), out);
    write_varint(metadata.xattrs.len() as u64, out);
    for (name, value) in &metadata.xattrs {
        write_bytes(name, out);
        write_bytes(value, out);
    }
}

fn read_metadata(reader: &mut Reader<'_>, entry: usize) -> Result<Metadata, DecodeError> {
    let bad = |what| DecodeError::NotCanonical { entry, what };
    let mode = reader.varint()?;
    let mode = u16::try_from(mode).ok().filter(|&mode| clean_mode(mode.into()) == mode);
    let mode = mode.ok_or_else(|| bad("the mode has bits beyond permissions"))?;
    let uid = u32::try_from(reader.varint()?).map_err(|_| bad("the owner is too large"))?;
    let gid = u32::try_from(reader.varint()?).map_err(|_| bad("the group is too large"))?;
    let mtime = unzigzag(reader.varint()?);
    let count = reader.varint()?;
    let mut xattrs: Vec<Xattr> = vec![];
    for _ in 0..count {
        let (name, value) = (reader.bytes()?, reader.bytes()?);
        if !xattr_allowed(name) || xattrs.last().is_some_and(|(last, _)| **last >= *name) {
            return Err(bad("an extended attribute is not allowed or out of order"));
        }
        xattrs.push((name.into(), value.into()));
    }
    Ok(Metadata { mode, uid, gid, mtime, xattrs })
}

const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

struct Reader<'a> {
    encoding: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.encoding.get(self.at).ok_or(DecodeError::Length(self.at))?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // A final zero byte would be a longer form of the same number.
                return if byte == 0 && shift > 0 { Err(DecodeError::Length(start)) } else { Ok(value) };
            }
        }
        Err(DecodeError::Length(start))
    }

    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.varint()?;
        let rest = &self.encoding[self.at..];
        let bytes = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let bytes = bytes.ok_or(DecodeError::Length(self.at))?;
        self.at += bytes.len();
        Ok(bytes)
    }
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
