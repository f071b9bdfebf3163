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
mod plan;
mod pool;

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::entry::{Content, Entry, Kind, Metadata};
use crate::path::TreePath;
use crate::tree::Tree;
pub use check::differing_stub;
use plan::{Child, Plan};
use pool::Pool;

/// Why stubs could not be written.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    /// The tree is a layer, not the merge of a stack.
    #[error("{path} is a {word}: only a merged tree can be written as stubs")]
    NotMerged {
        /// The path that only a layer can have.
        path: TreePath,
        /// What stands there.
        word: &'static str,
    },
    /// Pool and tree lie on different file systems.
    #[error("the pool {} and {} are on different file systems", .pool.display(), .out.display())]
    NoLink {
        /// The pool.
        pool: PathBuf,
        /// Where the tree was to be written.
        out: PathBuf,
    },
    /// The pool or the root of the tree could not be opened.
    #[error("cannot open {}", .path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An entry could not be made.
    #[error("cannot make {path} of the stub tree")]
    Make {
        /// The entry.
        path: TreePath,
        /// Why.
        source: io::Error,
    },
}

/// What a stub tree consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StubStats {
    /// Directories, the root among them.
    pub directories: u64,
    /// Stubs that were in the pool.
    pub linked_stubs: u64,
    /// Stubs that were not, or that are hardlinked within the tree.
    pub new_stubs: u64,
    /// Empty files, symlinks, and further names of hardlinked files.
    pub others: u64,
}

/// Writes `tree`, the result of a merge, as stubs at `out`, which must not exist, and adds to `pool`.
///
/// Syncs nothing: the caller writes under a temporary name and renames what is complete. What an error leaves
/// at `out` is for the caller to remove. Owners, opaque marks and attributes of symlinks are ignored.
pub fn write_stubs(tree: &Tree, pool: &Path, out: &Path) -> Result<StubStats, StubError> {
    let plan = Plan::new(tree)?;
    let open = |path: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| StubError::Open { path: path.to_owned(), source: error.into() })
    };
    for (path, made) in [(pool, fs::create_dir_all(pool)), (out, fs::create_dir(out))] {
        made.map_err(|source| StubError::Open { path: path.to_owned(), source })?;
    }
    let (pool_root, root) = (Pool::new(open(pool)?), open(out)?);
    let failed = |entry: &Entry, error: Errno| match error {
        Errno::XDEV => StubError::NoLink { pool: pool.to_owned(), out: out.to_owned() },
        error => StubError::Make { path: entry.path.clone(), source: error.into() },
    };

    // Own directories stay open to us until their children are made, whatever their mode.
    rustix::fs::chmodat(&root, ".", Mode::RWXU, AtFlags::empty())
        .map_err(|error| failed(plan.directories[0].entry, error))?;
    for directory in &plan.directories[1..] {
        let path = directory.entry.path.as_path();
        rustix::fs::mkdirat(&root, path, Mode::RWXU).map_err(|error| failed(directory.entry, error))?;
    }
    let stats = plan.directories.par_iter().map(|directory| {
        let mut stats = StubStats { directories: 1, ..StubStats::default() };
        let opened = open_below(&root, directory.entry).map_err(|error| failed(directory.entry, error))?;
        for child in &directory.children {
            child.make(&pool_root, &opened, &mut stats).map_err(|error| failed(child.entry, error))?;
        }
        Ok(stats)
    });
    let mut stats = stats.try_reduce(StubStats::default, |left, right| Ok(left + right))?;
    for (entry, first) in plan.hardlinks {
        stats.others += 1;
        let (first, path) = (first.as_path(), entry.path.as_path());
        rustix::fs::linkat(&root, first, &root, path, AtFlags::empty())
            .map_err(|error| failed(entry, error))?;
    }
    for directory in plan.directories.iter().rev() {
        finish_directory(&root, directory.entry).map_err(|error| failed(directory.entry, error))?;
    }
    Ok(stats)
}

impl Child<'_> {
    fn make(&self, pool: &Pool, directory: &OwnedFd, stats: &mut StubStats) -> Result<(), Errno> {
        let name = self.entry.path.file_name();
        match (&self.entry.kind, &self.key) {
            (Kind::Symlink { metadata, target }, _) => {
                rustix::fs::symlinkat(&**target, directory, name)?;
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(directory, name, &times(metadata.mtime), flags)?;
                stats.others += 1;
            }
            (Kind::File { metadata, content }, Some(key)) => {
                if pool.link(key, directory, name)? {
                    stats.linked_stubs += 1;
                } else {
                    make_file(directory, name, metadata, content)?;
                    pool.keep(key, directory, name)?;
                    stats.new_stubs += 1;
                }
            }
            (Kind::File { metadata, content }, None) => {
                make_file(directory, name, metadata, content)?;
                match content {
                    Content::Empty => stats.others += 1,
                    Content::Object(..) => stats.new_stubs += 1,
                }
            }
            _ => unreachable!("only files and symlinks are children"),
        }
        Ok(())
    }
}

/// Makes an empty file or a stub.
fn make_file(directory: &OwnedFd, name: &[u8], metadata: &Metadata, content: &Content) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
    let mark =
        |name: &str, value: &[u8]| rustix::fs::fsetxattr(&file, name, value, rustix::fs::XattrFlags::empty());
    if let Content::Object(object, size) = content {
        mark("user.overlay.metacopy", b"")?;
        mark("user.overlay.redirect", &crate::erofs::redirect(*object))?;
        rustix::fs::ftruncate(&file, *size)?;
    }
    finish(&file, metadata)
}

fn open_below(root: &OwnedFd, entry: &Entry) -> Result<OwnedFd, Errno> {
    let path = if entry.path.is_root() { Path::new(".") } else { entry.path.as_path() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(root, path, flags, Mode::empty())
}

/// Gives a directory its metadata; deeper ones have theirs already, so it may lose its permissions.
fn finish_directory(root: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
    let metadata = entry.kind.metadata().expect("a directory of a merged tree is described");
    finish(&open_below(root, entry)?, metadata)
}

fn finish(file: &OwnedFd, metadata: &Metadata) -> Result<(), Errno> {
    for (name, value) in &metadata.xattrs {
        rustix::fs::fsetxattr(file, &**name, value, rustix::fs::XattrFlags::empty())?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(metadata.mode.into()))?;
    rustix::fs::futimens(file, &times(metadata.mtime))
}

fn times(mtime: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime, tv_nsec: 0 },
    }
}

impl std::ops::Add for StubStats {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            directories: self.directories + other.directories,
            linked_stubs: self.linked_stubs + other.linked_stubs,
            new_stubs: self.new_stubs + other.new_stubs,
            others: self.others + other.others,
        }
    }
}
