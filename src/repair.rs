//! Repair: what is damaged is made anew by whatever made it, and must come out the same.
//!
//! A plan is computed from the findings of a verification and may be shown. Layers and their objects come back
//! by running the step that made them; a remote that has them will be another [`Remedy`]. Nothing is removed
//! before its replacement is there, except caches and what no root needs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use infradev_store::{
    ActionRecord, LayerId, Lease, ObjectId, PackId, Report, RootKind, Stack, StepKey, Store, Subject,
};
use serde::Serialize;

use crate::build::host::Host;
use crate::build::root::BuiltTask;
use crate::build::{Again, BuildOptions, build, current_digest, prepare};
use crate::env::packs::{release, sweep_mounts};
use crate::env::state::{Environment, mounted_layers};
use crate::error::CommandResult;
use crate::session::Session;

/// How damage is mended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum Remedy {
    /// A record is written anew from the index, or removed if the index lost it too.
    Record {
        /// Its key.
        key: StepKey,
    },
    /// The index is made anew from the files.
    Index,
    /// A cache is deleted; it is made anew when it is needed.
    Delete {
        /// What.
        path: PathBuf,
    },
    /// What is sound of a pack goes into a new one, when the rest is plain again.
    Pack {
        /// The pack.
        pack: PackId,
    },
    /// A layer that no root needs is forgotten; the step that made it runs when it is needed.
    Forget {
        /// The layer.
        layer: LayerId,
    },
    /// A step runs again, as a part of building a task, and must give the layer that it gave before.
    Step {
        /// Its key.
        key: StepKey,
        /// What it is for people.
        label: String,
        /// The task and variant.
        task: String,
    },
    /// A task is built again: its steps are found, and what lies over them is made anew.
    Task {
        /// The task and variant.
        task: String,
    },
    /// Nothing here can mend it.
    Nothing {
        /// What is damaged.
        what: String,
        /// What the user can do.
        advice: String,
    },
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Remedy::Record { key } => write!(formatter, "write record {key} anew, or forget it"),
            Remedy::Index => write!(formatter, "make the index anew"),
            Remedy::Delete { path } => write!(formatter, "delete {}: it is made anew", path.display()),
            Remedy::Pack { pack } => write!(formatter, "write what is sound of pack {pack} anew"),
            Remedy::Forget { layer } => write!(formatter, "forget layer {layer}: nothing needs it"),
            Remedy::Step { label, task, .. } => write!(formatter, "run `{label}` of {task} again"),
            Remedy::Task { task } => write!(formatter, "build {task} again"),
            Remedy::Nothing { what, advice } => write!(formatter, "cannot mend {what}: {advice}"),
        }
    }
}

/// What a repair would do.
#[derive(Debug, Default)]
pub struct RepairPlan {
    /// In the order in which it is done.
    pub remedies: BTreeSet<Remedy>,
    objects: Vec<ObjectId>,
    layers: Vec<LayerId>,
}

/// Something that keeps layers, and the task that makes them.
struct Owner {
    layers: Vec<LayerId>,
    /// The task and variant, such as `verl/3567@cpu`; `None` if it does not say.
    task: Option<String>,
    /// The build, if the file says so much.
    built: Option<BuiltTask>,
    /// What to do about it if it cannot be mended.
    advice: String,
}

