//! The shell around the libraries: terminal, network, kernel.

pub mod env;
