//! One step: looked up, and if it is not there, run and committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use infradev_layers::Tree;
use infradev_recipes::{Action, NodeIndex, StepRecord};
use infradev_store::{ActionRecord, LayerId, Lock, Mode, StepKey};

use super::super::survey::shared_label;
use super::super::{
    BuildError, Product, Workshop, base, files, image, io, sdist, skeleton, source, step, wheel,
};
use super::{Again, BuildOptions, Prepared, Sandbox};
use crate::ui;

/// A step that can be looked up, and run.
pub(super) struct Ready {
    pub(super) prepared: Arc<Prepared>,
    pub(super) index: NodeIndex,
    pub(super) record: StepRecord,
    pub(super) key: StepKey,
    /// What the earlier steps of the plan made, once it is this one's turn.
    pub(super) layers: BTreeMap<NodeIndex, LayerId>,
    /// The declared inputs of a build step.
    pub(super) inputs: Option<Tree>,
}

/// What became of a key.
#[derive(Clone)]
pub(super) enum Done {
    /// It has a layer.
    Made {
        layer: LayerId,
        outputs: BTreeMap<String, String>,
        /// Whether it was run now.
        built: bool,
        record: Arc<ActionRecord>,
    },
    /// It failed, in the plan with this label.
    Failed { label: String },
}

impl Done {
    fn of(record: ActionRecord, built: bool) -> Option<Self> {
        let layer = *record.layers.first()?;
        Some(Done::Made { layer, outputs: record.outputs.clone(), built, record: Arc::new(record) })
    }

    fn into_record(self) -> Option<Arc<ActionRecord>> {
        match self {
            Done::Made { record, .. } => Some(record),
            Done::Failed { .. } => None,
        }
    }
}

pub(super) fn execute(
    workshop: &Workshop<'_>,
    ready: Ready,
    options: &BuildOptions,
) -> Result<Done, BuildError> {
    let label = ready.prepared.plan.node(ready.index).label.clone();
    let again = match &options.again {
        Again::Nothing => false,
        Again::Matching(pattern) => pattern.matches(shared_label(&label)),
        Again::Steps(keys) => keys.contains(&ready.key),
    };
    if let Some(done) = look_up(workshop, &ready.key)?.filter(|_| !again) {
        return Ok(done);
    }
    // What a sandbox made is good without one; not the other way round.
    let unconfined = match options.sandbox {
        Sandbox::None => ready.record.unconfined(),
        Sandbox::Namespaces => None,
    };
    let ready = match unconfined {
        Some(record) => {
            let ready = Ready { key: record.key(), record, ..ready };
            if let Some(done) = look_up(workshop, &ready.key)?.filter(|_| !again) {
                return Ok(done);
            }
            ready
        }
        None => ready,
    };
    if options.require_hit {
        return Err(BuildError::Miss);
    }
    let locks = workshop.store.layout().cache("locks");
    std::fs::create_dir_all(&locks).map_err(io("create", &locks))?;
    let lock_path = locks.join(ready.key.to_hex());
    // Another process may be running the step; whoever has the lock second finds its result.
    let _lock = Lock::wait(&lock_path, Mode::Exclusive)?;
    let before = look_up(workshop, &ready.key)?;
    if let Some(done) = before.clone().filter(|_| !again) {
        return Ok(done);
    }
    let before = match &options.again {
        // Also if its layer is lost: no other may take its place.
        Again::Steps(_) if again => workshop.store.record(&ready.key)?.map(Arc::new),
        _ => before.and_then(Done::into_record),
    };
    let ui = &workshop.session.ui;
    ui.started(&label);
    let began = Instant::now();
    let committed =
        make(workshop, &ready).and_then(|product| commit(workshop, &ready, product, before, began));
    let _harmless_if_it_stays = std::fs::remove_file(&lock_path);
    match committed {
        Ok((record, made, bytes)) => {
            ui.finished(&label, "built", &ui::bytes(bytes));
            let layer = record.layers[0];
            if made != layer {
                ui.warn(format!("`{label}` gave another layer than before; {layer} stays (compare them with `infradev layer diff {layer} {made}` before `gc`)"));
            }
            Ok(Done::of(record, true).expect("a committed step has a layer"))
        }
        Err(error) => {
            ui.finished(&label, "failed", "");
            Err(error)
        }
    }
}

/// Finds the layer of a key, and holds it for the rest of the build.
fn look_up(workshop: &Workshop<'_>, key: &StepKey) -> Result<Option<Done>, BuildError> {
    let Some(record) = workshop.store.step(key)? else { return Ok(None) };
    if !workshop.lease.hold(&record.layers)?.is_empty() {
        return Ok(None);
    }
    Ok(Done::of(record, false))
}