impl RepairPlan {
    /// Decides how to mend the damage that `report` names.
    pub fn new(session: &Session, store: &Store, report: &Report) -> CommandResult<Self> {
        let mut plan = Self::default();
        let owners = owners(store)?;
        let records = records(store)?;
        let is_needed = |layer: &LayerId| owners.iter().any(|owner| owner.layers.contains(layer));
        for finding in &report.damage {
            match &finding.what {
                Subject::Object(object) if finding.layers.iter().all(|layer| !is_needed(layer)) => {
                    // Gone before the next layer takes it as it is.
                    plan.remedies.insert(Remedy::Delete { path: store.layout().object(object) });
                    plan.make_again(session, &finding.layers, &owners, &records)?;
                }
                Subject::Object(object) => {
                    plan.objects.push(*object);
                    plan.make_again(session, &finding.layers, &owners, &records)?;
                    // Their names of the damaged file stay when the object's own name gets another.
                    plan.delete_farms(store);
                }
                Subject::Layer(layer) => {
                    plan.layers.push(*layer);
                    plan.make_again(session, &[*layer], &owners, &records)?;
                }
                Subject::Pack(pack) => drop(plan.remedies.insert(Remedy::Pack { pack: *pack })),
                Subject::Root(path) if finding.layers.is_empty() => {
                    plan.remedies.insert(of_root(store, path));
                }
                Subject::Root(_) => plan.make_again(session, &finding.layers, &owners, &records)?,
                Subject::Record(key) => drop(plan.remedies.insert(Remedy::Record { key: *key })),
                Subject::Index => drop(plan.remedies.insert(Remedy::Index)),
                Subject::Image(path) | Subject::Trash(path) => {
                    plan.remedies.insert(Remedy::Delete { path: path.clone() });
                }
                Subject::FarmCopy(path) => {
                    plan.remedies.insert(Remedy::Delete { path: path.clone() });
                    plan.delete_farms(store);
                }
                Subject::Stubs(path) => {
                    // A tree shares its stubs with the pool, which would hand them out again.
                    for path in [path.clone(), store.layout().stub_pool()] {
                        plan.remedies.insert(Remedy::Delete { path });
                    }
                }
            }
        }
        Ok(plan)
    }

    /// Plans to delete every farm: which of them link to a damaged file, no list tells.
    fn delete_farms(&mut self, store: &Store) {
        for path in store.layout().all_farms() {
            self.remedies.insert(Remedy::Delete { path });
        }
    }

    /// Plans to make `layers` again, each by the step that made it.
    fn make_again(
        &mut self,
        session: &Session,
        layers: &[LayerId],
        owners: &[Owner],
        records: &BTreeMap<StepKey, ActionRecord>,
    ) -> CommandResult {
        for layer in layers {
            let mut needing = owners.iter().filter(|owner| owner.layers.contains(layer)).peekable();
            if needing.peek().is_none() {
                self.remedies.insert(Remedy::Forget { layer: *layer });
                continue;
            }
            let mut advice = String::new();
            let remedy = needing.find_map(|owner| {
                let changed = owner.built.as_ref().is_some_and(|built| {
                    current_digest(session, built)
                        .map_or(true, |digest| digest.as_deref() != Some(built.recipe.as_str()))
                });
                let Some(task) = owner.task.as_ref().filter(|_| !changed) else {
                    let changed = if changed { "its recipe has changed since; " } else { "" };
                    advice = format!("{changed}{}", owner.advice);
                    return None;
                };
                Some(remedy_for(layer, task, owner, records))
            });
            let nothing = || Remedy::Nothing { what: format!("layer {layer}"), advice };
            self.remedies.insert(remedy.unwrap_or_else(nothing));
        }
        Ok(())
    }

    /// Mends what can be mended.
    pub fn carry_out(&self, session: &Session, store: &Store) -> CommandResult {
        let lease = store.lease("repair")?;
        let mut steps: HashSet<StepKey> = HashSet::new();
        let mut tasks: BTreeSet<&str> = BTreeSet::new();
        for remedy in &self.remedies {
            match remedy {
                Remedy::Record { key } => drop(store.repair_record(key)?),
                Remedy::Index => store.repair_index()?,
                Remedy::Delete { path } if *path == store.layout().stub_pool() => empty(store, path)?,
                Remedy::Delete { path } => store.disk().remove_tree(path)?,
                Remedy::Forget { layer } => drop(store.forget_layer(layer, &lease)?),
                Remedy::Step { key, task, .. } => {
                    steps.insert(*key);
                    tasks.insert(task);
                }
                Remedy::Task { task } => drop(tasks.insert(task)),
                // When what was in it is plain again.
                Remedy::Pack { .. } | Remedy::Nothing { .. } => {}
            }
        }
        store.distrust(self.objects.iter().copied(), self.layers.iter().copied());
        let again = Again::Steps(steps);
        let options = BuildOptions {
            jobs: session.config.jobs.value,
            keep_going: true,
            require_hit: false,
            again,
            ..Default::default()
        };
        for task in tasks {
            let (name, variant) = task.split_once('@').unwrap_or((task, ""));
            let was_built = store.root_names(RootKind::Task)?.iter().any(|name| name == task);
            let built = session
                .tasks(&[name.to_owned()])
                .and_then(|tasks| session.recipes(&tasks, Some(variant)))
                .and_then(|recipes| {
                    let host = Host::inspect();
                    build(session, prepare(session, recipes, &host)?, &host, &options)
                });
            match built {
                Ok(summary) => summary.errors.iter().for_each(|error| session.ui.error(error)),
                Err(error) => session.ui.error(&error.during(task)),
            }
            if !was_built {
                // A pin or an environment needed the layers, and has them now.
                store.remove_root(RootKind::Task, task)?;
            }
        }
        self.mend_packs(store, &lease)
    }

