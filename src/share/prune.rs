//! Removing saved steps that no task needs any more.

use std::collections::HashSet;

use infradev_store::{StepKey, Store};
use serde::Serialize;

use super::steps::step_tag;
use super::{Digest, Remote, sound_manifest};
use crate::build::Prepared;
use crate::build::host::Host;
use crate::build::survey::{SurveyState, survey_all};
use crate::error::{CommandError, CommandResult, Kind};
use crate::ui::{Ui, counted};

/// What a pruning removed, or would.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Pruned {
    /// Tags of steps that were kept.
    pub kept: usize,
    /// Tags of steps that were removed.
    pub removed: Vec<String>,
    /// Bytes of blobs that were removed; of those of a registry it decides itself.
    pub freed_bytes: u64,
}

/// Removes the steps of `remote` that none of `prepared` has. All steps of these must be in the store, since what
/// is not built yet cannot be told from what nobody needs.
pub fn prune(
    store: &Store,
    prepared: &[Prepared],
    host: &Host,
    remote: &dyn Remote,
    dry_run: bool,
    ui: &Ui,
) -> CommandResult<Pruned> {
    let survey = survey_all(Some(store), prepared, host)?;
    if survey.to_run > 0 {
        let text = format!("this store lacks {} of these tasks", counted(survey.to_run, "step"));
        return Err(CommandError::new(Kind::Miss, text)
            .hint("what is saved for them would be removed: build or restore them first"));
    }
    let keys = survey.steps.iter().filter_map(|step| match &step.state {
        SurveyState::Hit(record) => Some(record.key),
        _ => None,
    });
    let needed: HashSet<String> = keys.map(|key: StepKey| step_tag(&key)).collect();
    let mut pruned = Pruned::default();
    for tag in remote.tags()?.into_iter().filter(|tag| is_step_tag(tag)) {
        if needed.contains(&tag) {
            pruned.kept += 1;
            continue;
        }
        if !dry_run {
            let Some(manifest) = sound_manifest(remote, &tag, ui)? else { continue };
            remove(remote, &manifest.digest)?;
        }
        pruned.removed.push(tag);
    }
    if !dry_run {
        pruned.freed_bytes = remote.sweep()?.unwrap_or(0);
    }
    Ok(pruned)
}

/// Whether a tag can be that of a step: images of tasks may have names that begin alike.
fn is_step_tag(tag: &str) -> bool {
    tag.strip_prefix("step-").is_some_and(|key| key.parse::<StepKey>().is_ok())
}

fn remove(remote: &dyn Remote, digest: &Digest) -> CommandResult {
    match remote.remove_manifest(digest)? {
        true => Ok(()),
        false => Err(CommandError::new(Kind::Infrastructure, format!("{} removes nothing", remote.name()))
            .hint("its owner must allow deletion, or remove old tags by its own rules")),
    }
}
