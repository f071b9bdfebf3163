//! The driver: the steps of all plans at once, each looked up before it is run, each run once.
//!
//! Workers take steps whose needs are done. A step that another worker is running is set aside until that is
//! done; one that another process is running waits for that process's lock on the key, and is looked up again.

mod execute;
mod finish;
mod schedule;

use std::collections::HashSet;
use std::sync::Mutex;

use infradev_recipes::{Base, Catalog, Locks, Pattern, Plan, Recipe, StepVersions};
use infradev_store::{Lease, StepKey};
use rayon::prelude::*;

pub use finish::BuildSummary;
use schedule::Schedule;

use super::host::Host;
use super::root::BuiltTask;
use super::survey::{ensure_room, shared_label};
use super::unconfined::WhenNeeded;
use super::{BuildError, Workshop, base, image, skeleton};
use crate::env::plan::SANDBOX_POLICY_VERSION;
use crate::error::{CommandError, CommandResult};
use crate::session::Session;

/// How to build.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// How many steps run at once.
    pub jobs: usize,
    /// Goes on with what does not need a failed step.
    pub keep_going: bool,
    /// Runs nothing: a step that is not in the store is an error.
    pub require_hit: bool,
    /// Which steps run although they are in the store.
    pub again: Again,
    /// What commands of steps run in.
    pub sandbox: Sandbox,
}

/// What commands of steps run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Sandbox {
    /// Namespaces of their own.
    #[default]
    Namespaces,
    /// Nothing: plain processes at the real /opt/env and /workspace, whose records are shared with nobody.
    None,
}

/// Which steps run although they are in the store; what they give is compared with what is there.
#[derive(Debug, Clone, Default)]
pub enum Again {
    /// None.
    #[default]
    Nothing,
    /// Those whose name, without the task, this matches.
    Matching(Pattern),
    /// These, to repair their layers, and what a build makes without a step.
    Steps(HashSet<StepKey>),
}

/// A recipe that is ready to be built.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// Its steps.
    pub plan: Plan,
    /// The files of the catalog that it follows from.
    pub catalog_files: Vec<String>,
    /// What they hash to.
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
        let catalog_files = catalog_files(&catalog, &recipe, &locks);
        let digest = hash_files(&catalog, &catalog_files);
        let plan = Plan::new(recipe.clone(), locks.inputs(python)).map_err(|error| during(error.into()))?;
        if plan.target.architecture != host.architecture {
            let text = format!(
                "{} is for {}, and this machine is {}",
                recipe.task, plan.target.architecture, host.architecture
            );
            return Err(CommandError::usage(text));
        }
        Ok(Prepared { plan, catalog_files, digest })
    };
    // Most of a build that has nothing to do is the reading of locks.
    recipes.into_par_iter().map(prepare).collect()
}

/// Hashes the catalog's files that `built` was made from, as they are now; `None` if it does not have the task.
///
/// By their bytes: an environment is entered in milliseconds, and parsing a lock takes as long.
pub fn current_digest(session: &Session, built: &BuiltTask) -> CommandResult<Option<String>> {
    let catalog = session.catalog()?;
    let has_it = catalog.tasks().iter().any(|task| task.to_string() == built.task);
    Ok(has_it.then(|| hash_files(catalog, &built.catalog_files)))
}

/// Lists the catalog's files that a plan follows from.
fn catalog_files(catalog: &Catalog, recipe: &Recipe, locks: &Locks) -> Vec<String> {
    let project = &recipe.task.project;
    let folder = format!("{project}/tasks/{}", recipe.task.id);
    let mut files = vec![format!("{project}/project.toml"), format!("{folder}/task.toml")];
    let mut locked: Vec<String> = vec![recipe.lock_file()];
    locked.extend(locks.build_locks.keys().map(|name| infradev_recipes::lock_file(name)));
    if locks.base_lock.is_some() || locks.image_lock.is_some() {
        locked.push(recipe.base_lock_file());
    }
    files.extend(locked.into_iter().map(|file| format!("{project}/locks/{file}")));
    // Files that recipes write out stand in these folders by custom.
    for (document, below) in
        [(format!("{project}/project.toml"), project.clone()), (format!("{folder}/task.toml"), folder)]
    {
        let Some(path) = catalog.find(&document) else { continue };
        for entry in std::fs::read_dir(path.with_file_name("files")).into_iter().flatten().flatten() {
            files.push(format!("{below}/files/{}", entry.file_name().to_string_lossy()));
        }
    }
    files.sort();
    files
}

fn hash_files(catalog: &Catalog, files: &[String]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for file in files {
        add(file.as_bytes());
        add(&catalog.find(file).and_then(|path| std::fs::read(path).ok()).unwrap_or_default());
    }
    hasher.finalize().to_hex().to_string()
}

/// The versions of everything that turns inputs into layers.
pub(super) fn versions() -> StepVersions {
    StepVersions {
        base: base::BASE_LAYER_VERSION,
        image: image::IMAGE_LAYER_VERSION,
        skeleton: skeleton::SKELETON_VERSION,
        wheel: infradev_layers::WHEEL_LAYER_VERSION,
        source: infradev_layers::GIT_LAYER_VERSION,
        sandbox: SANDBOX_POLICY_VERSION,
    }
}

/// Refuses what cannot be built without a sandbox: the base of a task is this machine then.
fn refuse_own_bases(prepared: &[Prepared]) -> Result<(), BuildError> {
    match prepared.iter().find(|prepared| prepared.plan.recipe.base != Base::Host) {
        Some(other) => Err(BuildError::OwnBase { task: other.plan.recipe.task.to_string() }),
        None => Ok(()),
    }
}

/// Builds `prepared`, and makes each finished one a root.
pub fn build(
    session: &Session,
    prepared: Vec<Prepared>,
    host: &Host,
    options: &BuildOptions,
) -> CommandResult<BuildSummary> {
    let store = session.store()?;
    if let Again::Matching(pattern) = &options.again {
        let mut labels =
            prepared.iter().flat_map(|prepared| prepared.plan.nodes()).map(|(_, node)| &node.label);
        if !labels.any(|label| pattern.matches(shared_label(label))) {
            return Err(CommandError::usage(format!("--rebuild: no step is called `{pattern}`")).hint(
                "`infradev plan` and `infradev layer ls` show their names, as in 'wheel *' or 'build native'",
            ));
        }
    }
    let unconfined = options.sandbox == Sandbox::None && !options.require_hit;
    if unconfined {
        refuse_own_bases(&prepared)?;
    }
    if !options.require_hit {
        ensure_room(store, &prepared, host)?;
    }
    let lease: Lease = store.lease("build")?;
    let back_end = session.back_end()?;
    let places = WhenNeeded::default();
    let places = unconfined.then_some(&places);
    let workshop = Workshop { session, store, lease: &lease, host, back_end, places };
    let schedule = Mutex::new(Schedule::new(prepared, host));
    let wake = std::sync::Condvar::new();
    std::thread::scope(|scope| {
        // The real places are there once.
        let jobs = if unconfined { 1 } else { options.jobs.max(1) };
        for _ in 0..jobs {
            scope.spawn(|| schedule::work(&workshop, &schedule, &wake, options));
        }
    });
    let schedule = schedule.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    finish::finish(&workshop, schedule, options)
}
