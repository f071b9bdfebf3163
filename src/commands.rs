//! The commands, a file for each.

pub(crate) mod env;
pub(crate) mod lock;
