//! Numbers of the on-disk format, named as in fs/erofs/erofs_fs.h.

pub(super) const BLOCK_BITS: u8 = 12;
pub(super) const BLOCK: usize = 1 << BLOCK_BITS;
/// Inodes stand at multiples of this; an inode's number is its offset in these units.
pub(super) const SLOT: usize = 32;

pub(super) const SUPER_OFFSET: usize = 1024;
pub(super) const SUPER_SIZE: usize = 128;
pub(super) const SUPER_MAGIC: u32 = 0xE0F5_E1E2;
pub(super) const COMPAT_SB_CHKSUM: u32 = 1;
pub(super) const COMPAT_MTIME: u32 = 2;
pub(super) const INCOMPAT_CHUNKED_FILE: u32 = 4;

/// Offsets within the superblock.
pub(super) mod field {
    pub(in super::super) const MAGIC: usize = 0;
    pub(in super::super) const CHECKSUM: usize = 4;
    pub(in super::super) const FEATURE_COMPAT: usize = 8;
    pub(in super::super) const BLKSZBITS: usize = 12;
    pub(in super::super) const ROOT_NID: usize = 14;
    pub(in super::super) const INOS: usize = 16;
    pub(in super::super) const BUILD_TIME: usize = 24;
    pub(in super::super) const BLOCKS: usize = 36;
    pub(in super::super) const XATTR_BLKADDR: usize = 44;
    pub(in super::super) const UUID: usize = 48;
    pub(in super::super) const FEATURE_INCOMPAT: usize = 80;
}

pub(super) const COMPACT_SIZE: usize = 32;
pub(super) const EXTENDED_SIZE: usize = 64;
pub(super) const FLAT_PLAIN: u16 = 0;
pub(super) const FLAT_INLINE: u16 = 2;
pub(super) const CHUNK_BASED: u16 = 4;

/// The address of a hole, and of data that is nowhere.
pub(super) const NULL_ADDR: u32 = u32::MAX;
/// One chunk is `BLOCK << CHUNK_BITS` bytes, the most that the format allows: a file is one hole.
pub(super) const CHUNK_BITS: u16 = 31;
pub(super) const MAX_FILE_SIZE: u64 = (BLOCK as u64) << CHUNK_BITS;

pub(super) const S_IFMT: u16 = 0o170000;
pub(super) const S_IFREG: u16 = 0o100000;
pub(super) const S_IFDIR: u16 = 0o040000;
pub(super) const S_IFLNK: u16 = 0o120000;
pub(super) const FT_REG_FILE: u8 = 1;
pub(super) const FT_DIR: u8 = 2;
pub(super) const FT_SYMLINK: u8 = 7;

pub(super) const DIRENT_SIZE: usize = 12;

/// The head of an inode's attributes: name filter, number of shared ones, seven reserved bytes.
pub(super) const XATTR_HEADER: usize = 12;
pub(super) const XATTR_ENTRY: usize = 4;
pub(super) const XATTR_USER: u8 = 1;
pub(super) const XATTR_TRUSTED: u8 = 4;
/// Names after their `trusted.` prefix; see Documentation/filesystems/overlayfs.rst.
pub(super) const METACOPY: &[u8] = b"overlay.metacopy";
pub(super) const REDIRECT: &[u8] = b"overlay.redirect";

/// Returns the checksum of the superblock: crc32c, seeded with ones and not inverted at the end, of the first
/// block from the superblock on, its own field zero (`erofs_superblock_csum_verify` in fs/erofs/super.c).
pub(super) fn superblock_checksum(first_block: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for (at, &byte) in first_block[SUPER_OFFSET..BLOCK].iter().enumerate() {
        let own = (field::CHECKSUM..field::CHECKSUM + 4).contains(&at);
        crc ^= u32::from(if own { 0 } else { byte });
        for _ in 0..8 {
            crc = crc >> 1 ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
        }
    }
    crc
}
