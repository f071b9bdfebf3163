//! A content-addressed store: bytes under a digest, and which bytes must stay.
#![forbid(unsafe_code)]

mod digest;
pub mod references;

pub use digest::{LayerId, ObjectId, ParseIdError, StackId, StepKey};
