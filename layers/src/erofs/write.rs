//! The bytes of a planned image.

use super::directory::{self, Dirent};
use super::format::{
    BLOCK, BLOCK_BITS, CHUNK_BASED, CHUNK_BITS, COMPAT_MTIME, COMPAT_SB_CHKSUM, FLAT_INLINE, FLAT_PLAIN,
    INCOMPAT_CHUNKED_FILE, NULL_ADDR, S_IFDIR, S_IFLNK, S_IFREG, SUPER_MAGIC, SUPER_OFFSET, field,
    superblock_checksum,
};
use super::plan::{Body, Inode, Plan};

/// Returns the image.
pub(super) fn image(plan: &Plan<'_>) -> Vec<u8> {
    let xattrs = plan.xattrs.shared_bytes();
    let blocks = plan.xattr_block as usize + xattrs.len().div_ceil(BLOCK);
    let mut image = vec![0; blocks * BLOCK];
    let (mut scratch, mut dirents) = (vec![], vec![]);
    for (number, inode) in plan.inodes.iter().enumerate() {
        scratch.clear();
        write_head(inode, number as u32 + 1, &mut scratch);
        plan.xattrs.write(&inode.attributes, &mut scratch);
        if inode.is_chunked() {
            scratch.extend_from_slice(&NULL_ADDR.to_le_bytes());
        }
        let head = scratch.len();
        match &inode.body {
            Body::File { .. } => {}
            Body::Symlink { target } => scratch.extend_from_slice(target),
            Body::Directory { names, .. } => {
                dirents.clear();
                dirents.extend(names.iter().map(|&(name, number)| {
                    let inode = &plan.inodes[number as usize];
                    Dirent { name, nid: inode.nid(), file_type: inode.file_type() }
                }));
                directory::write(&dirents, &mut scratch);
            }
        }
        let (head, content) = scratch.split_at(head);
        let whole = if inode.inline { content.len() / BLOCK * BLOCK } else { content.len() };
        put(&mut image, inode.offset, head);
        put(&mut image, inode.offset + head.len(), &content[whole..]);
        if let Some(block) = inode.block {
            put(&mut image, block as usize * BLOCK, &content[..whole]);
        }
    }
    put(&mut image, plan.xattr_block as usize * BLOCK, xattrs);
    write_superblock(plan, blocks as u32, &mut image);
    image
}

fn write_head(inode: &Inode<'_>, number: u32, out: &mut Vec<u8>) {
    let layout = match (inode.is_chunked(), inode.inline) {
        (true, _) => CHUNK_BASED,
        (false, true) => FLAT_INLINE,
        (false, false) => FLAT_PLAIN,
    };
    let file_type = match inode.body {
        Body::Directory { .. } => S_IFDIR,
        Body::File { .. } => S_IFREG,
        Body::Symlink { .. } => S_IFLNK,
    };
    let address = match inode.block {
        _ if inode.is_chunked() => u32::from(CHUNK_BITS),
        Some(block) => block,
        None => NULL_ADDR,
    };
    let metadata = inode.metadata;
    let mode = match inode.body {
        Body::Symlink { .. } => 0o777,
        _ => metadata.mode,
    };
    for half in [layout << 1 | u16::from(!inode.compact), inode.attributes.count(), file_type | mode] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    if inode.compact {
        out.extend_from_slice(&(inode.links as u16).to_le_bytes());
        out.extend_from_slice(&(inode.size() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&address.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&(metadata.uid as u16).to_le_bytes());
        out.extend_from_slice(&(metadata.gid as u16).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    } else {
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&inode.size().to_le_bytes());
        for word in [address, number, metadata.uid, metadata.gid] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&metadata.mtime.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&inode.links.to_le_bytes());
        out.extend_from_slice(&[0; 16]);
    }
}

/// Writes the superblock. The volume's UUID is a hash of everything else, in the form of a version 8 UUID
/// (RFC 9562), so that equal trees are equal volumes.
fn write_superblock(plan: &Plan<'_>, blocks: u32, image: &mut [u8]) {
    let mut set = |field: usize, bytes: &[u8]| put(image, SUPER_OFFSET + field, bytes);
    set(field::MAGIC, &SUPER_MAGIC.to_le_bytes());
    set(field::FEATURE_COMPAT, &(COMPAT_SB_CHKSUM | COMPAT_MTIME).to_le_bytes());
    set(field::BLKSZBITS, &[BLOCK_BITS]);
    set(field::ROOT_NID, &(plan.inodes[0].nid() as u16).to_le_bytes());
    set(field::INOS, &(plan.inodes.len() as u64).to_le_bytes());
    set(field::BUILD_TIME, &plan.build_time.to_le_bytes());
    set(field::BLOCKS, &blocks.to_le_bytes());
    set(field::XATTR_BLKADDR, &plan.xattr_block.to_le_bytes());
    set(field::FEATURE_INCOMPAT, &INCOMPAT_CHUNKED_FILE.to_le_bytes());
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&blake3::hash(image).as_bytes()[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    put(image, SUPER_OFFSET + field::UUID, &uuid);
    let checksum = superblock_checksum(image);
    put(image, SUPER_OFFSET + field::CHECKSUM, &checksum.to_le_bytes());
}

fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}
