//! A merged tree as real directories, symlinks and *stubs*, for users who may not mount an image.
//!
//! A stub is a sparse file of its object's size, mode, time and attributes, with `user.overlay.metacopy` and
//! `user.overlay.redirect`, by which overlayfs, mounted with `userxattr` and the objects directory as data-only
//! lower layer, reads the object instead (Documentation/filesystems/overlayfs.rst, "Data-only lower layers" and
//! "User xattr"). Everything belongs to the caller. An empty file is itself.
//!
//! # Pool
//! The two attributes do not fit the inode of ext4, so a stub costs a block of 4 KiB. Stubs are therefore
//! hardlinked from a pool, where all trees share them, by a name that says everything that a stub shows. Within
//! one tree a stub is used once: the second file with the same content, mode, time and attributes gets a
//! second stub. overlayfs shows the inode number of the stub, so two names with one number would be hardlinks
//! of each other, which they are not. Files that are hardlinked in the tree share a stub outside the pool.
//! `st_nlink` thus counts the trees that share the stub, as it counts the names in a store of hardlinks;
//! whoever looks for hardlinks compares `st_ino`, as tar and rsync do. Mount with `index=off`: an index would
//! follow the links of a stub out of the tree.
//!
//! A stub has no data, only metadata in the order in which it was made, so a journal never keeps a pool name
//! of an incomplete one. A pool file with one link is in no tree and may be removed at any time.

mod check;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;

use crate::checkout::{self, CheckoutError, CheckoutStats, Files, Made, Pool, Wanted};
use crate::scan::Owners;
use crate::tree::Tree;
pub use check::differing_stub;

/// Writes `tree`, the result of a merge, as stubs at `out`, which must not exist, and adds to `pool`.
///
/// Syncs nothing: the caller writes under a temporary name and renames what is complete. What an error leaves
/// at `out` is for the caller to remove. Owners, opaque marks and attributes of symlinks are ignored.
pub fn write_stubs(tree: &Tree, pool: &Path, out: &Path) -> Result<CheckoutStats, CheckoutError> {
    checkout::write(tree, &Stubs { pool: checkout::open_pool(pool)? }, out)
}

struct Stubs {
    pool: Pool,
}

impl Files for Stubs {
    fn pool_name(&self, wanted: &Wanted<'_>, earlier: u32) -> Option<String> {
        if wanted.further_names > 0 {
            return None;
        }
        let mut hasher = blake3::Hasher::new_derive_key("infradev stub v1");
        hasher.update(wanted.object.as_bytes());
        hasher.update(&wanted.size.to_le_bytes());
        hasher.update(&wanted.metadata.mode.to_le_bytes());
        hasher.update(&wanted.metadata.mtime.to_le_bytes());
        for bytes in wanted.metadata.xattrs.iter().flat_map(|(name, value)| [name, value]) {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
        let mut key = hasher.finalize();
        if earlier > 0 {
            key = blake3::keyed_hash(key.as_bytes(), &earlier.to_le_bytes());
        }
        let digits = key.to_hex();
        Some(format!("{}/{}", &digits[..2], &digits[2..]))
    }

    fn make(&self, wanted: &Wanted<'_>, directory: &OwnedFd, name: &[u8]) -> Result<Made, Errno> {
        if let Some(pool_name) = &wanted.pool_name
            && self.pool.link(pool_name, directory, name)?
        {
            return Ok(Made::Linked);
        }
        let file = checkout::create(directory, name)?;
        let mark = |name: &str, value: &[u8]| {
            rustix::fs::fsetxattr(&file, name, value, rustix::fs::XattrFlags::empty())
        };
        mark("user.overlay.metacopy", b"")?;
        mark("user.overlay.redirect", &crate::erofs::redirect(wanted.object))?;
        rustix::fs::ftruncate(&file, wanted.size)?;
        checkout::finish(&file, wanted.metadata, self.owners())?;
        if let Some(pool_name) = &wanted.pool_name {
            self.pool.keep(pool_name, directory, name)?;
        }
        Ok(Made::New(0))
    }

    fn owners(&self) -> Owners {
        Owners::Root
    }
}
