//! The end of a build: stacks become images and roots, failures are reported once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use infradev_layers::{Content, Kind, Tree, TreeBuilder, TreePath};
use infradev_recipes::{Action, Base, NodeIndex};
use infradev_store::{LayerId, RootKind};
use serde::Serialize;

use super::super::root::{BuiltStep, BuiltTask, root_name};
use super::super::{BuildError, Workshop};
use super::execute::Done;
use super::schedule::{Failed, PlanState, Schedule};
use super::{Again, BuildOptions};
use crate::env::image::prepare;
use crate::error::{CommandError, CommandResult};

/// What a build did.
#[derive(Debug, Default, Serialize)]
pub struct BuildSummary {
    /// Steps found in the store.
    pub hits: usize,
    /// Steps run.
    pub built: usize,
    /// Seconds that the steps which were found had taken when they ran.
    pub seconds_saved: f64,
    /// Seconds that the steps which ran took, together.
    pub seconds_built: f64,
    /// Bytes downloaded.
    pub downloaded: u64,
    /// Tasks that are ready.
    pub tasks: Vec<String>,
    /// Tasks that are not, and why.
    pub failed: BTreeMap<String, String>,
    /// The failures, with what to do about them.
    #[serde(skip)]
    pub errors: Vec<CommandError>,
}

pub(super) fn finish(
    workshop: &Workshop<'_>,
    schedule: Schedule,
    options: &BuildOptions,
) -> CommandResult<BuildSummary> {
    let mut summary = BuildSummary::default();
    for done in schedule.done.values() {
        if let Done::Made { built, record, .. } = done {
            if *built {
                summary.built += 1;
                summary.seconds_built += record.seconds;
                summary.downloaded += record.downloaded;
            } else {
                summary.hits += 1;
                summary.seconds_saved += record.seconds;
            }
        }
    }
    let Schedule { plans, done, .. } = schedule;
    for state in plans {
        let name = root_name(&state.plan().recipe.task.to_string(), &state.plan().recipe.variant);
        if state.failed.is_empty()
            && state.plan().nodes().all(|(index, node)| is_done(&state, index, &node.action))
        {
            match make_root(workshop, &state, &done, options) {
                Ok(()) => summary.tasks.push(name),
                Err(error) => {
                    let error = error.during(&name);
                    summary.failed.insert(name, error.message.clone());
                    summary.errors.push(error);
                }
            }
            continue;
        }
        let mut reason = "the build was stopped before it was done".to_owned();
        let labels: Vec<String> =
            state.failed.keys().map(|index| state.plan().node(*index).label.clone()).collect();
        for (label, (_, failed)) in labels.into_iter().zip(state.failed) {
            match failed {
                Failed::Itself(error) => {
                    let error = CommandError::from(error).during(label);
                    reason.clone_from(&error.message);
                    summary.errors.push(error);
                    break;
                }
                Failed::Needs(needed) => reason = format!("`{needed}` failed"),
            }
        }
        summary.failed.insert(name, reason);
    }
    Ok(summary)
}

fn is_done(state: &PlanState, index: NodeIndex, action: &Action) -> bool {
    matches!(action, Action::HostBase) || state.progress.layers.contains_key(&index)
}

