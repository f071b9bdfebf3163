//! From a task's name to an environment of its last build.

use std::time::{SystemTime, UNIX_EPOCH};

use infradev_store::{Lease, Store};

use super::Which;
use crate::build::root::BuiltTask;
use crate::env::back_end::{BackEnd, Uppers};
use crate::env::image::{Mountable, mountable};
use crate::env::plan::Mapping;
use crate::env::state::{Environment, EnvironmentState};
use crate::error::{CommandError, CommandResult, Kind};
use crate::session::Session;
use crate::ui::counted;

/// Finds the build of a task: `project/id`, `id`, or either with `@variant`.
pub(crate) fn find_built(
    session: &Session,
    store: &Store,
    target: &str,
    which: &Which,
) -> CommandResult<BuiltTask> {
    let (task, variant) = match target.split_once('@') {
        Some((task, variant)) => (task, Some(variant.to_owned())),
        None => (target, which.variant.clone()),
    };
    let matches = |found: &str, with: &str| {
        let named = found == task || found.rsplit_once('/').is_some_and(|(_, id)| id == task);
        named && variant.as_ref().is_none_or(|variant| variant == with)
    };
    let mut found = BuiltTask::all_of(store, matches)?;
    let built = match (found.pop(), found.pop()) {
        (Some(built), None) => built,
        (Some(one), Some(other)) => {
            let text = format!("`{target}` means {} or {}", one.name(), other.name());
            return Err(CommandError::usage(text).hint("write the whole name, or give --variant"));
        }
        (None, _) => {
            let only = only_task(session, task, variant.as_deref())?;
            if only == task {
                let text = format!("`{target}` is not built in this store");
                return Err(CommandError::new(Kind::Miss, text).hint(format!("run `infradev build {only}`")));
            }
            // The one task of a project.
            let whole = variant.map_or(only.clone(), |variant| format!("{only}@{variant}"));
            return find_built(session, store, &whole, which);
        }
    };
    check_fresh(session, &built, which.require_fresh)?;
    Ok(built)
}

/// Returns the whole name of the one task of the catalog that `target` means.
fn only_task(session: &Session, target: &str, variant: Option<&str>) -> CommandResult<String> {
    let tasks = session.tasks(&[target.to_owned()])?;
    let [task] = tasks.as_slice() else {
        let names: Vec<String> = tasks.iter().map(ToString::to_string).collect();
        let error = CommandError::usage(format!("`{target}` names {}", counted(names.len(), "task")));
        return Err(error.hint(format!("an environment is of one: {}", names.join(", "))));
    };
    if variant.is_some() {
        session.recipes(&tasks, variant)?;
    }
    Ok(task.to_string())
}

/// Says when the catalog has another recipe or lock than the build was made from.
fn check_fresh(session: &Session, built: &BuiltTask, required: bool) -> CommandResult {
    let current = crate::build::current_digest(session, built);
    let changed = match current {
        Ok(Some(digest)) => digest != built.recipe,
        Ok(None) if required => {
            let text = format!("the catalog does not have {}, to compare it with", built.task);
            return Err(CommandError::new(Kind::Miss, text)
                .hint("name its catalog with --catalog, or leave --require-fresh out"));
        }
        Ok(None) => return Ok(()),
        // Without its catalog a built environment is as good as with it.
        Err(_) if !required => return Ok(()),
        Err(error) => return Err(error),
    };
    let text = format!("the recipe or lock of {} changed since it was built", built.name());
    let hint = format!("run `infradev build {}`", built.task);
    match (changed, required) {
        (false, _) => Ok(()),
        (true, true) => Err(CommandError::new(Kind::Miss, text).hint(hint)),
        (true, false) => {
            session.ui.warn(format!("{text}; {hint}"));
            Ok(())
        }
    }
}

/// Makes an environment of `built` and readies what it is mounted from; returns that with it.
pub(crate) fn create(
    session: &Session,
    lease: &Lease,
    built: &BuiltTask,
    name: &str,
    mapping: Mapping,
    discarded: bool,
) -> CommandResult<(Environment, Mountable)> {
    let store = session.store()?;
    let stack = built.stack();
    let missing = lease.hold(&stack.layers)?;
    if let Some(layer) = missing.first() {
        return Err(infradev_store::Error::NoLayer(*layer).into());
    }
    lease.hold_stack(stack.id())?;
    let (back_end, uppers) = match discarded {
        true => session.back_end_of_discarded()?,
        false => (session.back_end()?, Uppers::Disk),
    };
    let mountable = mountable(store, &stack, back_end, lease)?;
    let state = EnvironmentState {
        schema: 1,
        layers: stack.layers,
        task: built.name(),
        back_end,
        mapping,
        variables: built.run_variables(),
        directory: built.workspace.clone().into(),
        host_base: built.host_base,
        discarded_with: discarded.then(|| lease.id().to_owned()),
        uppers,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()),
    };
    if back_end == BackEnd::Copy {
        session.ui.note(format!(
            "`{name}` is a full copy of its stack, in time and disk; `infradev doctor` says what else works"
        ));
    }
    Ok((Environment::create(store, lease, name, state)?, mountable))
}

/// Readies what an environment that is there is mounted from, once the lease holds its layers: packs are looked for
/// after that.
pub(super) fn mountable_again(
    store: &Store,
    environment: &Environment,
    lease: &Lease,
) -> CommandResult<Mountable> {
    let state = &environment.state;
    if let Some(layer) = lease.hold(&state.layers)?.first() {
        return Err(infradev_store::Error::NoLayer(*layer).into());
    }
    Ok(mountable(store, &state.stack(), state.back_end, lease)?)
}
