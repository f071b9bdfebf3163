//! The parts of a squashfs image around its data blocks, as a pure function of a pack's table.
//!
//! The least that squashfs 4.0 needs (kernel: fs/squashfs/squashfs_fs.h; Documentation/filesystems/squashfs.rst):
//! extended file and directory inodes, 256 directories named like those of `objects/`, one owner, no fragments,
//! no extended attributes, no export table, metadata blocks that are not compressed.
//!
//! ```text
//! superblock | data blocks | inodes | directories | owners | where the owners are | zeros up to 4 KiB
//! ```
//!
//! Inodes are numbered from 1: the objects by id, the 256 directories by name, the root.

use super::table::{FIRST_BLOCK, Table};
use crate::ingest::OBJECT_MTIME;

/// Content of a metadata block.
const METADATA: usize = 8192;
/// Set in the head of a metadata block that is not compressed.
const NOT_COMPRESSED: u16 = 0x8000;
const DIRECTORY: u16 = 1;
const FILE: u16 = 2;
const EXTENDED: u16 = 7;
/// No such table, or no such row.
const NONE: u64 = u64::MAX;
/// Objects are 0444; so are directories, with the right to enter them.
const FILE_MODE: u16 = 0o444;
const DIRECTORY_MODE: u16 = 0o555;
/// How many entries may stand below one head of a directory's list.
const RUN: usize = 256;

/// All of an image but its data blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Before the blocks.
    pub(crate) head: Vec<u8>,
    /// Behind them.
    pub(crate) tail: Vec<u8>,
}

/// Metadata blocks that are being filled.
#[derive(Default)]
struct Metadata(Vec<u8>);

/// Where something begins in metadata blocks: the block, as an offset in the image, and the offset in its content.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    block: u32,
    offset: u16,
}

impl Metadata {
    fn place(&self) -> Place {
        let block = self.0.len() / METADATA * (METADATA + 2);
        Place { block: block as u32, offset: (self.0.len() % METADATA) as u16 }
    }

    fn add(&mut self, fields: &[&[u8]]) {
        fields.iter().for_each(|field| self.0.extend_from_slice(field));
    }

    fn encode(&self) -> Vec<u8> {
        let blocks = self.0.chunks(METADATA).flat_map(|block| {
            let head = block.len() as u16 | NOT_COMPRESSED;
            head.to_le_bytes().into_iter().chain(block.iter().copied())
        });
        blocks.collect()
    }
}

/// The fields that every inode begins with.
fn inode(kind: u16, mode: u16, number: u32) -> Vec<u8> {
    let mut bytes = vec![];
    // The owner's and the group's row among the owners: the first.
    for field in [kind + EXTENDED, mode, 0, 0] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&(OBJECT_MTIME as u32).to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}

/// A name in a directory.
struct Child {
    name: String,
    kind: u16,
    place: Place,
    number: u32,
}

/// Writes the list of a directory's entries, which are sorted by name.
fn list(children: &[Child]) -> Vec<u8> {
    let mut bytes = vec![];
    let mut rest = children;
    while let Some(first) = rest.first() {
        // A head holds for inodes of one metadata block.
        let alike = rest.iter().take(RUN).take_while(|child| child.place.block == first.place.block).count();
        let (run, left) = rest.split_at(alike);
        rest = left;
        for field in [run.len() as u32 - 1, first.place.block, first.number] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        for child in run {
            let number = (child.number - first.number) as u16;
            for field in [child.place.offset, number, child.kind, child.name.len() as u16 - 1] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
            bytes.extend_from_slice(child.name.as_bytes());
        }
    }
    bytes
}

/// Adds a directory; returns where its inode is.
fn add_directory(
    inodes: &mut Metadata,
    lists: &mut Metadata,
    children: &[Child],
    number: u32,
    parent: u32,
) -> Place {
    let (place, at) = (inodes.place(), lists.place());
    let entries = list(children);
    lists.add(&[&entries]);
    let links = 2 + children.iter().filter(|child| child.kind == DIRECTORY).count() as u32;
    inodes.add(&[
        &inode(DIRECTORY, DIRECTORY_MODE, number),
        &links.to_le_bytes(),
        // Three more than there are, for `.` and `..`.
        &(entries.len() as u32 + 3).to_le_bytes(),
        &at.block.to_le_bytes(),
        &parent.to_le_bytes(),
        // No index of the list.
        &0u16.to_le_bytes(),
        &at.offset.to_le_bytes(),
        // No attributes.
        &u32::MAX.to_le_bytes(),
    ]);
    place
}

/// Makes all of the image of `table` but its data blocks.
pub(crate) fn frame(table: &Table) -> Frame {
    let (mut inodes, mut lists) = (Metadata::default(), Metadata::default());
    let mut children: Vec<Vec<Child>> = (0..256).map(|_| vec![]).collect();
    let files = table.objects().len() as u32;
    let root_number = files + 257;
    for (number, packed) in (1u32..).zip(table.objects()) {
        let place = inodes.place();
        inodes.add(&[
            &inode(FILE, FILE_MODE, number),
            &packed.start.to_le_bytes(),
            &packed.size.to_le_bytes(),
            // No holes, one name, no fragment and none in it, no attributes.
            &0u64.to_le_bytes(),
            &1u32.to_le_bytes(),
            &u32::MAX.to_le_bytes(),
            &0u32.to_le_bytes(),
            &u32::MAX.to_le_bytes(),
        ]);
        for word in table.words(packed) {
            inodes.add(&[&word.to_le_bytes()]);
        }
        let mut name = packed.object.to_hex();
        let name = name.split_off(2);
        children[usize::from(packed.object.as_bytes()[0])].push(Child { name, kind: FILE, place, number });
    }
    let mut directories = vec![];
    for (first, children) in children.iter().enumerate() {
        let number = files + 1 + first as u32;
        let place = add_directory(&mut inodes, &mut lists, children, number, root_number);
        directories.push(Child { name: format!("{first:02x}"), kind: DIRECTORY, place, number });
    }
    let root = add_directory(&mut inodes, &mut lists, &directories, root_number, root_number + 1);

    let inodes_at = table.end();
    let mut tail = inodes.encode();
    let lists_at = inodes_at + tail.len() as u64;
    tail.extend(lists.encode());
    let owners_at = inodes_at + tail.len() as u64;
    tail.extend(Metadata(0u32.to_le_bytes().to_vec()).encode());
    let index_at = inodes_at + tail.len() as u64;
    tail.extend(owners_at.to_le_bytes());
    let used = inodes_at + tail.len() as u64;
    // A loop device shows whole sectors only.
    tail.resize(tail.len() + (used.next_multiple_of(4096) - used) as usize, 0);

    let root_place = u64::from(root.block) << 16 | u64::from(root.offset);
    let mut head = b"hsqs".to_vec();
    for field in [root_number, OBJECT_MTIME as u32, table.block() as u32, 0] {
        head.extend_from_slice(&field.to_le_bytes());
    }
    const ZSTD: u16 = 6;
    // Inodes and owners are not compressed; there are no fragments and no attributes.
    const FLAGS: u16 = 0x0001 | 0x0800 | 0x0010 | 0x0200;
    for field in [ZSTD, table.block().trailing_zeros() as u16, FLAGS, 1, 4, 0] {
        head.extend_from_slice(&field.to_le_bytes());
    }
    for field in [root_place, used, index_at, NONE, inodes_at, lists_at, NONE, NONE] {
        head.extend_from_slice(&field.to_le_bytes());
    }
    debug_assert_eq!(head.len() as u64, FIRST_BLOCK);
    Frame { head, tail }
}
