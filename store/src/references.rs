//! The head of a layer's encoding: which objects it needs.
//!
//! The store must know which objects a layer keeps alive, and nothing else about it. So every layer
//! encoding begins with [`LAYER_MAGIC`] and a table of its distinct objects; what follows belongs to
//! the layers crate. Reading the head alone makes garbage collection and accounting independent of
//! the number of entries.
//!
//! ```text
//! magic      16 bytes   "infradev layer", 0x00, format version 1
//! count      u32 LE     number of objects
//! objects    40 bytes each: 32 of id, u64 LE of size; strictly ascending by id, sizes non-zero
//! …          the tree, opaque to the store
//! ```

use crate::ObjectId;

/// Opens every layer encoding; the last byte is the format version. Changing it changes every `LayerId`.
pub const LAYER_MAGIC: [u8; 16] = *b"infradev layer\0\x01";

/// One object that a layer needs, with its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The object's id.
    pub object: ObjectId,
    /// The size of its content in bytes; never zero, since an empty file needs no object.
    pub size: u64,
}

/// A layer encoding whose head is not well formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The encoding does not begin with the magic, or is of another version.
    #[error("not a layer encoding of a version that this program knows")]
    Magic,
    /// The encoding ends inside its object table.
    #[error("the object table is cut short")]
    Truncated,
    /// The object table is not strictly ascending, or holds an empty object.
    #[error("the object table is not canonical at row {0}")]
    NotCanonical(usize),
}

/// Writes the head for `references`, which must be sorted and distinct.
pub fn write_head(references: &[Reference], out: &mut Vec<u8>) {
    debug_assert!(references.windows(2).all(|pair| pair[0].object < pair[1].object));
    out.extend_from_slice(&LAYER_MAGIC);
    let count = u32::try_from(references.len()).expect("a layer has fewer than 2^32 files");
    out.extend_from_slice(&count.to_le_bytes());
    for reference in references {
        out.extend_from_slice(reference.object.as_bytes());
        out.extend_from_slice(&reference.size.to_le_bytes());
    }
}

/// Reads the head of `encoding`; returns the references and the offset at which the tree begins.
pub fn read_head(encoding: &[u8]) -> Result<(Vec<Reference>, usize), ReferenceError> {
    const ROW: usize = 40;
    let after_magic = encoding.strip_prefix(&LAYER_MAGIC).ok_or(ReferenceError::Magic)?;
    let (count, rows) = after_magic.split_first_chunk::<4>().ok_or(ReferenceError::Truncated)?;
    let count = u32::from_le_bytes(*count) as usize;
    let table =
        count.checked_mul(ROW).and_then(|length| rows.get(..length)).ok_or(ReferenceError::Truncated)?;
    let mut references: Vec<Reference> = Vec::with_capacity(count);
    for (row, bytes) in table.chunks_exact(ROW).enumerate() {
        let (id, size) = bytes.split_at(32);
        let reference = Reference {
            object: ObjectId::from_bytes(id.try_into().expect("split at 32")),
            size: u64::from_le_bytes(size.try_into().expect("40 - 32 = 8")),
        };
        let ascending = references.last().is_none_or(|last| last.object < reference.object);
        if !ascending || reference.size == 0 {
            return Err(ReferenceError::NotCanonical(row));
        }
        references.push(reference);
    }
    Ok((references, LAYER_MAGIC.len() + 4 + table.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_refuses_the_rest() {
        let mut references: Vec<_> =
            [b"a", b"b", b"c"].map(|bytes| Reference { object: ObjectId::of(bytes), size: 1 }).into();
        references.sort();
        let mut encoding = Vec::new();
        write_head(&references, &mut encoding);
        let head = encoding.len();
        encoding.extend_from_slice(b"tree");
        assert_eq!(read_head(&encoding), Ok((references.clone(), head)));
        assert_eq!(read_head(&encoding[..head - 1]), Err(ReferenceError::Truncated));
        assert_eq!(read_head(b"something else entirely"), Err(ReferenceError::Magic));
        let twice = [references[0], references[0]];
        let mut bad = LAYER_MAGIC.to_vec();
        bad.extend_from_slice(&2u32.to_le_bytes());
        for reference in twice {
            bad.extend_from_slice(reference.object.as_bytes());
            bad.extend_from_slice(&1u64.to_le_bytes());
        }
        assert_eq!(read_head(&bad), Err(ReferenceError::NotCanonical(1)));
    }
}
