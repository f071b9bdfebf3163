//! `infradev plan`.

use clap::Args;
use serde::Serialize;

use crate::build::host::Host;
use crate::build::prepare;
use crate::build::survey::{SurveyState, survey};
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::{bytes, table};

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
    let store = session.store_if_there()?;
    let tasks = session.tasks(&arguments.selectors)?;
    let recipes = session.recipes(&tasks, arguments.variant.as_deref())?;
    let host = Host::inspect();
    let mut planned =
        Planned { steps: vec![], hits: 0, to_run: 0, download: 0, peak_disk: 0, seconds_saved: 0.0 };
    let mut seen = std::collections::HashSet::new();
    for prepared in prepare(session, recipes, &host)? {
        for step in survey(store, &prepared, &host)? {
            // Labels begin with the task; the same step of two tasks runs once.
            let (state, once) = match &step.state {
                SurveyState::Hit(record) => ("hit", record.key.to_string()),
                SurveyState::Miss(record) => ("run", record.key().to_string()),
                SurveyState::Unknown => {
                    let shared = step.label.split_once(' ').map_or(step.label.as_str(), |(_, what)| what);
                    ("run", shared.to_owned())
                }
            };
            if !seen.insert(once) {
                continue;
            }
            if let SurveyState::Hit(record) = &step.state {
                planned.hits += 1;
                planned.seconds_saved += record.seconds;
            } else {
                planned.to_run += 1;
                planned.download += step.download;
                planned.peak_disk += step.disk + step.download;
            }
            planned.steps.push(PlannedStep { step: step.label, state, download: step.download });
        }
    }
    session.ui.data(&planned, || {
        let to_run = planned.steps.iter().filter(|step| step.state == "run");
        let rows: Vec<Vec<String>> = to_run.map(|step| vec![step.step.clone(), bytes(step.download)]).collect();
        let Planned { hits, to_run, download, peak_disk, seconds_saved, .. } = &planned;
        let mut text = format!(
            "{to_run} steps to run, {hits} found ({seconds_saved:.0} s saved); {} to download, about {} of disk at most\n",
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
