//! File trees as canonical bytes and back.
//!
//! A [`Tree`] is what a layer says about the paths below it; [`Tree::encode`] gives the bytes that are its
//! identity. Trees come from directories and uppers ([`scan`]), wheels, git commits and tar archives; [`merge`]
//! puts a stack of them together; [`write_image`], [`write_stubs`] and [`write_farm`] make the result mountable,
//! and [`write_copy`] makes it plain files.
#![forbid(unsafe_code)]

mod checkout;
mod copy;
mod delta;
mod diff;
mod encoding;
mod entry;
mod erofs;
mod farm;
mod git;
mod materialize;
mod merge;
mod oci;
mod path;
mod scan;
mod stub;
mod tar;
#[cfg(test)]
mod testing;
mod tree;
mod wheel;

pub use checkout::{CheckoutError, CheckoutStats};
pub use copy::write_copy;
pub use delta::delta;
pub use diff::{Change, Difference, diff};
pub use encoding::DecodeError;
pub use entry::{Content, Entry, Kind, Metadata, Xattr, clean_mode, xattr_allowed};
pub use erofs::{ImageError, ImageStats, ReadError, read_image, write_image};
pub use farm::{FarmFinding, check_farm_pool, farm_owners, write_farm};
pub use git::{
    CommitTree, GIT_LAYER_VERSION, GitError, GitObject, GitObjectKind, GitSource, Oid, commit_tree,
};
pub use materialize::{Supply, write_files};
pub use merge::merge;
pub use oci::{
    ArchiveDone, BlobDone, BlobError, BlobSource, Compression, Frame, MAX_PART, Toc, TocError, TocPlace,
    plain_archive_size, split, union, write_blob, write_plain_archive,
};
pub use path::{MAX_COMPONENT, MAX_PATH, PathError, PathProblem, TreePath};
pub use scan::{Owners, ScanError, ScanOptions, Scanned, Seen, scan};
pub use stub::{differing_stub, write_stubs};
pub use tar::{
    Decompressed, LayerArchive, LayerTarOptions, Note, SourceTarOptions, SpecialFiles, TarError, TarLimits,
    layer_tar_tree, source_tar_tree,
};
pub use tree::{Tree, TreeBuilder, TreeError};
pub use wheel::{WHEEL_LAYER_VERSION, WHEEL_MTIME, WheelError, WheelTarget, wheel_tree};
