//! Text to values, or to every fault of the text with its place.

mod build;
mod grading;
mod project;
mod reader;
mod task;
mod value;

pub use grading::{parse_mutant, parse_probe};
pub use project::parse_project;
pub(crate) use reader::{Document, Fields, Item};
pub use task::parse_task;
pub(crate) use value::{is_digest, is_plain_name, read_architecture};

/// The version of the grammar that this crate reads: `schema = 1`.
pub const SCHEMA: i64 = 1;

/// Returns the bytes of a file named by a `source` key, relative to its document; nothing when absent.
pub type ReadSource<'a> = &'a dyn Fn(&str) -> Option<Vec<u8>>;
