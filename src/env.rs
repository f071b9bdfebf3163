//! Environments: a merged stack, mounted with a writable upper, and commands run in it.

pub mod image;
pub mod launch;
pub mod mount;
mod namespace;
mod network;
pub mod plan;
pub mod stage;
pub mod state;
