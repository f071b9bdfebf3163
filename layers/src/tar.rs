//! Tar archives as trees, applied strictly: what is not plainly harmless is refused, never skipped.
//!
//! Nothing is unpacked. Entries become a [`Tree`](crate::Tree) in memory, in which nothing can lie outside the
//! root or below a symlink, and their bytes become objects. Headers are taken apart here, block by block, with
//! the field decoders of the crate `tar`: its iterator resolves extensions in its own order and skips what it
//! cannot use, and two readers that disagree on where a file ends disagree on what a layer holds
//! (CVE-2025-62518, CVE-2026-33055).

mod bounded;
mod header;
mod layer;
mod pax;
mod reader;
mod source;

use std::io;

use infradev_store::PutError;

pub use bounded::Decompressed;
pub use layer::{LayerArchive, LayerTarOptions, Note, SpecialFiles, layer_tar_tree};
pub use source::{SourceTarOptions, source_tar_tree};

use crate::path::PathError;
use crate::tree::TreeError;

/// How much one archive may hold. What is over a limit is refused before it is allocated or written.
#[derive(Debug, Clone, Copy)]
pub struct TarLimits {
    /// Entries, directories included.
    pub entries: usize,
    /// Bytes of content together.
    pub bytes: u64,
    /// Bytes of one extension header: a long name, or the extended attributes of one entry.
    pub extension: u64,
}

impl Default for TarLimits {
    fn default() -> Self {
        Self { entries: 1_000_000, bytes: 256 << 30, extension: 1 << 20 }
    }
}

/// An archive that cannot become a layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// The archive cannot be read.
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    /// The archive as a whole is not in order.
    #[error("the archive {0}")]
    Archive(String),
    /// An entry is of a kind or form that is not accepted.
    #[error("entry `{path}` {problem}")]
    Entry {
        /// The entry's path.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A path is not allowed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Two entries do not fit together.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
}

impl TarError {
    fn entry(path: &[u8], problem: impl Into<String>) -> Self {
        TarError::Entry { path: String::from_utf8_lossy(path).into_owned(), problem: problem.into() }
    }
}

impl From<PutError> for TarError {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Read(source) => TarError::Read(source),
            PutError::Store(error) => error.into(),
        }
    }
}
