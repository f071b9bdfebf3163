//! `infradev quickstart`: the main job on small real input.

use clap::Args;

use super::build::{build_selected, report};
use super::du::{DuArgs, Grain};
use super::env::run_check;
use crate::build::BuildOptions;
use crate::error::{CommandError, CommandResult, Kind};
use crate::session::Session;

/// Arguments of `quickstart`.
#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {
    /// How many steps run at once [default: one per processor]
    #[arg(short, long)]
    jobs: Option<usize>,
}

/// What the quickstart builds.
const SELECTOR: &str = "quickstart-*/*";

pub(crate) fn run(session: &Session, arguments: &QuickstartArgs) -> CommandResult<u8> {
    session
        .ui
        .note("building two releases each of megatron-core, vLLM and verl over this machine's own Python");
    let options = BuildOptions {
        jobs: arguments.jobs.unwrap_or(session.config.jobs.value),
        keep_going: true,
        ..BuildOptions::default()
    };
    let summary = build_selected(session, &[SELECTOR.to_owned()], None, &options)?;
    let status = report(session, &summary)?;
    if status != 0 {
        return Ok(status);
    }
    if summary.built > 0 {
        for task in &summary.tasks {
            check(session, task)?;
        }
    }
    super::du::run(session, &DuArgs { by: Grain::Task })?;
    let example = summary.tasks.first().map_or("TASK", |task| task.split('@').next().unwrap_or(task));
    session.ui.note(format!("enter one with: infradev env shell {example}"));
    Ok(0)
}

/// Runs the check of a task in a fresh environment.
fn check(session: &Session, task: &str) -> CommandResult {
    let (name, variant) = task.split_once('@').unwrap_or((task, ""));
    let tasks = session.tasks(&[name.to_owned()])?;
    let recipe = session.recipes(&tasks, Some(variant))?.remove(0);
    let Some(command) = recipe.check else { return Ok(()) };
    session.ui.started(&format!("check {name}"));
    let status = run_check(session, task, command)?;
    let word = if status == 0 { "passed" } else { "failed" };
    session.ui.finished(&format!("check {name}"), word, "");
    if status == 0 {
        return Ok(());
    }
    let text = format!("the check of {name} failed with status {status}");
    Err(CommandError::new(Kind::Failed, text).hint(format!("see it with: infradev env shell {name}")))
}
