//! Sharing: what is pushed comes back as it was, and only what is missing moves; images as bases, and environments
//! for other tools.

mod authorities;
mod bases;
mod ci;
mod client;
mod export;
mod grading;
mod layout;
mod lies;
mod materialize;
mod real;
mod round;
mod unconfined;