    fn mend_packs(&self, store: &Store, lease: &Lease) -> CommandResult {
        let packs: Vec<PackId> = self
            .remedies
            .iter()
            .filter_map(|remedy| if let Remedy::Pack { pack } = remedy { Some(*pack) } else { None })
            .collect();
        if packs.is_empty() {
            return Ok(());
        }
        store.mend_packs(lease, &|| mounted_layers(store), &())?;
        for pack in packs {
            release(store, &pack);
        }
        Ok(sweep_mounts(store)?)
    }
}

/// The step of `owner` that made `layer`; if none did, the build as a whole.
fn remedy_for(
    layer: &LayerId,
    task: &str,
    owner: &Owner,
    records: &BTreeMap<StepKey, ActionRecord>,
) -> Remedy {
    let task = task.to_owned();
    let steps = owner.built.iter().flat_map(|built| &built.steps);
    let of_build = || {
        let mut steps = steps.clone();
        steps.find(|step| step.layer == *layer).map(|step| (step.key, step.label.clone()))
    };
    let of_record = || {
        let made = |record: &&ActionRecord| record.layers.contains(layer);
        records.values().find(made).map(|record| (record.key, record.label.clone()))
    };
    // What a build made without a step, its build makes again.
    let step = if owner.built.is_some() { of_build() } else { of_record() };
    match step {
        Some((key, label)) => Remedy::Step { key, label, task },
        None => Remedy::Task { task },
    }
}

fn of_root(store: &Store, path: &Path) -> Remedy {
    let what = format!("root {}", path.display());
    match store.root_at(path) {
        Some((RootKind::Task, task)) => Remedy::Task { task },
        Some((RootKind::Pin, name)) => {
            let advice = format!("`infradev unpin {name}`, and pin again what it was meant to keep");
            Remedy::Nothing { what, advice }
        }
        None => {
            let name = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            let advice = format!("save what you need of its upper directory, then `infradev env rm {name}`");
            Remedy::Nothing { what, advice }
        }
    }
}

/// Everything that keeps layers, as far as it can be read.
fn owners(store: &Store) -> CommandResult<Vec<Owner>> {
    let mut owners = vec![];
    for kind in [RootKind::Task, RootKind::Pin] {
        for name in store.root_names(kind)? {
            let Ok(Some(built)) = store.root::<BuiltTask>(kind, &name) else {
                // A pin of an imported layer, which no step made.
                if let Ok(Some(Stack { layers, also })) = store.root::<Stack>(kind, &name) {
                    let advice = format!("import it again, or give it up with `infradev unpin {name}`");
                    let layers = layers.into_iter().chain(also).collect();
                    owners.push(Owner { layers, task: None, built: None, advice });
                }
                continue;
            };
            let advice = match kind {
                RootKind::Task => format!("`infradev build {}` makes a new stack", built.task),
                RootKind::Pin => format!("`infradev unpin {name}` gives it up"),
            };
            let layers = built.layers.iter().chain(&built.also).copied().collect();
            owners.push(Owner { layers, task: Some(built.name()), built: Some(built), advice });
        }
    }
    for environment in Environment::readable(store) {
        let advice = format!("`infradev env rm {}` gives it up", environment.name);
        let state = environment.state;
        owners.push(Owner { layers: state.layers, task: Some(state.task), built: None, advice });
    }
    // What running commands claim was of a task when they began.
    for layers in store.claimed_layers()? {
        let advice = "wait for the command that uses it".to_owned();
        owners.push(Owner { layers, task: None, built: None, advice });
    }
    Ok(owners)
}

fn records(store: &Store) -> CommandResult<BTreeMap<StepKey, ActionRecord>> {
    let keys = store.record_keys()?;
    Ok(keys.into_iter().filter_map(|key| Some((key, store.record(&key).ok()??))).collect())
}

/// Removes what is in a directory, and keeps the directory.
fn empty(store: &Store, path: &Path) -> CommandResult {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        store.disk().remove_tree(&entry.path())?;
    }
    Ok(())
}
