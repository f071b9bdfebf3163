//! A merged tree written to disk, as directories, symlinks and files; who writes it says what a file is.
//!
//! [`write_stubs`](crate::write_stubs) makes stubs of the files, [`write_farm`](crate::write_farm) hardlinks, and
//! [`write_copy`](crate::write_copy) copies. Nothing is followed: every name is made relative to its open
//! directory. Directories get their own mode last, so that one without permissions can be filled.

mod content;
mod plan;
mod pool;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;

use crate::entry::{Content, Entry, Kind, Metadata};
use crate::path::TreePath;
use crate::scan::Owners;
use crate::tree::Tree;

pub(crate) use content::{Objects, clone_object, copy_object, duplicate_object, fill};
pub(crate) use plan::Wanted;
pub(crate) use pool::{Pool, links};

use plan::Plan;

/// Why a tree could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CheckoutError {
    /// The tree is a layer, not the merge of a stack.
    #[error("{path} is a {word}: only a merged tree can be written")]
    NotMerged {
        /// The path that only a layer can have.
        path: TreePath,
        /// What stands there.
        word: &'static str,
    },
    /// Pool and tree lie on different file systems.
    #[error("the pool and {} are on different file systems", .out.display())]
    NoLink {
        /// Where the tree was to be written.
        out: PathBuf,
    },
    /// A pool, the objects or the root of the tree could not be opened.
    #[error("cannot open {}", .path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An entry could not be made.
    #[error("cannot make {path} of the tree")]
    Make {
        /// The entry.
        path: TreePath,
        /// Why.
        source: io::Error,
    },
    /// What was written could not be synced.
    #[error("cannot sync the tree at {}", .out.display())]
    Sync {
        /// The tree.
        out: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What a written tree consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckoutStats {
    /// Directories, the root among them.
    pub directories: u64,
    /// Files with content that are links of something known: of a pool, or of an object.
    pub linked: u64,
    /// Files with content that were made.
    pub made: u64,
    /// Empty files, symlinks, and further names of hardlinked files.
    pub others: u64,
    /// Bytes of content that were written; reflinked ones count too.
    pub copied: u64,
}

/// How the files of a tree are made.
pub(crate) trait Files: Sync {
    /// The name in a pool of a file that shows this, after `earlier` files of the same tree that show the same;
    /// `None` if it does not come from a pool. The name without earlier ones tells what is the same.
    fn pool_name(&self, wanted: &Wanted<'_>, earlier: u32) -> Option<String>;

    /// Makes a file with content in `directory`, with all of its metadata.
    fn make(&self, wanted: &Wanted<'_>, directory: &OwnedFd, name: &[u8]) -> Result<Made, Errno>;

    /// Whose the entries are on disk.
    fn owners(&self) -> Owners;

    /// Called when everything is there, before the tree is used; `root` is its root.
    fn finish(&self, _root: &OwnedFd) -> Result<(), Errno> {
        Ok(())
    }
}

/// Where a file came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// It is a link of something known.
    Linked,
    /// It was made, with this many bytes written.
    New(u64),
}

/// Opens a directory that is there.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, CheckoutError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| CheckoutError::Open { path: path.to_owned(), source: error.into() })
}

/// Makes the directory of a pool if needed, and opens it.
pub(crate) fn open_pool(path: &Path) -> Result<Pool, CheckoutError> {
    fs::create_dir_all(path).map_err(|source| CheckoutError::Open { path: path.to_owned(), source })?;
    Ok(Pool::new(open_directory(path)?))
}

/// Writes `tree`, the result of a merge, to `out`, which must not exist.
///
/// What an error leaves at `out` is for the caller to remove.
pub(crate) fn write(tree: &Tree, files: &impl Files, out: &Path) -> Result<CheckoutStats, CheckoutError> {
    let plan = Plan::new(tree, files)?;
    fs::create_dir(out).map_err(|source| CheckoutError::Open { path: out.to_owned(), source })?;
    let root = open_directory(out)?;
    let failed = |entry: &Entry, error: Errno| match error {
        Errno::XDEV => CheckoutError::NoLink { out: out.to_owned() },
        error => CheckoutError::Make { path: entry.path.clone(), source: error.into() },
    };

    // Own directories stay open to us until their children are made, whatever their mode.
    rustix::fs::chmodat(&root, ".", Mode::RWXU, AtFlags::empty())
        .map_err(|error| failed(plan.directories[0].entry, error))?;
    for directory in &plan.directories[1..] {
        let path = directory.entry.path.as_path();
        rustix::fs::mkdirat(&root, path, Mode::RWXU).map_err(|error| failed(directory.entry, error))?;
    }
    let stats = plan.directories.par_iter().map(|directory| {
        let mut stats = CheckoutStats { directories: 1, ..CheckoutStats::default() };
        let opened = open_below(&root, directory.entry).map_err(|error| failed(directory.entry, error))?;
        for child in &directory.children {
            make(child, files, &opened, &mut stats).map_err(|error| failed(child.entry, error))?;
        }
        Ok(stats)
    });
    let mut stats = stats.try_reduce(CheckoutStats::default, |left, right| Ok(left + right))?;
    for (entry, first) in plan.hardlinks {
        stats.others += 1;
        let (first, path) = (first.as_path(), entry.path.as_path());
        rustix::fs::linkat(&root, first, &root, path, AtFlags::empty())
            .map_err(|error| failed(entry, error))?;
    }
    for directory in plan.directories.iter().rev() {
        finish_directory(&root, directory.entry, files.owners())
            .map_err(|error| failed(directory.entry, error))?;
    }
    files.finish(&root).map_err(|error| CheckoutError::Sync { out: out.to_owned(), source: error.into() })?;
    Ok(stats)
}

fn make(
    child: &plan::Child<'_>,
    files: &impl Files,
    directory: &OwnedFd,
    stats: &mut CheckoutStats,
) -> Result<(), Errno> {
    let name = child.entry.path.file_name();
    match (&child.entry.kind, &child.wanted) {
        (Kind::Symlink { metadata, target }, _) => {
            rustix::fs::symlinkat(&**target, directory, name)?;
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            if let Some((user, group)) = owner(files.owners(), metadata) {
                rustix::fs::chownat(directory, name, Some(user), Some(group), flags)?;
            }
            rustix::fs::utimensat(directory, name, &times(metadata.mtime), flags)?;
            stats.others += 1;
        }
        (_, Some(wanted)) => match files.make(wanted, directory, name)? {
            Made::Linked => stats.linked += 1,
            Made::New(copied) => {
                stats.made += 1;
                stats.copied += copied;
            }
        },
        (Kind::File { metadata, content: Content::Empty }, None) => {
            finish(&create(directory, name)?, metadata, files.owners())?;
            stats.others += 1;
        }
        _ => unreachable!("only files and symlinks are children"),
    }
    Ok(())
}

/// Makes an empty file that its owner alone may touch.
pub(crate) fn create(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}

/// Gives a file or directory its metadata.
pub(crate) fn finish(file: &OwnedFd, metadata: &Metadata, owners: Owners) -> Result<(), Errno> {
    for (name, value) in &metadata.xattrs {
        rustix::fs::fsetxattr(file, &**name, value, rustix::fs::XattrFlags::empty())?;
    }
    if let Some((user, group)) = owner(owners, metadata) {
        rustix::fs::fchown(file, Some(user), Some(group))?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(metadata.mode.into()))?;
    rustix::fs::futimens(file, &times(metadata.mtime))
}

/// Returns whose an entry is on disk; `None` if it belongs to whoever writes it.
pub(crate) fn owner(owners: Owners, metadata: &Metadata) -> Option<(Uid, Gid)> {
    let first = match owners {
        Owners::Root => return None,
        Owners::Keep => 0,
        Owners::Shifted(first) => first,
    };
    Some((Uid::from_raw(first + metadata.uid), Gid::from_raw(first + metadata.gid)))
}

fn open_below(root: &OwnedFd, entry: &Entry) -> Result<OwnedFd, Errno> {
    let path = if entry.path.is_root() { Path::new(".") } else { entry.path.as_path() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(root, path, flags, Mode::empty())
}

/// Gives a directory its metadata; deeper ones have theirs already, so it may lose its permissions.
fn finish_directory(root: &OwnedFd, entry: &Entry, owners: Owners) -> Result<(), Errno> {
    let metadata = entry.kind.metadata().expect("a directory of a merged tree is described");
    finish(&open_below(root, entry)?, metadata, owners)
}

/// A modification time; the time of the last access stays.
pub(crate) fn times(mtime: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime, tv_nsec: 0 },
    }
}

impl std::ops::Add for CheckoutStats {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            directories: self.directories + other.directories,
            linked: self.linked + other.linked,
            made: self.made + other.made,
            others: self.others + other.others,
            copied: self.copied + other.copied,
        }
    }
}
