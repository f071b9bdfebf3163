//! The commands, a file for each.

pub(crate) mod build;
pub(crate) mod ci;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod du;
pub(crate) mod env;
pub(crate) mod gc;
pub(crate) mod layer;
pub(crate) mod lock;
pub(crate) mod ls;
pub(crate) mod pin;
pub(crate) mod plan;
pub(crate) mod prune;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod quickstart;
mod reading;
pub(crate) mod rm;
pub(crate) mod show;
pub(crate) mod test;
pub(crate) mod verify;
pub(crate) mod why;
