//! `[tests]` of a task, `probe.toml` and mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Document, Fields, Item};
use crate::error::RecipeErrors;
use crate::grading::{Edit, Expectation, Limits, Mutant, Probe, ProbeKind, Tests};

/// How long official tests may take unless they say otherwise.
const TESTS_TIMEOUT: Duration = Duration::from_secs(1800);
/// How long a probe may take unless it says otherwise.
const PROBE_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) fn read_tests(fields: &mut Fields<'_>, workspace: &str, from_commit: bool) -> Option<Tests> {
    let merge = if from_commit {
        fields.required("merge", Item::commit).map(Some)
    } else {
        fields.optional("merge", Item::commit)
    };
    let command = fields.required("command", Item::command);
    let workdir = fields.optional("workdir", |item| {
        let text = item.string()?;
        if text == workspace { Some(text) } else { item.environment_path(workspace) }
    });
    let timeout = fields.optional("timeout-s", Item::seconds);
    let env = fields.defaulted("env", Item::environment);
    let files = fields.required("files", |item| item.distinct(Item::relative_path));
    let listed: BTreeSet<String> = files.iter().flatten().cloned().collect();
    let node = |item: &Item<'_>| read_node(item, &listed);
    let fail_to_pass = fields.required("fail-to-pass", |item| {
        let nodes = item.distinct(node)?;
        if nodes.is_empty() { item.fail("at least one test", "none") } else { Some(nodes) }
    });
    let failing: BTreeSet<&String> = fail_to_pass.iter().flatten().collect();
    let pass_to_pass = fields.defaulted("pass-to-pass", |item| {
        item.distinct(|item| {
            let node = read_node(item, &listed)?;
            if failing.contains(&node) {
                return item.fail("a test that is not in `fail-to-pass`", format!("`{node}`"));
            }
            Some(node)
        })
    });
    fields.close();
    Some(Tests {
        merge: merge?,
        command: command?,
        workdir: workdir?.unwrap_or_else(|| workspace.to_owned()),
        timeout: timeout?.unwrap_or(TESTS_TIMEOUT),
        env: env?,
        files: files?,
        pass_to_pass: pass_to_pass?,
        fail_to_pass: fail_to_pass?,
    })
}

/// Reads a node id such as `tests/test_a.py::test_b[c]`: its file must be one of `files`, or it could
/// be the submission's own.
fn read_node(item: &Item<'_>, files: &BTreeSet<String>) -> Option<String> {
    let node = item.line()?;
    let file = node.split("::").next().unwrap_or(&node);
    // With a fault in `files` itself there is nothing to compare with.
    if files.is_empty() || files.contains(file) {
        return Some(node);
    }
    let hint = "list the file, so that it is restored from the merge commit before the tests run";
    item.fail_with_hint("a test in one of `files`", format!("`{node}`"), hint)
}

/// Parses `text`, the document `file` of the probe `name`; the caller adds the files beside it.
pub fn parse_probe(file: &str, name: &str, text: &str) -> Result<Probe, RecipeErrors> {
    Document::read(file, text, |fields| read_probe(fields, name))
}

fn read_probe(fields: &mut Fields<'_>, name: &str) -> Option<Probe> {
    let schema = fields.schema();
    let kind = fields.required("kind", |item| {
        Some(match item.string()?.as_str() {
            "structure" => ProbeKind::Structure,
            "state" => ProbeKind::State,
            "memory" => ProbeKind::Memory,
            "time" => ProbeKind::Time,
            "traffic" => ProbeKind::Traffic,
            other => return item.fail("structure, state, memory, time or traffic", format!("`{other}`")),
        })
    });
    let title = fields.required("title", Item::line);
    let command = fields.required("command", Item::command);
    let timeout = fields.optional("timeout-s", Item::seconds);
    let env = fields.defaulted("env", Item::environment);
    let limits = fields.defaulted("limits", |item| item.table(read_limits));
    fields.close();
    schema?;
    Some(Probe {
        name: name.to_owned(),
        kind: kind?,
        title: title?,
        command: command?,
        timeout: timeout?.unwrap_or(PROBE_TIMEOUT),
        env: env?,
        limits: limits?,
        files: BTreeMap::new(),
    })
}

fn read_limits(fields: &mut Fields<'_>) -> Option<Limits> {
    let peak_memory_bytes = fields.optional("peak-memory-bytes", Item::natural);
    let loopback_bytes = fields.optional("loopback-bytes", Item::natural);
    let wall = fields.optional("wall-s", |item| {
        let seconds = item.number()?;
        Duration::try_from_secs_f64(seconds).ok().or_else(|| item.fail("fewer seconds", format!("{seconds}")))
    });
    fields.close();
    Some(Limits { peak_memory_bytes: peak_memory_bytes?, loopback_bytes: loopback_bytes?, wall: wall? })
}

/// Parses `text`, the document `file` of the mutant `name`.
pub fn parse_mutant(file: &str, name: &str, text: &str) -> Result<Mutant, RecipeErrors> {
    Document::read(file, text, |fields| {
        let schema = fields.schema();
        let title = fields.required("title", Item::line);
        let expect = fields.required("expect", read_expectation);
        let edits = fields.required("edit", |item| {
            let edits = item.list(|item| item.table(read_edit))?;
            if edits.is_empty() { item.fail("at least one edit", "none") } else { Some(edits) }
        });
        fields.close();
        schema?;
        Some(Mutant { name: name.to_owned(), title: title?, expect: expect?, edits: edits? })
    })
}

fn read_expectation(item: &Item<'_>) -> Option<Expectation> {
    let word = item.string()?;
    let known = Expectation::ALL.into_iter().find(|known| known.word() == word);
    known.or_else(|| {
        let words = Expectation::ALL.map(Expectation::word).join(", ");
        item.fail(&format!("one of {words}"), format!("`{word}`"))
    })
}

fn read_edit(fields: &mut Fields<'_>) -> Option<Edit> {
    let file = fields.required("file", Item::relative_path);
    let find = fields.required("find", |item| {
        let text = item.string()?;
        if text.is_empty() { item.fail("text to find", "an empty string") } else { Some(text) }
    });
    let replace = fields.required("replace", Item::string);
    fields.close();
    Some(Edit { file: file?, find: find?, replace: replace? })
}
