//! The driver: the steps of all plans at once, each looked up before it is run, each run once.
//!
//! Workers take steps whose needs are done. A step that another worker is running is set aside until that is
//! done; one that another process is running waits for that process's lock on the key, and is looked up again.

mod execute;
mod finish;
mod schedule;

use std::sync::Mutex;

use infradev_recipes::{Plan, Recipe, StepVersions, TaskName};
use infradev_store::Lease;

pub use finish::BuildSummary;
use schedule::Schedule;

use super::host::Host;
use super::{Workshop, base, skeleton};
use crate::env::plan::SANDBOX_POLICY_VERSION;
use crate::error::{CommandError, CommandResult};
use crate::session::Session;

/// How to build.
#[derive(Debug, Clone, Copy, Default)]
pub struct BuildOptions {
    /// How many steps run at once.
    pub jobs: usize,
    /// Goes on with what does not need a failed step.
    pub keep_going: bool,
    /// Runs nothing: a step that is not in the store is an error.
    pub require_hit: bool,
}

/// A recipe that is ready to be built.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// Its steps.
    pub plan: Plan,
    /// What the recipe and its locks hash to.
    pub digest: String,
}

/// Plans `recipes` with their locks; locks that belong to this machine are made where they are missing.
pub fn prepare(session: &Session, recipes: Vec<Recipe>, host: &Host) -> CommandResult<Vec<Prepared>> {
    for recipe in &recipes {
        crate::lock::ensure_lock(session, recipe)?;
    }
    let catalog = session.fresh_catalog()?;
    let prepare = |recipe: Recipe| -> CommandResult<Prepared> {
        let during = |error: CommandError| error.during(&recipe.task);
        let locks = catalog.locks(&recipe).map_err(|error| during(error.into()))?;
        let python = host.python.as_ref().map(|(_, version)| *version);
        let digest = digest(&recipe, &locks);
        let plan = Plan::new(recipe.clone(), locks.inputs(python)).map_err(|error| during(error.into()))?;
        if plan.target.architecture != host.architecture {
            let text = format!(
                "{} is for {}, and this machine is {}",
                recipe.task, plan.target.architecture, host.architecture
            );
            return Err(CommandError::usage(text));
        }
        Ok(Prepared { plan, digest })
    };
    recipes.into_iter().map(prepare).collect()
}

/// Hashes what a build of a task variant would follow from now.
pub fn current_digest(session: &Session, task: &str, variant: &str) -> CommandResult<String> {
    let (project, id) = task.split_once('/').unwrap_or((task, ""));
    let catalog = session.catalog()?;
    let recipe = catalog.recipe(&TaskName::new(project, id), variant)?;
    Ok(digest(&recipe, &catalog.locks(&recipe)?))
}

/// Hashes everything that a plan follows from.
fn digest(recipe: &Recipe, locks: &infradev_recipes::Locks) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &[u8]| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text);
    };
    add(&serde_json::to_vec(recipe).expect("plain data"));
    for file in &recipe.files {
        add(&file.content);
    }
    add(locks.lock.to_text().as_bytes());
    locks.build_locks.values().for_each(|lock| add(lock.to_text().as_bytes()));
    locks.base_lock.iter().for_each(|lock| add(lock.to_text().as_bytes()));
    hasher.finalize().to_hex().to_string()
}

/// The versions of everything that turns inputs into layers.
pub(super) fn versions() -> StepVersions {
    StepVersions {
        base: base::BASE_LAYER_VERSION,
        skeleton: skeleton::SKELETON_VERSION,
        wheel: infradev_layers::WHEEL_LAYER_VERSION,
        source: infradev_layers::GIT_LAYER_VERSION,
        sandbox: SANDBOX_POLICY_VERSION,
    }
}

/// Builds `prepared`, and makes each finished one a root.
pub fn build(
    session: &Session,
    prepared: Vec<Prepared>,
    host: &Host,
    options: BuildOptions,
) -> CommandResult<BuildSummary> {
    let store = session.store()?;
    let lease: Lease = store.lease("build")?;
    let workshop = Workshop { session, store, lease: &lease, host };
    let schedule = Mutex::new(Schedule::new(prepared, host));
    let wake = std::sync::Condvar::new();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| schedule::work(&workshop, &schedule, &wake, options));
        }
    });
    let schedule = schedule.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    finish::finish(&workshop, schedule)
}
