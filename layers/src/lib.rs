//! File trees as canonical bytes and back.
#![forbid(unsafe_code)]

mod encoding;
mod entry;
mod git;
mod merge;
mod path;
mod scan;
mod tar;
#[cfg(test)]
mod testing;
mod tree;
mod wheel;

pub use encoding::DecodeError;
pub use entry::{Content, Entry, Kind, Metadata, Xattr, clean_mode, xattr_allowed};
pub use git::{
    CommitTree, GIT_LAYER_VERSION, GitError, GitObject, GitObjectKind, GitSource, Oid, commit_tree,
};
pub use merge::merge;
pub use path::{MAX_COMPONENT, MAX_PATH, PathError, PathProblem, TreePath};
pub use scan::{Owners, ScanError, ScanOptions, Scanned, scan};
pub use tar::{TarError, TarOptions, tar_tree};
pub use tree::{Tree, TreeBuilder, TreeError};
pub use wheel::{WHEEL_LAYER_VERSION, WHEEL_MTIME, WheelError, WheelTarget, wheel_tree};