fn make_root(
    workshop: &Workshop<'_>,
    state: &PlanState,
    done: &HashMap<infradev_store::StepKey, Done>,
    options: &BuildOptions,
) -> CommandResult {
    let plan = state.plan();
    let recipe = &plan.recipe;
    let mut layers: Vec<LayerId> = plan.stack().iter().map(|index| state.progress.layers[index]).collect();
    let mut steps = vec![];
    for (index, _) in plan.nodes() {
        let Some(key) = state.keys.get(&index) else { continue };
        if let Some(Done::Made { layer, record, .. }) = done.get(key) {
            steps.push(BuiltStep {
                kind: record.kind.clone(),
                label: record.label.clone(),
                key: record.key,
                layer: *layer,
                seconds: record.seconds,
                downloaded: record.downloaded,
            });
        }
    }
    let name = recipe.task.to_string();
    let before = BuiltTask::read(workshop.store, &name, &recipe.variant).unwrap_or(None);
    let repairs = matches!(options.again, Again::Steps(_));
    let unchanged = |before: &BuiltTask| {
        !repairs && before.layers.starts_with(&layers) && before.recipe == state.prepared.digest
    };
    if let Some(before) = before.filter(unchanged) {
        // The wheels were found to agree when it was made; its image may have been collected since.
        prepare(workshop.store, &before.stack(), workshop.back_end, workshop.lease)?;
        return Ok(());
    }
    layers.extend(agreement(workshop, state).map_err(CommandError::from)?);
    let in_stack: HashSet<LayerId> = layers.iter().copied().collect();
    let also: HashSet<LayerId> =
        state.progress.layers.values().copied().filter(|layer| !in_stack.contains(layer)).collect();
    let mut also: Vec<LayerId> = also.into_iter().collect();
    also.sort_unstable();
    let built = BuiltTask {
        schema: 1,
        layers,
        also,
        task: name.clone(),
        variant: recipe.variant.clone(),
        steps,
        python: plan.target.python.to_string(),
        workspace: recipe.workspace.clone(),
        variables: recipe.env.clone(),
        host_base: matches!(recipe.base, Base::Host),
        catalog_files: state.prepared.catalog_files.clone(),
        recipe: state.prepared.digest.clone(),
        built: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()),
    };
    prepare(workshop.store, &built.stack(), workshop.back_end, workshop.lease)?;
    workshop.store.set_root(RootKind::Task, &built.name(), &built)?;
    Ok(())
}

/// Checks that no two wheels disagree on a path; returns a layer with the preferred files where they may.
fn agreement(workshop: &Workshop<'_>, state: &PlanState) -> Result<Option<LayerId>, BuildError> {
    let plan = state.plan();
    let mut packages = vec![];
    for index in plan.stack() {
        if let Action::Wheel(package) = &plan.node(*index).action {
            packages.push((package.name.clone(), state.progress.layers[index]));
        }
    }
    let layers: Vec<LayerId> = packages.iter().map(|(_, layer)| *layer).collect();
    let trees = workshop.trees(&layers)?;
    let mut owners: HashMap<&TreePath, (usize, &Kind)> = HashMap::new();
    let mut preferred = TreeBuilder::new();
    let mut any = false;
    for (number, tree) in trees.iter().enumerate() {
        for entry in tree.entries().iter().filter(|entry| !entry.kind.is_directory()) {
            let Some((other, kind)) = owners.insert(&entry.path, (number, &entry.kind)) else { continue };
            if same_content(kind, &entry.kind) {
                continue;
            }
            let (first, second) = (&packages[other].0, &packages[number].0);
            // Patterns are relative to the prefix.
            let text = String::from_utf8_lossy(entry.path.as_bytes()).into_owned();
            let below = text.strip_prefix("opt/env/").unwrap_or(&text);
            let mut choices = plan.recipe.prefer.iter().filter(|(pattern, _)| pattern.matches(below));
            let chosen = choices.find_map(|(_, name)| match name {
                name if name == first => Some(kind),
                name if name == second => Some(&entry.kind),
                _ => None,
            });
            let Some(chosen) = chosen else {
                let (first, second) = (first.to_string(), second.to_string());
                return Err(BuildError::Disagreement { path: format!("/{text}"), first, second });
            };
            any = true;
            if !preferred.contains(&entry.path) {
                preferred.add(entry.path.clone(), chosen.clone())?;
            }
        }
    }
    if !any {
        return Ok(None);
    }
    let tree: Tree = preferred.finish()?;
    let ingest = workshop.store.ingest(workshop.lease)?;
    let layer = ingest.put_layer(&tree.encode())?;
    ingest.commit()?;
    Ok(Some(layer))
}

fn same_content(left: &Kind, right: &Kind) -> bool {
    let content = |kind: &Kind| -> Option<Content> {
        match kind {
            Kind::File { content, .. } => Some(*content),
            _ => None,
        }
    };
    match (content(left), content(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}
