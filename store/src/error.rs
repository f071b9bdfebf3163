//! What can go wrong with a store.

use std::io;
use std::path::{Path, PathBuf};

use crate::references::ReferenceError;
use crate::{LayerId, ObjectId, PackId};

/// A failed operation on a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The file system that holds the store is full, in bytes or in inodes.
    #[error("no space left on the file system of {}", .path.display())]
    NoSpace {
        /// What was being written.
        path: PathBuf,
    },
    /// The store was made by a newer program.
    #[error("the store {} has format {found}; this program knows format {known}", .path.display())]
    NewerFormat {
        /// The store.
        path: PathBuf,
        /// Its format.
        found: String,
        /// The newest format known here.
        known: u32,
    },
    /// The store may only be read.
    #[error("the store {} is read-only", .path.display())]
    ReadOnly {
        /// The store.
        path: PathBuf,
    },
    /// There is no store, and it may not be made.
    #[error("there is no store at {}", .path.display())]
    Absent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The directory holds something that is no store.
    #[error("{} is not empty and not a store", .path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// The file system cannot hold a writable store.
    #[error("{} is on {kind}, which cannot hold a writable store", .path.display())]
    FileSystem {
        /// The store.
        path: PathBuf,
        /// The kind of file system.
        kind: &'static str,
    },
    /// A layer is not in the store.
    #[error("layer {0} is not in the store")]
    NoLayer(LayerId),
    /// A layer's encoding is damaged.
    #[error("layer {layer} is damaged: {detail}")]
    DamagedLayer {
        /// The layer.
        layer: LayerId,
        /// How.
        detail: String,
    },
    /// A pack, or an object in it, is not what was written.
    #[error("pack {pack} is damaged: {detail}")]
    DamagedPack {
        /// The pack.
        pack: PackId,
        /// How.
        detail: String,
    },
    /// An object that a new layer refers to is neither new nor in the store.
    #[error("object {0} is missing from the store")]
    NoObject(ObjectId),
    /// An encoding handed in for a new layer is no layer encoding.
    #[error(transparent)]
    Encoding(#[from] ReferenceError),
    /// A file that says what must stay cannot be read, so nothing may be removed.
    #[error("root {} cannot be read: {detail}", .path.display())]
    UnreadableRoot {
        /// The file.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// Nothing says that anything must stay, so everything would go.
    #[error("the store {} has no roots: collecting would remove everything", .path.display())]
    NoRoots {
        /// The store.
        path: PathBuf,
    },
    /// Another process holds a lock for longer than its work takes: it is stopped, or the machine is.
    #[error("another command holds {} and does not let go", .path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
    /// The index failed.
    #[error("the index {} failed", .path.display())]
    Index {
        /// The database file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

/// The result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes the error of a failed system call; a full disk becomes [`Error::NoSpace`].
    pub fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        let (source, path) = (source.into(), path.to_owned());
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace { path },
            io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly { path },
            _ => Error::Io { action, path, source },
        }
    }

    /// Returns what the system said, for those who use this crate's locks and removals outside of a store.
    pub fn into_io(self) -> io::Error {
        match self {
            Error::Io { source, .. } => source,
            Error::NoSpace { .. } => io::ErrorKind::StorageFull.into(),
            Error::ReadOnly { .. } => io::ErrorKind::ReadOnlyFilesystem.into(),
            other => io::Error::other(other),
        }
    }
}

/// Adds the verb and the path to a failed system call.
pub(crate) trait Context<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::io(action, path, source))
    }
}
