//! What the fault benches did, for the committed report: one line a kind, when the loops run at full length.

use std::io::Write;
use std::time::Instant;

use crate::support::long;

/// Counts the cases of one kind.
#[derive(Debug)]
pub(super) struct Tally {
    what: String,
    cases: usize,
    began: Instant,
}

impl Tally {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), cases: 0, began: Instant::now() }
    }

    pub(super) fn add(&mut self) {
        self.cases += 1;
    }

    pub(super) fn cases(&self) -> usize {
        self.cases
    }
}

/// Adds a line to the file that `tests/long.sh` makes the report of.
pub(super) fn note(tally: Tally) {
    let Tally { what, cases, began } = tally;
    let seconds = began.elapsed().as_secs_f64();
    let line = format!("| {what} | {cases} | {seconds:.1} |\n");
    if let Some(path) = std::env::var_os("INFRADEV_TEST_REPORT").filter(|_| long()) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("a report");
        file.write_all(line.as_bytes()).expect("a report");
    }
}
