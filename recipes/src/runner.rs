//! What runs the commands of a plan: the shell implements it, this crate states what it owes.

use infradev_store::{LayerId, StepKey};

use crate::plan::{Node, Plan};
use crate::record::StepRecord;

/// A step that was not found in the action cache and is to be run.
#[derive(Debug, Clone, Copy)]
pub struct ReadyStep<'a> {
    /// The plan that it belongs to.
    pub plan: &'a Plan,
    /// The step.
    pub node: &'a Node,
    /// What may change its output.
    pub record: &'a StepRecord,
    /// The hash of `record`.
    pub key: StepKey,
    /// The layers of what it needs, lowest first, without the source tree.
    pub layers: &'a [LayerId],
}

/// Runs build steps.
///
/// An implementation keeps the promise that makes a cached layer as good as a new one: the command
/// sees `layers`, its declared inputs at their places, its `env` and constants of the sandbox policy
/// version, and nothing else. In particular:
///
/// - a moment that reaches the command or the layer (`SOURCE_DATE_EPOCH`, modification times) is a
///   constant of the policy and not the date of a task, since no date is in the record;
/// - variables in `env-ignored` are passed through from the caller, and a `cache` is mounted, because
///   the recipe vouches that they change nothing;
/// - every pattern of `outputs` has matched something afterwards, or the step has failed; the layer
///   holds what they match and no more;
/// - a failed or interrupted step leaves no layer and no action behind.
pub trait StepRunner {
    /// Why a step failed.
    type Error: std::error::Error;

    /// Runs `step`, and returns the layer of its outputs.
    fn run(&mut self, step: ReadyStep<'_>) -> Result<LayerId, Self::Error>;
}