fn make<'a>(workshop: &Workshop<'a>, ready: &Ready) -> Result<Product<'a>, BuildError> {
    let plan = &ready.prepared.plan;
    let log = workshop.store.layout().cache("logs").join(format!("{}.log", ready.key));
    let _a_fresh_log = std::fs::remove_file(&log);
    // What the step runs over: all that it needs and that is a layer of an environment.
    let below = |with_packages: bool| -> Vec<LayerId> {
        let needs = plan.node(ready.index).needs.iter();
        let wanted = needs.filter(|need| match plan.node(**need).action {
            Action::DebianBase(_) | Action::ImageLayer { .. } | Action::Skeleton => true,
            Action::Wheel(_) | Action::Build(_) => with_packages,
            Action::HostBase | Action::SdistWheel(_) | Action::Source | Action::Files(_) => false,
        });
        wanted.filter_map(|need| ready.layers.get(need)).copied().collect()
    };
    match &plan.node(ready.index).action {
        Action::HostBase => unreachable!("a host base has no key"),
        Action::DebianBase(lock) => base::debian_base(workshop, lock, &log),
        Action::ImageLayer { image, layer } => {
            image::image_layer(workshop, &plan.recipe.task.project, image, layer)
        }
        Action::Skeleton => {
            let mut product = workshop.product()?;
            let needs = &plan.node(ready.index).needs;
            let over_host = needs.iter().any(|need| matches!(plan.node(*need).action, Action::HostBase));
            let python = match &workshop.host.python {
                Some((path, _)) if over_host => path.to_string_lossy().into_owned(),
                _ => format!("/usr/bin/python{}", plan.target.python),
            };
            product.tree = skeleton::skeleton_tree(&python, plan.target.python, over_host, &product.ingest)?;
            Ok(product)
        }
        Action::Wheel(package) => {
            let needs = plan.node(ready.index).needs.iter();
            let mut sdists = needs.filter(|need| matches!(plan.node(**need).action, Action::SdistWheel(_)));
            let sdist = sdists.next_back();
            let built = sdist.and_then(|need| ready.layers.get(need)).copied();
            wheel::wheel(workshop, package, built, &below(false), plan.target.python, &log)
        }
        Action::SdistWheel(package) => sdist::sdist(workshop, package, &below(true), &log),
        Action::Source => source::source(workshop, &plan.recipe),
        Action::Build(build) => {
            let inputs = ready.inputs.clone().unwrap_or_default();
            step::build_step(workshop, &plan.recipe, build, &below(true), inputs, &log)
        }
        Action::Files(generated) => {
            let mut product = workshop.product()?;
            product.tree = files::files_tree(generated, &product.ingest)?;
            Ok(product)
        }
    }
}

/// Makes the product visible with its record; returns the record, the layer that was made, and the sizes of its
/// files together.
///
/// A key that had another layer before keeps that, since others stand on it; the new layer is noted.
fn commit(
    workshop: &Workshop<'_>,
    ready: &Ready,
    product: Product<'_>,
    before: Option<Arc<ActionRecord>>,
    began: Instant,
) -> Result<(ActionRecord, LayerId, u64), BuildError> {
    let Product { ingest, tree, outputs, downloaded } = product;
    let layer = ingest.put_layer(&tree.encode())?;
    let node = ready.prepared.plan.node(ready.index);
    let made = ActionRecord {
        key: ready.key,
        kind: ready.record.kind().to_owned(),
        // Labels begin with the task, but the step is everybody's.
        label: shared_label(&node.label).to_owned(),
        record: serde_json::to_value(&ready.record).expect("plain data"),
        layers: vec![layer],
        outputs,
        seconds: began.elapsed().as_secs_f64(),
        downloaded,
        built: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs() as i64),
        nondeterministic: vec![],
    };
    let record = match before {
        None => made,
        Some(before) if before.layers == made.layers => {
            ActionRecord { nondeterministic: before.nondeterministic.clone(), ..made }
        }
        Some(before) => {
            let mut kept = ActionRecord::clone(&before);
            kept.nondeterministic.retain(|other| *other != layer);
            kept.nondeterministic.push(layer);
            kept
        }
    };
    ingest.put_step(record.clone());
    ingest.commit()?;
    let _stays_until_the_lease_ends = workshop.lease.hold(&record.layers)?;
    Ok((record, layer, tree.apparent_bytes()))
}
