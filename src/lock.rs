//! Locks: what every recipe installs, to the byte.
//!
//! uv resolves; its answer is pruned to one artifact per package and written as the one text that stands for
//! it. Recipes are locked oldest first, and each prefers the versions that its siblings chose already
//! (**alignment**), since a wheel that two environments share is stored and built once. A sibling's lock never
//! changes unless that is asked for.

mod base;
mod check;
mod error;
mod graph;
mod image;
mod requirements;
mod resolve;
mod sdist;
mod siblings;
mod target;
mod uv;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;

use infradev_recipes::{Base, Catalog, Pylock, Recipe};
use infradev_store::Store;
use serde::Serialize;

pub use check::{Finding, check};
pub use error::LockError;
pub use siblings::Sharing;

use crate::error::CommandResult;
use crate::session::Session;
use requirements::RequirementFiles;
use work::Work;

/// What may be decided anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockOptions {
    /// Resolve locks that are not stale too, without regard to what they hold.
    pub realign: bool,
    /// Choose the Debian packages of bases, and ask what images and archives are, anew.
    pub refresh_base: bool,
    /// Write nothing.
    pub dry_run: bool,
}

/// What became of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// There was none.
    New,
    /// It holds something else now.
    Changed,
    /// It was made anew, and is as before.
    Same,
    /// It is not stale, and was left alone.
    Kept,
}

/// A lock after `infradev lock`.
#[derive(Debug, Clone, Serialize)]
pub struct LockReport {
    /// The lock, as `project/file`.
    pub lock: String,
    /// Where it is.
    pub path: PathBuf,
    /// What became of it.
    pub outcome: Outcome,
    /// How many packages it holds.
    pub packages: usize,
    /// What it shares with other locks for the same interpreter; nothing for a base.
    pub sharing: Option<Sharing>,
}

/// Locks `recipes`: first the bases, then the packages, oldest recipe first.
pub fn lock(session: &Session, recipes: &[Recipe], options: LockOptions) -> CommandResult<Vec<LockReport>> {
    let store = session.store()?;
    let catalog = session.fresh_catalog()?;
    let mut work = Work::new(session, store, &catalog, options)?;
    let mut reports = vec![];
    let mut bases: BTreeMap<(&str, &str), &Recipe> = BTreeMap::new();
    for recipe in recipes.iter().filter(|recipe| is_locked_base(&recipe.base)) {
        bases.entry((&recipe.task.project, &recipe.variant)).or_insert(recipe);
    }
    for recipe in bases.into_values() {
        reports.push(work.lock_base(recipe)?);
    }
    let first = first_of_each_lock(recipes);
    if options.realign {
        first.iter().for_each(|recipe| work.forget(recipe));
    }
    for recipe in first {
        reports.push(work.lock_packages(recipe)?);
    }
    Ok(reports)
}

/// Whether a base has a lock of its own.
fn is_locked_base(base: &Base) -> bool {
    matches!(base, Base::Debian { .. } | Base::Image { .. })
}

/// Returns the recipe that each lock is made for: the one with the oldest source. Oldest first.
fn first_of_each_lock(recipes: &[Recipe]) -> Vec<&Recipe> {
    let mut first: Vec<&Recipe> = recipes.iter().collect();
    first
        .sort_by_key(|recipe| (recipe.source.date.map(|date| date.seconds()), &recipe.task, &recipe.variant));
    let mut seen = std::collections::BTreeSet::new();
    first.retain(|recipe| seen.insert((&recipe.task.project, &recipe.lock)));
    first
}

/// Makes sure that `recipe` has locks to build from.
///
/// Locks over a host base belong to this machine, and are made quietly when they are missing or for another
/// interpreter; all others are the maintainer's, and a missing one is an error. The catalog must be opened
/// anew afterwards ([`Session::fresh_catalog`]).
pub fn ensure_lock(session: &Session, recipe: &Recipe) -> CommandResult {
    let catalog = session.fresh_catalog()?;
    let project = &recipe.task.project;
    if recipe.base == Base::Host {
        // One that a maintainer put into a catalog is taken as it is.
        let found = catalog.find(&format!("{project}/locks/{}", recipe.lock_file()));
        if found.is_some_and(|path| !session.is_of_machine(&path)) {
            return Ok(());
        }
        let store = session.store()?;
        if !has_current(session, store, &catalog, recipe)? {
            let mut work = Work::new(session, store, &catalog, LockOptions::default())?;
            work.lock_packages(recipe)?;
        }
        return Ok(());
    }
    let mut files = vec![recipe.lock_file()];
    if is_locked_base(&recipe.base) {
        files.push(recipe.base_lock_file());
    }
    for file in files {
        if catalog.find(&format!("{project}/locks/{file}")).is_none() {
            return Err(LockError::Missing { task: recipe.task.clone(), file }.into());
        }
    }
    Ok(())
}

/// Whether all locks of `recipe`, which is over a host base, are there and suit this machine.
fn has_current(
    session: &Session,
    store: &Store,
    catalog: &Catalog,
    recipe: &Recipe,
) -> Result<bool, LockError> {
    let Some(locks) = work::optional(catalog.locks(recipe))? else { return Ok(false) };
    let target = target::target_of(recipe, target::BaseFacts::default())?;
    Ok(locks.lock.made_for.target == target && !stale(session, store, catalog, recipe, &locks.lock)?)
}

/// Says whether `lock` was made from other requirements than `recipe` has now.
///
/// A lock that several tasks share is judged by the task that it was made for.
pub fn is_stale(session: &Session, catalog: &Catalog, recipe: &Recipe, lock: &Pylock) -> CommandResult<bool> {
    Ok(stale(session, session.store()?, catalog, recipe, lock)?)
}

fn stale(
    session: &Session,
    store: &Store,
    catalog: &Catalog,
    recipe: &Recipe,
    lock: &Pylock,
) -> Result<bool, LockError> {
    let owner = owner_of(catalog, recipe, lock);
    let recipe = owner.as_ref().unwrap_or(recipe);
    let lease = store.lease("look at a lock")?;
    let scratch = || Ok(lease.new_directory("requirements")?);
    let files = RequirementFiles::read(session, store, recipe, &scratch)?;
    Ok(files.digest(recipe) != lock.made_for.requirement_digest)
}

/// Returns the recipe that `lock` was made for, if that is another one that still uses it.
fn owner_of(catalog: &Catalog, recipe: &Recipe, lock: &Pylock) -> Option<Recipe> {
    let name = lock.made_for.task.as_ref()?;
    let name = catalog.tasks().iter().find(|task| task.to_string() == *name && **task != recipe.task)?;
    let owner = catalog.recipe(name, &recipe.variant).ok()?;
    (owner.task.project == recipe.task.project && owner.lock == recipe.lock).then_some(owner)
}
