//! The official tests: exact node ids, from the real change's files, in a fresh environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use infradev_layers::Tree;
use serde::Deserialize;

use super::Evaluation;
use super::run::Request;
use super::verdict::TestResult;
use crate::build::scratch::make_reachable;
use crate::build::{BuildError, io};
use crate::env::default_mapping;
use crate::env::plan::Bind;

/// Where the run sees the reporter, and where it writes.
const REPORTER_DIRECTORY: &str = "/grading";
const RESULTS: &str = "/tmp/results";

/// A pytest plugin that writes the outcome of every phase of every test.
const REPORTER: &str = r#"
import json, os
_file = open(os.path.join("/tmp/results", "tests.jsonl"), "a", buffering=1)
def pytest_runtest_logreport(report):
    _file.write(json.dumps({"test": report.nodeid, "phase": report.when, "outcome": report.outcome}) + "\n")
"#;

#[derive(Deserialize)]
struct Phase {
    test: String,
    phase: String,
    outcome: String,
}

impl Evaluation<'_> {
    pub(super) fn run_official(&self, submission: &Tree) -> Result<TestResult, BuildError> {
        let tests = self.tests()?;
        let official = self.official_tree()?;
        let directory = self.workshop.lease.new_directory("official")?;
        let (reporter, results) = (directory.join("reporter"), directory.join("results"));
        for path in [&reporter, &results] {
            fs::create_dir(path).map_err(io("create", path))?;
        }
        make_reachable(&results, default_mapping())?;
        let plugin = reporter.join("infradev_reporter.py");
        fs::write(&plugin, REPORTER).map_err(io("write", &plugin))?;
        let expected: Vec<&String> = tests.fail_to_pass.iter().chain(&tests.pass_to_pass).collect();
        let mut command = tests.command.clone();
        command.extend(["-p", "infradev_reporter"].map(str::to_owned));
        command.extend(expected.iter().map(|test| (*test).clone()));
        let mut variables = tests.env.clone();
        let own = variables.get("PYTHONPATH").map(|path| format!(":{path}")).unwrap_or_default();
        variables.insert("PYTHONPATH".to_owned(), format!("{REPORTER_DIRECTORY}{own}"));
        let log = self.log("official")?;
        let outcome = self.run(Request {
            over: &[submission, &official],
            command,
            directory: PathBuf::from(&tests.workdir),
            variables,
            binds: vec![
                Bind::read_only(&reporter, REPORTER_DIRECTORY),
                Bind { source: results.clone(), destination: RESULTS.into(), writable: true },
            ],
            input: None,
            limit: tests.timeout,
            output: &log,
            errors: None,
        })?;
        let text = fs::read_to_string(results.join("tests.jsonl")).unwrap_or_default();
        let phases: Vec<Phase> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let outcomes = expected.into_iter().map(|test| (test.clone(), outcome_of(test, &phases))).collect();
        Ok(TestResult {
            status: outcome.status,
            tests: outcomes,
            measured: outcome.measured,
            log: log.display().to_string(),
            limit: tests.timeout.as_secs_f64(),
        })
    }
}

/// A test passed if its call did, once, and no other phase of it failed.
fn outcome_of(test: &str, phases: &[Phase]) -> String {
    let own: Vec<&Phase> = phases.iter().filter(|phase| phase.test == test).collect();
    let calls: BTreeMap<&str, usize> =
        own.iter().filter(|phase| phase.phase == "call").fold(BTreeMap::new(), |mut counts, phase| {
            *counts.entry(phase.outcome.as_str()).or_insert(0) += 1;
            counts
        });
    let elsewhere = |outcome: &str| own.iter().any(|phase| phase.phase != "call" && phase.outcome == outcome);
    let word = if elsewhere("failed") {
        "error"
    } else if calls.contains_key("failed") {
        "failed"
    } else if elsewhere("skipped") || calls.contains_key("skipped") {
        "skipped"
    } else if calls.get("passed") == Some(&1) {
        "passed"
    } else {
        "missing"
    };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(phases: &[(&str, &str)], expected: &str) {
        let phases: Vec<Phase> = phases
            .iter()
            .map(|(phase, outcome)| Phase {
                test: "t".into(),
                phase: (*phase).into(),
                outcome: (*outcome).into(),
            })
            .collect();
        assert_eq!(outcome_of("t", &phases), expected);
    }

    #[test]
    fn only_a_clean_pass_counts() {
        check(&[("setup", "passed"), ("call", "passed"), ("teardown", "passed")], "passed");
        check(&[("setup", "passed"), ("call", "failed"), ("teardown", "passed")], "failed");
        check(&[("setup", "failed")], "error");
        check(&[("setup", "passed"), ("call", "passed"), ("teardown", "failed")], "error");
        check(&[("setup", "skipped")], "skipped");
        check(&[], "missing");
        check(&[("call", "passed"), ("call", "passed")], "missing");
    }
}
