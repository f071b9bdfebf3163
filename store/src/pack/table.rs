//! The table of a pack: which objects are in it and where, so that they can be read without mounting it.
//!
//! ```text
//! magic      16 bytes   "infradev pack", 0x00, 0x00, format version: 2; 1 in packs whose blocks are of 1 MiB
//! count      u32 LE     number of objects, at least one
//! objects    ascending by id, distinct; each:
//!              id       32 bytes
//!              size     u64 LE, bytes of content, not zero
//!              start    u64 LE, where its first block is in the .sqfs file
//!              words    u32 LE for each block of 256 KiB, the last one shorter: bytes of the block in the file;
//!                       bit 24 is set if they are the content itself, else they are a zstd frame
//! ```
//!
//! The blocks lie one after the other in the order of the objects, so a table can be checked by itself, and all
//! of the image but the blocks follows from it ([`super::squashfs`]).

use crate::{ObjectId, PackId};

/// Opens every table; the format version follows. Changing what is written changes every `PackId`.
const TABLE_MAGIC: [u8; 15] = *b"infradev pack\0\0";

/// Bytes of content in a block of a pack that is written: a small block that a fault reads leaves more of a large
/// library alone, a large one compresses better (`decisions/0021`).
pub(crate) const BLOCK: u64 = 256 << 10;

/// The format versions, and what a block has in each.
const VERSIONS: [(u8, u64); 2] = [(1, 1 << 20), (2, BLOCK)];

/// Set in the word of a block that is stored as it is (squashfs: SQUASHFS_COMPRESSED_BIT_BLOCK).
pub(crate) const STORED: u32 = 1 << 24;

/// Where the first block is: after the superblock of squashfs.
pub(crate) const FIRST_BLOCK: u64 = 96;

/// An object in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) object: ObjectId,
    /// Bytes of content.
    pub(crate) size: u64,
    /// Where its first block is in the image.
    pub(crate) start: u64,
    /// The row of its first word.
    first_word: usize,
}

/// The table of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    block: u64,
    objects: Vec<Packed>,
    words: Vec<u32>,
}

/// Bytes of a block in the image.
pub(crate) fn stored_bytes(word: u32) -> u64 {
    u64::from(word & (STORED - 1))
}

impl Default for Table {
    fn default() -> Self {
        Self::of(BLOCK)
    }
}

impl Table {
    /// Makes the table of an empty pack with blocks of so many bytes.
    pub(super) fn of(block: u64) -> Self {
        Self { block, objects: vec![], words: vec![] }
    }

    /// Bytes of content in a block.
    pub(crate) fn block(&self) -> u64 {
        self.block
    }

    fn block_count(&self, size: u64) -> usize {
        size.div_ceil(self.block) as usize
    }

    /// Adds an object behind the others; its id is higher than theirs.
    pub(crate) fn add(&mut self, object: ObjectId, size: u64, words: &[u32]) {
        debug_assert!(self.objects.last().is_none_or(|last| last.object < object));
        debug_assert_eq!(words.len(), self.block_count(size));
        let start = self.end();
        self.objects.push(Packed { object, size, start, first_word: self.words.len() });
        self.words.extend_from_slice(words);
    }

    /// Its objects, ascending by id.
    pub(crate) fn objects(&self) -> &[Packed] {
        &self.objects
    }

    /// Returns an object by id.
    pub(crate) fn find(&self, object: &ObjectId) -> Option<&Packed> {
        let row = self.objects.binary_search_by_key(object, |packed| packed.object).ok()?;
        Some(&self.objects[row])
    }

    /// The words of an object's blocks.
    pub(crate) fn words(&self, packed: &Packed) -> &[u32] {
        &self.words[packed.first_word..packed.first_word + self.block_count(packed.size)]
    }

    /// Bytes that the blocks of an object take in the image.
    pub(crate) fn stored(&self, packed: &Packed) -> u64 {
        self.words(packed).iter().map(|word| stored_bytes(*word)).sum()
    }

    /// Where the blocks end in the image.
    pub(crate) fn end(&self) -> u64 {
        self.objects.last().map_or(FIRST_BLOCK, |last| last.start + self.stored(last))
    }

    /// Writes the table.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = TABLE_MAGIC.to_vec();
        let version = VERSIONS.iter().find(|(_, block)| *block == self.block);
        bytes.push(version.expect("a table has blocks of some version").0);
        let count = u32::try_from(self.objects.len()).expect("a pack has fewer than 2^32 objects");
        bytes.extend_from_slice(&count.to_le_bytes());
        for packed in &self.objects {
            bytes.extend_from_slice(packed.object.as_bytes());
            bytes.extend_from_slice(&packed.size.to_le_bytes());
            bytes.extend_from_slice(&packed.start.to_le_bytes());
            for word in self.words(packed) {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads the table of the pack `id`; the error says what is wrong with it.
    pub(crate) fn decode(id: &PackId, bytes: &[u8]) -> Result<Self, String> {
        let found = PackId::of(bytes);
        if found != *id {
            return Err(format!("its table hashes to {found}"));
        }
        Self::parse(bytes).ok_or_else(|| "its table is not of a form that this program knows".to_owned())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&TABLE_MAGIC)?;
        let mut take = |length: usize| -> Option<&[u8]> {
            let (taken, left) = rest.split_at_checked(length)?;
            rest = left;
            Some(taken)
        };
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let version = take(1)?[0];
        let (_, block) = *VERSIONS.iter().find(|(known, _)| *known == version)?;
        let count = u32::from_le_bytes(take(4)?.try_into().expect("four bytes"));
        let mut table = Table::of(block);
        for _ in 0..count {
            let object = ObjectId::from_bytes(take(32)?.try_into().expect("32 bytes"));
            let (size, start) = (number(take(8)?), number(take(8)?));
            let words = take(table.block_count(size).checked_mul(4)?)?;
            let words: Vec<u32> = words
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
                .collect();
            let ascending = table.objects.last().is_none_or(|last| last.object < object);
            if size == 0 || !ascending || start != table.end() || !are_sound(block, size, &words) {
                return None;
            }
            table.add(object, size, &words);
        }
        (count > 0 && take(1).is_none()).then_some(table)
    }
}

/// Whether every block is as long as it can be.
fn are_sound(block: u64, size: u64, words: &[u32]) -> bool {
    words.iter().enumerate().all(|(number, word)| {
        let content = block.min(size - number as u64 * block);
        let stored = stored_bytes(*word);
        if word & STORED != 0 {
            *word & !STORED < STORED && stored == content
        } else {
            (1..content).contains(&stored) && *word < STORED
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_refuses_the_rest() {
        let mut ids = [ObjectId::of(b"a"), ObjectId::of(b"b")];
        ids.sort();
        let mut table = Table::default();
        table.add(ids[0], BLOCK + 5, &[17, 5 | STORED]);
        table.add(ids[1], 9, &[3]);
        let bytes = table.encode();
        let id = PackId::of(&bytes);
        assert_eq!(Table::decode(&id, &bytes), Ok(table.clone()));
        assert_eq!((table.find(&ids[1]).unwrap().start, table.end()), (96 + 22, 96 + 25));
        assert!(table.find(&ObjectId::of(b"c")).is_none());
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(Table::decode(&id, &flipped).is_err(), "byte {at}");
            assert!(Table::decode(&PackId::of(&bytes[..at]), &bytes[..at]).is_err(), "cut at {at}");
        }
        let empty = Table::default().encode();
        assert!(Table::decode(&PackId::of(&empty), &empty).is_err());
    }
}
