//! Stubs that trees share, by the hash of all that a stub shows.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use infradev_store::ObjectId;
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::entry::Metadata;

/// Names what a stub shows, and how many earlier files of its tree show the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(blake3::Hash);

impl Key {
    pub(super) fn of(object: ObjectId, size: u64, metadata: &Metadata) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("infradev stub v1");
        hasher.update(object.as_bytes());
        hasher.update(&size.to_le_bytes());
        hasher.update(&metadata.mode.to_le_bytes());
        hasher.update(&metadata.mtime.to_le_bytes());
        for bytes in metadata.xattrs.iter().flat_map(|(name, value)| [name, value]) {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
        Self(hasher.finalize())
    }

    /// Returns the key of the next file with the same key, after `earlier` of them.
    pub(super) fn numbered(self, earlier: u32) -> Self {
        match earlier {
            0 => self,
            _ => Self(blake3::keyed_hash(self.0.as_bytes(), &earlier.to_le_bytes())),
        }
    }

    fn path(&self) -> String {
        let digits = self.0.to_hex();
        format!("{}/{}", &digits[..2], &digits[2..])
    }
}

/// An open pool: `<2 hex>/<62 hex>`, and `tmp-*` while a stub is replaced.
pub(super) struct Pool {
    root: OwnedFd,
    temporary: AtomicU64,
}

impl Pool {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root, temporary: AtomicU64::new(0) }
    }

    /// Links a stub into a tree; says no if there is none, or one without a link to spare.
    pub(super) fn link(&self, key: &Key, directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        match rustix::fs::linkat(&self.root, key.path(), directory, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::MLINK) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds a stub that was made in a tree, complete, so that a pool name never leads to an incomplete one.
    pub(super) fn keep(&self, key: &Key, directory: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        let path = key.path();
        let add = |to: &str| rustix::fs::linkat(directory, name, &self.root, to, AtFlags::empty());
        let mut added = add(&path);
        if added == Err(Errno::NOENT) {
            match rustix::fs::mkdirat(&self.root, &path[..2], Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => added = add(&path),
                Err(error) => return Err(error),
            }
        }
        if added != Err(Errno::EXIST) {
            return added;
        }
        // Another process added the same stub just now, or the one that is there has no link to spare (ext4
        // allows 65,000). Either way the newer one serves the next tree.
        loop {
            let number = self.temporary.fetch_add(1, Ordering::Relaxed);
            let temporary = format!("tmp-{}-{number}", std::process::id());
            match add(&temporary) {
                // Left behind by a killed process of the same number.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
                Ok(()) => return rustix::fs::renameat(&self.root, &temporary, &self.root, &path),
            }
        }
    }
}
