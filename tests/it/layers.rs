//! Layers against what they must equal: kernel overlayfs, pip, git, and each other.

mod git;
mod ground;
mod images;
mod merge;
mod tars;
mod upper;
mod wheels;
