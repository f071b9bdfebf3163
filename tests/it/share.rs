//! Sharing: what is pushed comes back as it was, and only what is missing moves; images as bases, and environments
//! for other tools.

mod bases;
mod export;
mod layout;
mod materialize;
