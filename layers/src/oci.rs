//! Layers as blobs of container images, and back without unpacking what is here already.
//!
//! A blob is an ordinary compressed tar archive, one for one layer or a group of small ones, which every engine
//! reads. It is compressed piece by piece, so that each file's bytes can be fetched and decompressed alone, and ends
//! with a *table of contents* that engines skip: the encodings of its layers, and where the bytes of each object are.
//!
//! ```text
//! tar headers │ bytes of a file │ headers │ bytes of a file │ … │ end of the archive │ table of contents
//!    frame          frame          frame         frame               frame             skippable frame
//! ```
//!
//! For zstd, pieces are frames (RFC 8878, section 3.1) and the table is a skippable one. For gzip, pieces are members
//! (RFC 1952, section 2.2) and the table is spread over the extra fields of empty members.

mod archive;
mod blob;
mod plain;
mod toc;

#[cfg(test)]
mod tests;

use std::io;

use infradev_store::ObjectId;

pub use blob::{BlobDone, BlobSource, Compression, MAX_PART, TocPlace, split, union, write_blob};
pub use plain::{ArchiveDone, plain_archive_size, write_plain_archive};
pub use toc::{Frame, Toc, TocError};

use crate::path::TreePath;

/// A layer that cannot become a blob.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// Image layers give the name another meaning.
    #[error("{path} cannot be in a container image: names that begin with .wh. mark what is removed")]
    Reserved {
        /// The path.
        path: TreePath,
    },
    /// An object cannot be read.
    #[error("object {object} cannot be read")]
    Object {
        /// The object.
        object: ObjectId,
        /// Why.
        source: io::Error,
    },
    /// An object is not what its name says.
    #[error("object {object} is damaged: {detail}")]
    Damaged {
        /// The object.
        object: ObjectId,
        /// How.
        detail: String,
    },
    /// The blob cannot be written.
    #[error("the blob cannot be written")]
    Write(#[source] io::Error),
}
