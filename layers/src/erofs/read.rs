//! An image back as the tree that it was written from: for tests, and to verify what lies on the disk.

use std::collections::{HashMap, HashSet};

use super::directory::{self, Dirent};
use super::format::{
    BLOCK, BLOCK_BITS, CHUNK_BASED, COMPACT_SIZE, EXTENDED_SIZE, FLAT_INLINE, FLAT_PLAIN, FT_DIR,
    FT_REG_FILE, FT_SYMLINK, INCOMPAT_CHUNKED_FILE, METACOPY, REDIRECT, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG,
    SLOT, SUPER_MAGIC, SUPER_OFFSET, XATTR_ENTRY, XATTR_HEADER, XATTR_TRUSTED, XATTR_USER, field,
    superblock_checksum,
};
use super::xattr::Pair;
use crate::entry::{Content, Entry, Kind, Metadata, clean_mode, xattr_allowed};
use crate::path::{PathError, TreePath};
use crate::tree::Tree;

/// Bytes that are no image of ours, or a damaged one.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The superblock is wrong.
    #[error("this is no image: {0}")]
    Superblock(&'static str),
    /// An inode is wrong.
    #[error("inode {nid} of the image {what}")]
    Inode {
        /// Its number.
        nid: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A name is wrong.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Reads an image that [`super::write_image`] wrote.
pub fn read_image(image: &[u8]) -> Result<Tree, ReadError> {
    let image = Image::open(image)?;
    let mut entries = vec![];
    let mut firsts: HashMap<u64, TreePath> = HashMap::new();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut pending = vec![(TreePath::root(), image.root, FT_DIR)];
    while let Some((path, nid, file_type)) = pending.pop() {
        let bad = |what| ReadError::Inode { nid, what };
        if let Some(first) = firsts.get(&nid) {
            entries.push(Entry { path, kind: Kind::Hardlink { first: first.clone() } });
            continue;
        }
        let inode = image.inode(nid).ok_or_else(|| bad("is cut short"))?;
        let (kind, found) = image.kind(&inode).map_err(bad)?;
        if found != file_type {
            return Err(bad("is not of the kind that its name says"));
        }
        if !kind.is_directory() {
            firsts.insert(nid, path.clone());
        } else if !seen.insert(nid) {
            return Err(bad("is a directory with two names"));
        } else {
            let content = image.content(&inode).ok_or_else(|| bad("has content outside the image"))?;
            let dirents = directory::read(&content).ok_or_else(|| bad("is a damaged directory"))?;
            if dirents.windows(2).any(|pair| pair[0].name >= pair[1].name) {
                return Err(bad("is a directory out of order"));
            }
            for Dirent { name, nid, file_type } in dirents.into_iter().rev() {
                if name != b"." && name != b".." {
                    pending.push((path.join(name)?, nid, file_type));
                }
            }
        }
        entries.push(Entry { path, kind });
    }
    // Each directory was in order, and each file's first name came first: this is path order.
    Ok(Tree::from_sorted(entries))
}

struct Image<'a> {
    bytes: &'a [u8],
    root: u64,
    build_time: i64,
    shared: usize,
}

/// An inode as it stands in the image.
struct Inode<'a> {
    offset: usize,
    /// Where the content, or the chunk, begins.
    body: usize,
    layout: u16,
    mode: u16,
    size: u64,
    address: u32,
    uid: u32,
    gid: u32,
    mtime: i64,
    attributes: &'a [u8],
}

