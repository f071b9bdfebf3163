//! The Debian base.
