//! Sharing: what is pushed comes back as it was, and only what is missing moves.

mod ci;
mod client;
mod grading;
mod layout;
mod lies;
mod real;
mod round;
