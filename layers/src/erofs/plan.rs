//! Where everything in an image stands, before a byte of it is written.

use std::collections::{BTreeMap, HashMap};

use super::format::{
    BLOCK, COMPACT_SIZE, EXTENDED_SIZE, FT_DIR, FT_REG_FILE, FT_SYMLINK, MAX_FILE_SIZE, SLOT, SUPER_OFFSET,
    SUPER_SIZE,
};
use super::xattr::{Attributes, Xattrs};
use super::{ImageError, directory};
use crate::entry::{Kind, Metadata};
use crate::path::TreePath;
use crate::tree::Tree;

/// The inodes of an image and their places.
pub(super) struct Plan<'a> {
    /// In path order; the root is the first, which keeps its number within 16 bits as the superblock wants.
    pub(super) inodes: Vec<Inode<'a>>,
    pub(super) xattrs: Xattrs<'a>,
    /// The time of compact inodes.
    pub(super) build_time: i64,
    /// The number of the block where the shared attributes begin.
    pub(super) xattr_block: u32,
}

pub(super) struct Inode<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) body: Body<'a>,
    pub(super) links: u32,
    pub(super) attributes: Attributes<'a>,
    /// Whether 32 bytes are enough.
    pub(super) compact: bool,
    /// The offset in the image; a multiple of [`SLOT`].
    pub(super) offset: usize,
    /// The first whole block of content.
    pub(super) block: Option<u32>,
    /// Whether the end of the content stands behind the inode.
    pub(super) inline: bool,
}

pub(super) enum Body<'a> {
    /// Names and numbers of inodes, sorted by name, `.` and `..` included.
    Directory {
        names: Vec<(&'a [u8], u32)>,
        size: usize,
    },
    /// A file without content, or with content elsewhere.
    File {
        size: u64,
    },
    Symlink {
        target: &'a [u8],
    },
}

impl<'a> Plan<'a> {
    pub(super) fn new(tree: &'a Tree) -> Result<Self, ImageError> {
        let mut plan = Self { inodes: vec![], xattrs: Xattrs::default(), build_time: 0, xattr_block: 0 };
        plan.gather(tree)?;
        plan.build_time = most_common(plan.inodes.iter().map(|inode| inode.metadata.mtime));
        plan.place()?;
        Ok(plan)
    }

    fn gather(&mut self, tree: &'a Tree) -> Result<(), ImageError> {
        let entries = tree.entries();
        self.inodes.reserve_exact(entries.len());
        let mut numbers: Vec<u32> = Vec::with_capacity(entries.len());
        // The directories of the path so far: entries come in order, so the parent of each is the last.
        let mut open: Vec<(&TreePath, u32)> = vec![];
        for entry in entries {
            while open.last().is_some_and(|(path, _)| !entry.path.starts_with(path)) {
                open.pop();
            }
            let number = match &entry.kind {
                Kind::Hardlink { first } => {
                    let first = tree.position(first).expect("a tree has no dangling hardlinks");
                    let number = numbers[first];
                    self.inodes[number as usize].links += 1;
                    number
                }
                kind => {
                    let inode = self.inode(&entry.path, kind)?;
                    let number = u32::try_from(self.inodes.len()).map_err(|_| ImageError::TooLarge)?;
                    self.inodes.push(inode);
                    number
                }
            };
            numbers.push(number);
            let parent = open.last().map(|&(_, parent)| parent);
            if let Some(parent) = parent {
                self.name(parent, entry.path.file_name(), number);
            }
            if entry.kind.is_directory() {
                self.name(number, b".", number);
                self.name(number, b"..", parent.unwrap_or(number));
                if let Some(parent) = parent {
                    self.inodes[parent as usize].links += 1;
                }
                open.push((&entry.path, number));
            }
        }
        Ok(())
    }

