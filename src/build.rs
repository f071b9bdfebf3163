//! Building: plans become layers, each step once.

pub mod base;
mod error;

pub use error::BuildError;
