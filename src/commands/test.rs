//! `infradev test`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::env::{Which, find_built};
use crate::error::{CommandError, CommandResult, Kind};
use crate::eval::{PatchChoice, Verdict, VerdictKind, judge};
use crate::session::Session;
use crate::ui::{bytes, table};

/// Arguments of `test`.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// The task
    task: String,
    /// What to judge: `gold` (the real change), `base` (no change), the name of a mutant, or a patch file
    #[arg(long, default_value = "gold")]
    patch: String,
    /// How often
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// The seed of the first run; each further one adds 1 [default: drawn anew]
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    which: Which,
}

#[derive(Serialize)]
struct Verdicts {
    verdicts: Vec<Verdict>,
}

pub(crate) fn run(session: &Session, arguments: &TestArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let built = find_built(session, store, &arguments.task, &arguments.which)?;
    let tasks = session.tasks(std::slice::from_ref(&built.task))?;
    let recipe = session.recipes(&tasks, Some(&built.variant))?.remove(0);
    if recipe.tests.is_none() {
        let text = format!("{} has no official tests, so there is no verdict", built.task);
        return Err(CommandError::usage(text).hint("`infradev show TASK` says what a task has"));
    }
    let patch = choose(session, &built.task, &arguments.patch)?;
    let first = arguments.seed.unwrap_or_else(drawn_seed);
    let mut verdicts = vec![];
    for round in 0..arguments.repeat {
        let lease = store.lease(&format!("test {}", built.name()))?;
        let seed = first.wrapping_add(u64::from(round));
        verdicts.push(judge(session, store, &lease, &recipe, &built, &patch, seed)?);
    }
    if let PatchChoice::Mutant(mutant) = &patch {
        let (name, expected) = (&mutant.name, mutant.expect.word());
        for verdict in verdicts.iter().filter(|verdict| verdict.kind.to_string() != expected) {
            session.ui.warn(format!("the mutant {name} should end {expected}, and ended {}", verdict.kind));
        }
    }
    let verdicts = Verdicts { verdicts };
    session.ui.data(&verdicts, || verdicts.verdicts.iter().map(text).collect());
    let worst = verdicts.verdicts.iter().map(|verdict| match verdict.kind {
        VerdictKind::Resolved => 0,
        VerdictKind::InfraError => 3,
        _ => 1,
    });
    Ok(worst.max().unwrap_or(0))
}

fn choose(session: &Session, task: &str, patch: &str) -> CommandResult<PatchChoice> {
    let (project, id) = task.split_once('/').unwrap_or((task, ""));
    let mutants = session.catalog()?.grading(&infradev_recipes::TaskName::new(project, id))?.mutants;
    Ok(match patch {
        "gold" => PatchChoice::Gold,
        "base" => PatchChoice::Base,
        name => match mutants.iter().find(|mutant| mutant.name == name) {
            Some(mutant) => PatchChoice::Mutant(mutant.clone()),
            None if PathBuf::from(name).is_file() => PatchChoice::File(name.into()),
            None => {
                let names: Vec<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
                let text = format!("`{patch}` is neither gold, base, a mutant of {task}, nor a file");
                return Err(
                    CommandError::new(Kind::Usage, text).hint(format!("its mutants: {}", names.join(", ")))
                );
            }
        },
    })
}

/// A seed that a submission cannot have known.
fn drawn_seed() -> u64 {
    let mut bytes = [0; 4];
    let _zero_is_a_seed_too = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_le_bytes(bytes).into()
}

fn text(verdict: &Verdict) -> String {
    let mut rows = vec![];
    let size = |size: Option<u64>| size.map_or_else(|| "unmeasured".to_owned(), bytes);
    if let Some(official) = &verdict.official {
        let passed = official.tests.values().filter(|outcome| *outcome == "passed").count();
        let measured = &official.measured;
        rows.push(vec![
            "official tests".to_owned(),
            format!("{passed}/{}", official.tests.len()),
            format!("{:.1} s", measured.wall_seconds),
            size(measured.peak_memory_bytes),
            size(measured.loopback_bytes),
        ]);
    }
    for probe in &verdict.probes {
        let result = match probe.kind {
            VerdictKind::Resolved => "pass",
            VerdictKind::ProbeRejected => "reject",
            _ => "error",
        };
        rows.push(vec![
            format!("{} ({})", probe.probe, probe.what),
            result.to_owned(),
            format!("{:.1} s", probe.measured.wall_seconds),
            size(probe.measured.peak_memory_bytes),
            size(probe.measured.loopback_bytes),
        ]);
    }
    let head = format!("{} with {}: {}\n  {}\n", verdict.task, verdict.patch, verdict.kind, verdict.reason);
    if rows.is_empty() {
        return head;
    }
    head + &table(
        &["PART", "RESULT", "WALL", "PEAK MEMORY", "LOOPBACK"],
        &[false, true, true, true, true],
        &rows,
    )
}