    fn inode(&mut self, path: &TreePath, kind: &'a Kind) -> Result<Inode<'a>, ImageError> {
        let (metadata, body, links, attributes) = match kind {
            Kind::Directory { metadata, .. } => {
                let attributes = self.xattrs.add(path, metadata, None)?;
                (metadata, Body::Directory { names: vec![], size: 0 }, 2, attributes)
            }
            Kind::File { metadata, content } => {
                let (size, attributes) = (content.size(), self.xattrs.add(path, metadata, content.object())?);
                if size > MAX_FILE_SIZE {
                    return Err(ImageError::Size { path: path.clone(), size });
                }
                (metadata, Body::File { size }, 1, attributes)
            }
            Kind::Symlink { metadata, target } => {
                if !(1..BLOCK).contains(&target.len()) || target.contains(&0) {
                    return Err(ImageError::Target { path: path.clone(), length: target.len() });
                }
                (metadata, Body::Symlink { target }, 1, Attributes::default())
            }
            Kind::ImpliedDirectory | Kind::Hardlink { .. } | Kind::Whiteout => {
                return Err(ImageError::NotMerged { path: path.clone(), word: kind.word() });
            }
        };
        let (compact, offset, block, inline) = (false, 0, None, false);
        Ok(Inode { metadata, body, links, attributes, compact, offset, block, inline })
    }

    fn name(&mut self, parent: u32, name: &'a [u8], number: u32) {
        if let Body::Directory { names, .. } = &mut self.inodes[parent as usize].body {
            names.push((name, number));
        }
    }

    /// Gives every inode its offset and every whole block of content its number.
    fn place(&mut self) -> Result<(), ImageError> {
        let mut end = SUPER_OFFSET + SUPER_SIZE;
        let mut blocks = 0;
        for inode in &mut self.inodes {
            if let Body::Directory { names, size } = &mut inode.body {
                names.sort_unstable();
                *size = directory::size(names.iter().map(|(name, _)| *name));
            }
            inode.compact = inode.fits_compact(self.build_time);
            let head = inode.head_size() + inode.attributes.size();
            let content = inode.content_size();
            // The end of the content stands behind the inode if both fit one block, since the kernel refuses
            // inline content that crosses a block boundary (`erofs_fill_symlink`, `erofs_map_blocks`).
            let tail = content % BLOCK;
            inode.inline = tail > 0 && head + tail <= BLOCK;
            let own = head + inode.chunk_size() + if inode.inline { tail } else { 0 };
            if inode.inline && end % BLOCK + own > BLOCK {
                end = end.next_multiple_of(BLOCK);
            }
            inode.offset = end;
            end = (end + own).next_multiple_of(SLOT);
            let whole = if inode.inline { content / BLOCK } else { content.div_ceil(BLOCK) };
            if whole > 0 {
                // Counted from the end of the inodes until that is known.
                inode.block = Some(blocks);
                blocks += whole as u32;
            }
        }
        let first_block = end.div_ceil(BLOCK) as u64;
        let last =
            first_block + u64::from(blocks) + (self.xattrs.shared_bytes().len().div_ceil(BLOCK)) as u64;
        if last >= u64::from(u32::MAX) {
            return Err(ImageError::TooLarge);
        }
        for inode in &mut self.inodes {
            inode.block = inode.block.map(|block| block + first_block as u32);
        }
        self.xattr_block = first_block as u32 + blocks;
        Ok(())
    }
}

impl Inode<'_> {
    /// Returns the number that directory entries carry.
    pub(super) fn nid(&self) -> u64 {
        (self.offset / SLOT) as u64
    }

    pub(super) fn head_size(&self) -> usize {
        if self.compact { COMPACT_SIZE } else { EXTENDED_SIZE }
    }

    /// Returns the value of `i_size`.
    pub(super) fn size(&self) -> u64 {
        match &self.body {
            Body::File { size } => *size,
            _ => self.content_size() as u64,
        }
    }

    pub(super) fn file_type(&self) -> u8 {
        match self.body {
            Body::Directory { .. } => FT_DIR,
            Body::File { .. } => FT_REG_FILE,
            Body::Symlink { .. } => FT_SYMLINK,
        }
    }

    /// Whether this is a file with content, which is one null chunk.
    pub(super) fn is_chunked(&self) -> bool {
        matches!(self.body, Body::File { size } if size > 0)
    }

    fn chunk_size(&self) -> usize {
        if self.is_chunked() { 4 } else { 0 }
    }

    /// Returns the bytes of content that the image holds.
    fn content_size(&self) -> usize {
        match &self.body {
            Body::Directory { size, .. } => *size,
            Body::File { .. } => 0,
            Body::Symlink { target } => target.len(),
        }
    }

    /// Whether the fields have the width of `struct erofs_inode_compact`, which has no time of its own.
    fn fits_compact(&self, build_time: i64) -> bool {
        let Metadata { uid, gid, mtime, .. } = *self.metadata;
        let narrow = |value: u32| value <= u32::from(u16::MAX);
        mtime == build_time
            && narrow(uid)
            && narrow(gid)
            && narrow(self.links)
            && u32::try_from(self.size()).is_ok()
    }
}

/// Returns the most common of `times`, the earliest of several.
fn most_common(times: impl Iterator<Item = i64>) -> i64 {
    let mut counts: HashMap<i64, u64> = HashMap::new();
    for time in times {
        *counts.entry(time).or_default() += 1;
    }
    let counts: BTreeMap<(std::cmp::Reverse<u64>, i64), ()> =
        counts.into_iter().map(|(time, count)| ((std::cmp::Reverse(count), time), ())).collect();
    counts.first_key_value().map_or(0, |((_, time), ())| *time)
}
