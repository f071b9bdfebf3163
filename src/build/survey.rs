//! What a build would do, without doing it.

use infradev_recipes::{Action, Artifact, KeyContext, NodeIndex, Progress, StepRecord};
use infradev_store::{ActionRecord, Store};

use super::host::Host;
use super::sdist::WHEEL_SHA256;
use super::{BuildError, Prepared, bytecode, driver, step};

/// How much a wheel grows when it is unpacked and compiled; measured on the environments of the catalog.
const UNPACKED: u64 = 3;

/// A step, and whether it is there.
#[derive(Debug)]
pub struct Surveyed {
    /// What people call it.
    pub label: String,
    /// What is known of it.
    pub state: SurveyState,
    /// Bytes to download for it.
    pub download: u64,
    /// Bytes that it adds to the disk; an estimate.
    pub disk: u64,
}

/// Whether a step is in the store.
#[derive(Debug)]
pub enum SurveyState {
    /// It is.
    Hit(Box<ActionRecord>),
    /// It is not; what its key was computed from.
    Miss(StepRecord),
    /// Its key follows from a step that is not.
    Unknown,
}

/// Looks every step of a plan up.
pub fn survey(store: Option<&Store>, prepared: &Prepared, host: &Host) -> Result<Vec<Surveyed>, BuildError> {
    let plan = &prepared.plan;
    let context = KeyContext {
        host_fingerprint: Some(host.fingerprint.clone()),
        pyc_magic: bytecode::magic_number(plan.target.python),
        versions: driver::versions(),
    };
    let mut progress = Progress::default();
    let mut surveyed = vec![];
    for (index, node) in plan.nodes() {
        if matches!(node.action, Action::HostBase) {
            continue;
        }
        add_inputs(store, prepared, index, &mut progress)?;
        let state = match plan.record(index, &context, &progress) {
            Err(_) => SurveyState::Unknown,
            Ok(record) => match store.map(|store| store.step(&record.key())).transpose()?.flatten() {
                Some(found) => {
                    progress.layers.insert(index, found.layers[0]);
                    if let Some(sha256) = found.outputs.get(WHEEL_SHA256) {
                        progress.built_wheels.insert(index, sha256.clone());
                    }
                    SurveyState::Hit(Box::new(found))
                }
                None => SurveyState::Miss(record),
            },
        };
        let is_hit = matches!(state, SurveyState::Hit(_));
        let download = if is_hit { 0 } else { download(&node.action) };
        let disk = if is_hit { 0 } else { download * UNPACKED };
        surveyed.push(Surveyed { label: node.label.clone(), state, download, disk });
    }
    Ok(surveyed)
}

/// Computes the inputs of a build step, if its source tree is there.
fn add_inputs(
    store: Option<&Store>,
    prepared: &Prepared,
    index: NodeIndex,
    progress: &mut Progress,
) -> Result<(), BuildError> {
    let plan = &prepared.plan;
    let Action::Build(build) = &plan.node(index).action else { return Ok(()) };
    let needs = plan.node(index).needs.iter();
    let source = needs
        .filter(|need| matches!(plan.node(**need).action, Action::Source))
        .find_map(|need| progress.layers.get(need));
    if let (Some(store), Some(source)) = (store, source) {
        let tree = crate::env::image::read_layers(store, &[*source])?.remove(0);
        let inputs = step::inputs(&tree, &plan.recipe, build)?;
        progress.inputs.insert(index, *inputs.layer_id().as_bytes());
    }
    Ok(())
}

fn download(action: &Action) -> u64 {
    match action {
        Action::DebianBase(lock) => lock.packages().iter().map(|package| package.size).sum(),
        Action::Wheel(package) => match &package.artifact {
            Artifact::Wheel(archive) => archive.size.unwrap_or(0),
            Artifact::Sdist { .. } => 0,
        },
        Action::SdistWheel(package) => package.artifact.archive().size.unwrap_or(0),
        _ => 0,
    }
}
