//! The ways to put an environment together, best first; which of them work here is found out by `trial.rs`.

use serde::{Deserialize, Serialize};

/// How the merged metadata of a stack becomes a file tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackEnd {
    /// An EROFS image over the objects; root, Linux 6.5
    Erofs,
    /// A tree of stubs over the objects; everybody, Linux 6.16
    Stub,
    /// A tree of hardlinks below an overlay; everybody, Linux 5.12
    Farm,
    /// A full copy for each environment, without an overlay
    Copy,
}

/// Where an environment keeps what is written in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Uppers {
    /// Beside its state, on the store's file system.
    #[default]
    Disk,
    /// In memory, until the command ends: for what is discarded, over a store whose file system can hold no upper.
    Memory,
}

impl BackEnd {
    /// Every back end, the cheapest first.
    pub const ALL: [BackEnd; 4] = [BackEnd::Erofs, BackEnd::Stub, BackEnd::Farm, BackEnd::Copy];

    /// Returns the word for tables.
    pub fn word(self) -> &'static str {
        match self {
            BackEnd::Erofs => "erofs",
            BackEnd::Stub => "stub",
            BackEnd::Farm => "farm",
            BackEnd::Copy => "copy",
        }
    }

    /// What people should know before they rely on it; `None` if there is nothing.
    pub fn degraded(self) -> Option<&'static str> {
        match self {
            BackEnd::Erofs | BackEnd::Stub => None,
            BackEnd::Farm => {
                Some("the first environment of a stack takes seconds, and files of a second mode disk")
            }
            BackEnd::Copy => Some("every environment takes the time and the disk of a full copy"),
        }
    }
}
