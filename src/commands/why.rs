//! `infradev why`.

use clap::Args;
use infradev_recipes::{StepRecord, differences};
use serde::Serialize;

use crate::build::host::Host;
use crate::build::prepare;
use crate::build::survey::{SurveyState, shared_label, survey};
use crate::error::CommandResult;
use crate::session::Session;

/// Arguments of `why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The task
    task: String,
    /// Only this variant
    #[arg(long)]
    variant: Option<String>,
}

#[derive(Serialize)]
struct Explained {
    steps: Vec<ExplainedStep>,
}

#[derive(Serialize)]
struct ExplainedStep {
    step: String,
    reasons: Vec<String>,
}

pub(crate) fn run(session: &Session, arguments: &WhyArgs) -> CommandResult<u8> {
    let store = session.store_for_reading()?;
    let tasks = session.tasks(std::slice::from_ref(&arguments.task))?;
    let recipes = session.recipes(&tasks, arguments.variant.as_deref())?;
    let host = Host::inspect();
    let mut steps = vec![];
    for prepared in prepare(session, recipes, &host)? {
        for step in survey(Some(store), &prepared, &host)? {
            let reasons = match &step.state {
                SurveyState::Hit(record) if record.nondeterministic.is_empty() => continue,
                SurveyState::Hit(record) => {
                    let count = record.nondeterministic.len() + 1;
                    vec![format!("it is there, but gave {count} different layers for one key")]
                }
                SurveyState::Miss(record) => explain(store, &step.label, record)?,
                SurveyState::Unknown => vec!["a step that it needs is not there".to_owned()],
            };
            steps.push(ExplainedStep { step: step.label, reasons });
        }
    }
    let explained = Explained { steps };
    session.ui.data(&explained, || {
        if explained.steps.is_empty() {
            return "every step is in the store: a build has nothing to run\n".to_owned();
        }
        let lines = |step: &ExplainedStep| {
            let reasons: String = step.reasons.iter().map(|reason| format!("  {reason}\n")).collect();
            format!("{}\n{reasons}", step.step)
        };
        let mut text: String =
            explained.steps.iter().filter(|step| step.reasons != [NEVER]).map(lines).collect();
        let never: Vec<&str> = explained
            .steps
            .iter()
            .filter(|step| step.reasons == [NEVER])
            .map(|step| step.step.as_str())
            .collect();
        match never.as_slice() {
            [] => {}
            few if few.len() <= FEW => {
                text.push_str(&format!("never built in this store: {}\n", few.join(", ")))
            }
            many => text.push_str(&format!("{} more steps were never built in this store\n", many.len())),
        }
        text
    });
    Ok(0)
}

/// How many steps without a reason of their own are named.
const FEW: usize = 10;

/// The reason of a step that nothing in the store is like.
const NEVER: &str = "it was never built in this store";

/// Compares the record of a step that is not there with the newest of the same name.
fn explain(store: &infradev_store::Store, label: &str, record: &StepRecord) -> CommandResult<Vec<String>> {
    let what = shared_label(label);
    let before = store.steps_labelled(record.kind(), what)?;
    let before =
        before.iter().find_map(|found| serde_json::from_value::<StepRecord>(found.record.clone()).ok());
    Ok(match before {
        Some(before) => differences(&before, record).iter().map(ToString::to_string).collect(),
        None => vec![NEVER.to_owned()],
    })
}
