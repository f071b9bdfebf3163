//! The shell around the libraries: terminal, network, kernel.
//!
//! `main` hands the command line to [`cli::run`]; each command is a file of `commands`, and works with a
//! [`session::Session`].

pub mod build;
pub mod cli;
mod commands;
pub(crate) use commands::env as commands_env;
pub mod config;
pub mod env;
pub mod error;
pub mod eval;
pub(crate) mod export;
mod hex;
pub mod lock;
pub(crate) mod materialize;
pub mod net;
pub mod repair;
pub mod session;
pub mod share;
pub mod ui;
