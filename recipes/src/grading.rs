//! What decides about a submission: official tests, probes and the mutants that prove them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

/// The tests of the pull request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tests {
    /// The commit that test files are restored from; none for a source distribution.
    pub merge: Option<String>,
    /// The program and its arguments; node ids follow.
    pub command: Vec<String>,
    /// Where it runs.
    pub workdir: String,
    /// When it is ended.
    pub timeout: Duration,
    /// Environment on top of the task's.
    pub env: BTreeMap<String, String>,
    /// What is restored from the merge commit, relative to the source tree.
    pub files: Vec<String>,
    /// Tests that the change makes pass.
    pub fail_to_pass: Vec<String>,
    /// Tests that must keep passing.
    pub pass_to_pass: Vec<String>,
}

/// A hidden check: `grading/probes/<name>/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// The folder.
    pub name: String,
    /// What it watches.
    pub kind: ProbeKind,
    /// One line for people.
    pub title: String,
    /// The program and its arguments, run beside the probe's files.
    pub command: Vec<String>,
    /// When it is ended.
    pub timeout: Duration,
    /// Environment on top of the task's.
    pub env: BTreeMap<String, String>,
    /// What the run may use, measured from outside.
    pub limits: Limits,
    /// The files beside `probe.toml`, by relative path, and where they are on disk.
    pub files: BTreeMap<String, PathBuf>,
}

/// What a probe watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// Interfaces and how the code is cut.
    Structure,
    /// Values that must be kept or restored.
    State,
    /// Peak memory.
    Memory,
    /// Wall time.
    Time,
    /// Bytes between processes.
    Traffic,
}

/// What a probe's run may use; absent means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// The peak of anonymous and shared memory.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes over the loopback device of the run's own network namespace.
    pub loopback_bytes: Option<u64>,
    /// Elapsed time.
    pub wall: Option<Duration>,
}

/// A wrong change that grading must catch: `grading/mutants/<name>.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mutant {
    /// The file name without its extension.
    pub name: String,
    /// What is wrong with it.
    pub title: String,
    /// The verdict it must get.
    pub expect: Expectation,
    /// The edits of the gold tree that make it, in order.
    pub edits: Vec<Edit>,
}

/// The verdict a mutant must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expectation {
    /// A probe must see it.
    ProbeRejected,
    /// The official tests must see it.
    OfficialFailed,
    /// It never ends.
    Timeout,
    /// It meddles with the grading.
    Tampered,
    /// It is right in another way, and grading must accept it.
    Resolved,
}

impl Expectation {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::ProbeRejected, Self::OfficialFailed, Self::Timeout, Self::Tampered, Self::Resolved];

    /// The word for it, which is that of the verdict.
    pub fn word(self) -> &'static str {
        match self {
            Self::ProbeRejected => "probe_rejected",
            Self::OfficialFailed => "official_failed",
            Self::Timeout => "timeout",
            Self::Tampered => "tampered",
            Self::Resolved => "resolved",
        }
    }
}

/// A replacement of text that occurs exactly once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edit {
    /// The file, relative to the source tree.
    pub file: String,
    /// The text to find.
    pub find: String,
    /// What takes its place.
    pub replace: String,
}
