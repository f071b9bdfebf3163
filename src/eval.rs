//! The first verdict: a patch applied in one fresh environment, official tests in another, probes in a third.
//!
//! Thin and honest: nothing of the submission runs on the host, only its captured layer travels, and grading
//! files are shown to a run only when it is their turn. What shares a process with a submission can be forged by
//! it, so probes judge from another process, and limits are measured from outside.

mod bundle;
mod measure;
mod official;
mod probe;
mod run;
mod submission;
mod verdict;

pub use bundle::PatchChoice;
pub use verdict::{ProbeResult, TestResult, Verdict, VerdictKind};

use infradev_layers::Tree;
use infradev_recipes::Recipe;
use infradev_store::{Lease, Store};

use crate::build::host::Host;
use crate::build::root::BuiltTask;
use crate::build::{BuildError, Workshop};
use crate::env::image::known_tree;
use crate::error::{CommandError, CommandResult};
use crate::session::Session;

/// What an evaluation works with.
pub(crate) struct Evaluation<'a> {
    pub(crate) workshop: Workshop<'a>,
    pub(crate) recipe: &'a Recipe,
    pub(crate) built: &'a BuiltTask,
    /// The merged tree of the task's environment.
    pub(crate) below: Tree,
}

/// Judges `patch` for a built task.
pub fn judge(
    session: &Session,
    store: &Store,
    lease: &Lease,
    recipe: &Recipe,
    built: &BuiltTask,
    patch: &PatchChoice,
    seed: u64,
) -> CommandResult<Verdict> {
    let host = Host::inspect();
    if let Some(layer) = lease.hold(&built.layers)?.first() {
        return Err(infradev_store::Error::NoLayer(*layer).into());
    }
    let below = known_tree(store, &built.stack())?;
    let workshop =
        Workshop { session, store, lease, host: &host, back_end: session.back_end()?, places: None };
    let evaluation = Evaluation { workshop, recipe, built, below };
    evaluation.judge(patch, seed).map_err(CommandError::from)
}

impl Evaluation<'_> {
    fn judge(&self, patch: &PatchChoice, seed: u64) -> Result<Verdict, BuildError> {
        let mut verdict = Verdict::new(self.built.name(), patch.to_string(), seed);
        let Some(submission) = self.submit(patch, &mut verdict)? else { return Ok(verdict) };
        let ui = &self.workshop.session.ui;
        ui.started("official tests");
        let official = self.run_official(&submission)?;
        let word = if official.passed() { "passed" } else { "failed" };
        ui.finished("official tests", word, &official.summary());
        verdict.kind = official.verdict();
        verdict.reason = official.reason();
        verdict.official = Some(official);
        if verdict.kind != VerdictKind::Resolved {
            return Ok(verdict);
        }
        for probe in self.workshop.session.fresh_grading(&self.recipe.task)? {
            let label = format!("probe {}", probe.name);
            ui.started(&label);
            let result = self.run_probe(&probe, &submission, seed)?;
            ui.finished(&label, result.word(), "");
            if result.kind != VerdictKind::Resolved && verdict.kind == VerdictKind::Resolved {
                verdict.kind = result.kind;
                verdict.reason = format!("{}: {}", probe.name, result.reason);
            }
            verdict.probes.push(result);
        }
        Ok(verdict)
    }
}
