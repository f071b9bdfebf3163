//! The network: package indexes, and nothing else yet.

mod client;
mod index;

pub use client::{Client, NetError};
pub use index::{IndexFile, PackageIndex};
