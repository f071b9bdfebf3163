//! File trees as canonical bytes and back.
#![forbid(unsafe_code)]

mod encoding;
mod entry;
mod erofs;
mod merge;
mod path;
mod stub;
#[cfg(test)]
mod testing;
mod tree;

pub use encoding::DecodeError;
pub use entry::{Content, Entry, Kind, Metadata, clean_mode, xattr_allowed};
pub use erofs::{ImageError, ImageStats, ReadError, read_image, write_image};
pub use merge::merge;
pub use path::{MAX_COMPONENT, MAX_PATH, PathError, PathProblem, TreePath};
pub use stub::{StubError, StubStats, write_stubs};
pub use tree::{Tree, TreeBuilder, TreeError};
