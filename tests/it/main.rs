//! The integration tests, in one binary: the program as users run it, and the libraries on real file systems.
//!
//! Modules mirror the crates. Tests named `privileged_*` need root or real mounts, and say why when they are
//! skipped. Everything runs below `$INFRADEV_TEST_DIR`, or /var/tmp: a real disk, since tmpfs hides bugs.
//! `INFRADEV_TEST_LONG=1` runs the loops at full length (`tests/long.sh`).

mod cli;
mod env;
mod layers;
mod recipes;
mod share;
mod store;
mod support;
mod tidy;