impl<'a> Image<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, ReadError> {
        let bad = ReadError::Superblock;
        if bytes.len() < BLOCK || u32_at(bytes, SUPER_OFFSET + field::MAGIC) != Some(SUPER_MAGIC) {
            return Err(bad("it has no superblock"));
        }
        let word = |field| u32_at(bytes, SUPER_OFFSET + field).unwrap_or_default();
        if word(field::CHECKSUM) != superblock_checksum(bytes) {
            return Err(bad("the checksum of its superblock differs"));
        }
        if bytes[SUPER_OFFSET + field::BLKSZBITS] != BLOCK_BITS
            || word(field::FEATURE_INCOMPAT) & !INCOMPAT_CHUNKED_FILE != 0
        {
            return Err(bad("it uses features that infradev does not"));
        }
        if word(field::BLOCKS) as usize * BLOCK != bytes.len() {
            return Err(bad("it is shorter or longer than it says"));
        }
        let root = u64::from(u16_at(bytes, SUPER_OFFSET + field::ROOT_NID).unwrap_or_default());
        let build_time = u64_at(bytes, SUPER_OFFSET + field::BUILD_TIME).unwrap_or_default() as i64;
        Ok(Self { bytes, root, build_time, shared: word(field::XATTR_BLKADDR) as usize * BLOCK })
    }

    fn inode(&self, nid: u64) -> Option<Inode<'a>> {
        let offset = usize::try_from(nid).ok()?.checked_mul(SLOT)?;
        let head = self.bytes.get(offset..)?;
        let format = u16_at(head, 0)?;
        let extended = format & 1 == 1;
        let size = if extended { EXTENDED_SIZE } else { COMPACT_SIZE };
        let attributes = match usize::from(u16_at(head, 2)?) {
            0 => &[][..],
            count => head.get(size..size + XATTR_HEADER + (count - 1) * 4)?,
        };
        let body = offset + size + attributes.len();
        let (layout, mode, address) = (format >> 1, u16_at(head, 4)?, u32_at(head, 16)?);
        Some(if extended {
            let (uid, gid, mtime) = (u32_at(head, 24)?, u32_at(head, 28)?, u64_at(head, 32)? as i64);
            Inode { offset, body, layout, mode, size: u64_at(head, 8)?, address, uid, gid, mtime, attributes }
        } else {
            let (uid, gid) = (u16_at(head, 24)?.into(), u16_at(head, 26)?.into());
            let (size, mtime) = (u32_at(head, 8)?.into(), self.build_time);
            Inode { offset, body, layout, mode, size, address, uid, gid, mtime, attributes }
        })
    }

    /// Returns what an inode is, and the file type that its directory entries must carry.
    fn kind(&self, inode: &Inode<'a>) -> Result<(Kind, u8), &'static str> {
        let (xattrs, redirect) = self.attributes(inode).ok_or("has damaged extended attributes")?;
        let mode = inode.mode & !S_IFMT;
        if clean_mode(mode.into()) != mode {
            return Err("has mode bits beyond permissions");
        }
        let metadata = Metadata { mode, uid: inode.uid, gid: inode.gid, mtime: inode.mtime, xattrs };
        match inode.mode & S_IFMT {
            S_IFDIR => Ok((Kind::Directory { metadata, opaque: false }, FT_DIR)),
            S_IFREG if inode.size == 0 => Ok((Kind::File { metadata, content: Content::Empty }, FT_REG_FILE)),
            S_IFREG => {
                let redirect = redirect.filter(|_| inode.layout == CHUNK_BASED);
                let digits = redirect.and_then(|path| std::str::from_utf8(path).ok());
                let digits = digits.and_then(|path| path.strip_prefix('/')?.split_once('/'));
                let object = digits.filter(|(directory, _)| directory.len() == 2);
                let object = object.and_then(|(directory, rest)| format!("{directory}{rest}").parse().ok());
                let content = Content::Object(object.ok_or("is a file that names no object")?, inode.size);
                Ok((Kind::File { metadata, content }, FT_REG_FILE))
            }
            S_IFLNK => {
                let target = self.content(inode).ok_or("has a target outside the image")?;
                Ok((Kind::Symlink { metadata, target: target.into() }, FT_SYMLINK))
            }
            _ => Err("is of an unknown kind"),
        }
    }

    /// Returns the user attributes, and the redirect if overlayfs would follow it.
    fn attributes(&self, inode: &Inode<'a>) -> Option<(Vec<Pair>, Option<&'a [u8]>)> {
        let (mut user, mut metacopy, mut redirect) = (vec![], false, None);
        let mut take = |prefix: u8, name: &[u8], value: &'a [u8]| match (prefix, name) {
            (XATTR_TRUSTED, METACOPY) => metacopy = true,
            (XATTR_TRUSTED, REDIRECT) => redirect = Some(value),
            (prefix, name) => user.push((prefix, name.to_vec(), value)),
        };
        let shared = inode.attributes.get(4).copied().map_or(0, usize::from);
        for number in 0..shared {
            let reference = u32_at(inode.attributes, XATTR_HEADER + number * 4)? as usize;
            let (prefix, name, value, _) = xattr_at(self.bytes.get(self.shared..)?, reference * 4)?;
            take(prefix, name, value);
        }
        let mut at = XATTR_HEADER + shared * 4;
        while at < inode.attributes.len() {
            let (prefix, name, value, next) = xattr_at(inode.attributes, at)?;
            take(prefix, name, value);
            at = next;
        }
        let mut xattrs: Vec<Pair> = vec![];
        for (prefix, name, value) in user {
            let name = [b"user.", &name[..]].concat();
            if prefix != XATTR_USER || !xattr_allowed(&name) {
                return None;
            }
            xattrs.push((name.into(), value.into()));
        }
        xattrs.sort();
        Some((xattrs, redirect.filter(|_| metacopy)))
    }

    /// Returns the content of a directory or symlink.
    fn content(&self, inode: &Inode<'a>) -> Option<Vec<u8>> {
        let size = usize::try_from(inode.size).ok().filter(|&size| size <= self.bytes.len())?;
        let whole = match inode.layout {
            FLAT_PLAIN => size,
            FLAT_INLINE => size / BLOCK * BLOCK,
            _ => return None,
        };
        let start = if whole > 0 { inode.address as usize * BLOCK } else { 0 };
        let end_of_content = inode.body..inode.body + (size - whole);
        if !end_of_content.is_empty() && end_of_content.end > inode.offset / BLOCK * BLOCK + BLOCK {
            return None;
        }
        Some([self.bytes.get(start..start + whole)?, self.bytes.get(end_of_content)?].concat())
    }
}

/// Returns prefix, name and value of an attribute, and where the next one begins.
fn xattr_at(area: &[u8], at: usize) -> Option<(u8, &[u8], &[u8], usize)> {
    let (length, prefix) = (usize::from(*area.get(at)?), *area.get(at + 1)?);
    let (name, size) = (at + XATTR_ENTRY, usize::from(u16_at(area, at + 2)?));
    let value = name + length;
    let next = (value + size).next_multiple_of(4);
    Some((prefix, area.get(name..value)?, area.get(value..value + size)?, next))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
