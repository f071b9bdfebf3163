//! Extended attributes: one shared entry for each distinct name and value, referred to by the inodes.

use std::collections::HashMap;
use std::ops::Range;

use infradev_store::ObjectId;

use super::ImageError;
use super::format::{METACOPY, REDIRECT, XATTR_ENTRY, XATTR_HEADER, XATTR_TRUSTED, XATTR_USER};
use crate::entry::Metadata;
use crate::path::TreePath;

/// The most shared attributes of one inode: their number is one byte (`h_shared_count`).
const MAX_SHARED: usize = 255;
/// The most bytes of attributes behind an inode: `i_xattr_icount` counts words in 16 bits.
const MAX_INLINE: usize = XATTR_HEADER + 4 * (u16::MAX as usize - 1);

/// Full name and value.
pub(super) type Pair = (Box<[u8]>, Box<[u8]>);

/// The attributes of one inode: references to shared ones, and those beyond the 255th, which stand inline.
#[derive(Debug, Clone, Default)]
pub(super) struct Attributes<'a> {
    shared: Range<usize>,
    inline: &'a [Pair],
}

/// The shared attributes of an image.
#[derive(Debug, Default)]
pub(super) struct Xattrs<'a> {
    bytes: Vec<u8>,
    /// The references of all inodes, one after the other.
    references: Vec<u32>,
    metacopy: Option<u32>,
    objects: HashMap<ObjectId, u32>,
    user: HashMap<(&'a [u8], &'a [u8]), u32>,
}

impl<'a> Xattrs<'a> {
    /// Registers the attributes of one inode: those of `metadata`, and for a file with content the two by which
    /// overlayfs finds it.
    pub(super) fn add(
        &mut self,
        path: &TreePath,
        metadata: &'a Metadata,
        object: Option<ObjectId>,
    ) -> Result<Attributes<'a>, ImageError> {
        check(path, metadata)?;
        let start = self.references.len();
        if let Some(object) = object {
            let metacopy = match self.metacopy {
                Some(metacopy) => metacopy,
                None => *self.metacopy.insert(append(&mut self.bytes, XATTR_TRUSTED, METACOPY, b"")),
            };
            let bytes = &mut self.bytes;
            let redirect = *self
                .objects
                .entry(object)
                .or_insert_with(|| append(bytes, XATTR_TRUSTED, REDIRECT, &redirect(object)));
            self.references.extend([metacopy, redirect]);
        }
        let room = MAX_SHARED - (self.references.len() - start);
        let (shared, inline) = metadata.xattrs.split_at(room.min(metadata.xattrs.len()));
        for (name, value) in shared {
            let bytes = &mut self.bytes;
            let reference = *self
                .user
                .entry((name, value))
                .or_insert_with(|| append(bytes, XATTR_USER, &name[b"user.".len()..], value));
            self.references.push(reference);
        }
        let attributes = Attributes { shared: start..self.references.len(), inline };
        match inline.last() {
            Some((name, _)) if attributes.size() > MAX_INLINE => {
                let what = "is one of more than fit an inode";
                Err(ImageError::Xattr { path: path.clone(), name: name.clone(), what })
            }
            _ => Ok(attributes),
        }
    }

    /// Appends what stands behind the head of an inode.
    pub(super) fn write(&self, attributes: &Attributes<'_>, out: &mut Vec<u8>) {
        if attributes.size() == 0 {
            return;
        }
        let shared = &self.references[attributes.shared.clone()];
        let mut header = [0; XATTR_HEADER];
        header[4] = shared.len() as u8;
        out.extend_from_slice(&header);
        for reference in shared {
            out.extend_from_slice(&reference.to_le_bytes());
        }
        for (name, value) in attributes.inline {
            append(out, XATTR_USER, &name[b"user.".len()..], value);
        }
    }

    /// Returns the area of shared attributes; a reference is an offset in it, in words of four bytes.
    pub(super) fn shared_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Attributes<'_> {
    /// Returns the bytes behind the head of the inode; a multiple of four.
    pub(super) fn size(&self) -> usize {
        let inline: usize =
            self.inline.iter().map(|(name, value)| entry_size(name.len() - 5, value.len())).sum();
        match self.shared.len() * 4 + inline {
            0 => 0,
            entries => XATTR_HEADER + entries,
        }
    }

    /// Returns the value of `i_xattr_icount` (`erofs_xattr_ibody_size` in erofs_fs.h).
    pub(super) fn count(&self) -> u16 {
        match self.size() {
            0 => 0,
            size => ((size - XATTR_HEADER) / 4 + 1) as u16,
        }
    }
}

/// Returns the path of an object below the objects directory, as overlayfs wants it: absolute.
pub(crate) fn redirect(object: ObjectId) -> [u8; 66] {
    let mut path = [b'/'; 66];
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    for (number, &byte) in object.as_bytes().iter().enumerate() {
        // After the first slash, and from the second byte on after the second.
        let at = 1 + 2 * number + usize::from(number > 0);
        (path[at], path[at + 1]) = (digit(byte >> 4), digit(byte & 15));
    }
    path
}

fn entry_size(name: usize, value: usize) -> usize {
    (XATTR_ENTRY + name + value).next_multiple_of(4)
}

/// Appends one entry and returns its offset in words.
fn append(out: &mut Vec<u8>, prefix: u8, name: &[u8], value: &[u8]) -> u32 {
    let start = out.len();
    out.extend_from_slice(&[name.len() as u8, prefix]);
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.resize(start + entry_size(name.len(), value.len()), 0);
    (start / 4) as u32
}

fn check(path: &TreePath, metadata: &Metadata) -> Result<(), ImageError> {
    for (name, value) in &metadata.xattrs {
        let what = if !crate::entry::xattr_allowed(name) {
            "is not allowed in a layer"
        } else if name.len() > 255 {
            "has a name of more than 255 bytes"
        } else if value.len() > usize::from(u16::MAX) {
            "has a value of more than 65535 bytes"
        } else {
            continue;
        };
        return Err(ImageError::Xattr { path: path.clone(), name: name.clone(), what });
    }
    Ok(())
}
