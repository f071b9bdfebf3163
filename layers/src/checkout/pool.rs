//! Files that trees share, by a name that says everything that such a file shows.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

/// How many names a file has.
pub(crate) fn links(stat: &Stat) -> u64 {
    #[allow(clippy::useless_conversion, reason = "the field's type differs between architectures")]
    stat.st_nlink.into()
}

/// An open pool: names of two digits, a slash and the rest, and `tmp-*` while a file is replaced.
pub(crate) struct Pool {
    root: OwnedFd,
    temporary: AtomicU64,
}

impl Pool {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root, temporary: AtomicU64::new(0) }
    }

    /// Links a file into a tree; says no if there is none, or one without a link to spare.
    pub(crate) fn link(&self, pool_name: &str, directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        match rustix::fs::linkat(&self.root, pool_name, directory, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::MLINK) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How many links a file of the pool has; none if it is not there.
    pub(crate) fn links(&self, pool_name: &str) -> Result<u64, Errno> {
        match rustix::fs::statat(&self.root, pool_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(links(&stat)),
            Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Adds a file that was made in a tree, complete, so that a pool name never leads to an incomplete one.
    pub(crate) fn keep(&self, pool_name: &str, directory: impl AsFd, name: &[u8]) -> Result<(), Errno> {
        let add = |to: &str| rustix::fs::linkat(&directory, name, &self.root, to, AtFlags::empty());
        let mut added = add(pool_name);
        if added == Err(Errno::NOENT) {
            match rustix::fs::mkdirat(&self.root, &pool_name[..2], Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => added = add(pool_name),
                Err(error) => return Err(error),
            }
        }
        if added != Err(Errno::EXIST) {
            return added;
        }
        // Another process added the same file just now, or the one that is there has no link to spare (ext4
        // allows 65,000). Either way the newer one serves the next tree.
        loop {
            let number = self.temporary.fetch_add(1, Ordering::Relaxed);
            let temporary = format!("tmp-{}-{number}", std::process::id());
            match add(&temporary) {
                // Left behind by a killed process of the same number.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
                Ok(()) => return rustix::fs::renameat(&self.root, &temporary, &self.root, pool_name),
            }
        }
    }
}
