//! What became of a submission.

use std::collections::BTreeMap;
use std::fmt;

use infradev_store::LayerId;
use serde::Serialize;

use super::measure::Measured;

/// The verdicts (DESIGN, Terms).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// Everything passed.
    Resolved,
    /// An official test did not pass.
    OfficialFailed,
    /// A probe found what the official tests leave unchecked.
    ProbeRejected,
    /// The patch does not apply.
    PatchFailed,
    /// The patch changes nothing.
    EmptyPatch,
    /// The official tests did not end in time.
    Timeout,
    /// The evaluation itself failed; never the submission's fault.
    InfraError,
}

impl fmt::Display for VerdictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerdictKind::Resolved => "resolved",
            VerdictKind::OfficialFailed => "official_failed",
            VerdictKind::ProbeRejected => "probe_rejected",
            VerdictKind::PatchFailed => "patch_failed",
            VerdictKind::EmptyPatch => "empty_patch",
            VerdictKind::Timeout => "timeout",
            VerdictKind::InfraError => "infra_error",
        })
    }
}

/// The verdict on one patch.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// The task variant.
    pub task: String,
    /// The patch, as it was asked for.
    pub patch: String,
    /// The verdict.
    #[serde(rename = "verdict")]
    pub kind: VerdictKind,
    /// Why, in a sentence.
    pub reason: String,
    /// The seed that probes drew from.
    pub seed: u64,
    /// The captured submission.
    pub submission: Option<LayerId>,
    /// The official tests, if they ran.
    pub official: Option<TestResult>,
    /// The probes that ran.
    pub probes: Vec<ProbeResult>,
}

impl Verdict {
    pub(super) fn new(task: String, patch: String, seed: u64) -> Self {
        let (kind, reason) = (VerdictKind::InfraError, String::new());
        Self { task, patch, kind, reason, seed, submission: None, official: None, probes: vec![] }
    }
}

/// The official tests' result.
#[derive(Debug, Serialize)]
pub struct TestResult {
    /// The exit status of the command; `None` if it was ended for taking too long.
    pub status: Option<i32>,
    /// Every expected test by node id, and its outcome: `passed`, `failed`, `error`, `skipped` or `missing`.
    pub tests: BTreeMap<String, String>,
    /// What was measured from outside.
    pub measured: Measured,
    /// Where the output is kept.
    pub log: String,
    /// The limit in seconds.
    pub limit: f64,
}

impl TestResult {
    /// Whether every expected test passed, and the command agrees.
    pub fn passed(&self) -> bool {
        self.status == Some(0) && self.tests.values().all(|outcome| outcome == "passed")
    }

    pub(super) fn verdict(&self) -> VerdictKind {
        match self.status {
            None => VerdictKind::Timeout,
            Some(_) if self.passed() => VerdictKind::Resolved,
            Some(_) => VerdictKind::OfficialFailed,
        }
    }

    pub(super) fn summary(&self) -> String {
        let passed = self.tests.values().filter(|outcome| *outcome == "passed").count();
        format!("{passed} of {} passed", self.tests.len())
    }

    pub(super) fn reason(&self) -> String {
        let Some(status) = self.status else {
            return format!("the official tests did not end within {:.0} s", self.limit);
        };
        let mut others = self.tests.iter().filter(|(_, outcome)| *outcome != "passed");
        match others.next() {
            Some((test, outcome)) => {
                let more = others.count();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("{}: {test} {outcome}{more}", self.summary())
            }
            None if status == 0 => format!("{}, all probes pass", self.summary()),
            None => format!("{}, but the command ended with status {status}", self.summary()),
        }
    }
}

/// A probe's result.
#[derive(Debug, Serialize)]
pub struct ProbeResult {
    /// The probe.
    pub probe: String,
    /// What it checks: structure, state, memory, time or traffic.
    pub what: String,
    /// The verdict that follows from it.
    #[serde(rename = "verdict")]
    pub kind: VerdictKind,
    /// Why, in a sentence of the probe.
    pub reason: String,
    /// What the probe measured itself.
    pub reported: serde_json::Value,
    /// What was measured from outside.
    pub measured: Measured,
    /// Where its output is kept.
    pub log: String,
}

impl ProbeResult {
    pub(super) fn word(&self) -> &'static str {
        match self.kind {
            VerdictKind::Resolved => "passed",
            VerdictKind::ProbeRejected => "rejected",
            _ => "failed",
        }
    }
}
