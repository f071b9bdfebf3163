//! `infradev plan`.

use clap::Args;
use serde::Serialize;

use crate::build::host::Host;
use crate::build::prepare;
use crate::build::survey::{Survey, SurveyState, survey_all};
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::{bytes, counted, table};

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Tasks, projects, globs, or `all`
    #[arg(required = true)]
    selectors: Vec<String>,
    /// Only this variant
    #[arg(long)]
    variant: Option<String>,
}

#[derive(Serialize)]
struct Planned {
    steps: Vec<PlannedStep>,
    hits: usize,
    to_run: usize,
    download: u64,
    peak_disk: u64,
    seconds_saved: f64,
}

#[derive(Serialize)]
struct PlannedStep {
    step: String,
    state: &'static str,
    download: u64,
}

pub(crate) fn run(session: &Session, arguments: &PlanArgs) -> CommandResult<u8> {
    let store = session.store_if_any()?;
    let tasks = session.tasks(&arguments.selectors)?;
    let recipes = session.recipes(&tasks, arguments.variant.as_deref())?;
    let host = Host::inspect();
    let prepared = prepare(session, recipes, &host)?;
    let Survey { steps, hits, to_run, download, peak_disk, seconds_saved } =
        survey_all(store, &prepared, &host)?;
    let steps = steps.into_iter().map(|step| PlannedStep {
        state: if matches!(step.state, SurveyState::Hit(_)) { "hit" } else { "run" },
        step: step.label,
        download: step.download,
    });
    let planned = Planned { steps: steps.collect(), hits, to_run, download, peak_disk, seconds_saved };
    session.ui.data(&planned, || {
        let to_run = planned.steps.iter().filter(|step| step.state == "run");
        let rows: Vec<Vec<String>> = to_run.map(|step| vec![step.step.clone(), bytes(step.download)]).collect();
        let Planned { hits, to_run, download, peak_disk, seconds_saved, .. } = &planned;
        let mut text = format!(
            "{} to run, {hits} found ({seconds_saved:.0} s saved); {} to download, about {} of disk at most\n",
            counted(*to_run, "step"),
            bytes(*download),
            bytes(*peak_disk)
        );
        if !rows.is_empty() {
            text.push_str(&table(&["STEP", "DOWNLOAD"], &[false, true], &rows));
        }
        text
    });
    Ok(0)
}
