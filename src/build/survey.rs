//! What a build would do, without doing it.

use std::collections::HashSet;

use infradev_recipes::{Action, Artifact, KeyContext, NodeIndex, Progress, StepRecord};
use infradev_store::{ActionRecord, StepKey, Store};

use super::host::Host;
use super::sdist::WHEEL_SHA256;
use super::{BuildError, Prepared, bytecode, driver, step};
use crate::error::{CommandError, CommandResult, Kind};
use crate::ui::bytes;

/// Returns the disk that a download takes when it is unpacked and compiled: text of small packages grows more than
/// the libraries of large ones. Measured on the environments of the catalog.
fn unpacked(download: u64) -> u64 {
    download * if download < 50 << 20 { 5 } else { 3 }
}

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

/// What a build of several plans would do.
#[derive(Debug, Default)]
pub struct Survey {
    /// The steps, each once.
    pub steps: Vec<Surveyed>,
    /// How many of them are in the store.
    pub hits: usize,
    /// How many are not.
    pub to_run: usize,
    /// Bytes to download.
    pub download: u64,
    /// Bytes of disk that the build needs at most; an estimate.
    pub peak_disk: u64,
    /// Seconds that the steps which are there had taken.
    pub seconds_saved: f64,
}

/// Looks the steps of all plans up; a step that several share is counted once.
pub fn survey_all(store: Option<&Store>, prepared: &[Prepared], host: &Host) -> Result<Survey, BuildError> {
    let mut all = Survey::default();
    let mut seen = HashSet::new();
    for prepared in prepared {
        for step in survey(store, prepared, host)? {
            // Labels begin with the task; the same step of two tasks runs once.
            let once = match &step.state {
                SurveyState::Hit(record) => record.key.to_string(),
                SurveyState::Miss(record) => record.key().to_string(),
                SurveyState::Unknown => shared_label(&step.label).to_owned(),
            };
            if !seen.insert(once) {
                continue;
            }
            if let SurveyState::Hit(record) = &step.state {
                all.hits += 1;
                all.seconds_saved += record.seconds;
            } else {
                all.to_run += 1;
                all.download += step.download;
                all.peak_disk += step.disk + step.download;
            }
            all.steps.push(step);
        }
    }
    Ok(all)
}

/// Refuses a build that the store's file system cannot hold.
///
/// Looks steps up only if building all of them anew would not fit: most builds find most of theirs.
pub fn ensure_room(store: &Store, prepared: &[Prepared], host: &Host) -> CommandResult {
    let free = store.free_bytes()?;
    let nodes = prepared.iter().flat_map(|prepared| prepared.plan.nodes());
    let largest: u64 = nodes.map(|(_, node)| download(&node.action)).map(|size| size + unpacked(size)).sum();
    if largest <= free {
        return Ok(());
    }
    let needed = survey_all(Some(store), prepared, host)?.peak_disk;
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (bytes(needed), bytes(free));
    let text = format!("the build needs about {needed} of disk, and the store's file system has {free} left");
    Err(CommandError::new(Kind::Infrastructure, text)
        .hint("`infradev gc --dry-run` shows what can go; `infradev plan` shows what is needed"))
}

/// What a step is called without the task that it was planned for.
pub fn shared_label(label: &str) -> &str {
    label.split_once(' ').map_or(label, |(_, what)| what)
}

/// Looks every step of a plan up.
pub fn survey(store: Option<&Store>, prepared: &Prepared, host: &Host) -> Result<Vec<Surveyed>, BuildError> {
    survey_with(store, prepared, host, &|key| Ok(store.map(|store| store.step(key)).transpose()?.flatten()))
}

/// Looks every step of a plan up by `lookup`, which may know more than the store.
pub fn survey_with(
    store: Option<&Store>,
    prepared: &Prepared,
    host: &Host,
    lookup: &dyn Fn(&StepKey) -> Result<Option<ActionRecord>, BuildError>,
) -> Result<Vec<Surveyed>, BuildError> {
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
            Ok(record) => match lookup(&record.key())? {
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
        let disk = if is_hit { 0 } else { unpacked(download) };
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
    // A layer that is only known by name has no inputs yet, and the step no key.
    if let (Some(store), Some(source)) = (store, source)
        && store.reaches_layer(source)
    {
        let tree = crate::env::image::read_layers(store, &[*source])?.remove(0);
        let inputs = step::inputs(&tree, &plan.recipe, build)?;
        progress.inputs.insert(index, *inputs.layer_id().as_bytes());
    }
    Ok(())
}

fn download(action: &Action) -> u64 {
    match action {
        Action::DebianBase(lock) => lock.packages().iter().map(|package| package.size).sum(),
        Action::ImageLayer { layer, .. } => layer.size,
        Action::Wheel(package) => match &package.artifact {
            Artifact::Wheel(archive) => archive.size.unwrap_or(0),
            Artifact::Sdist { .. } => 0,
        },
        Action::SdistWheel(package) => package.artifact.archive().size.unwrap_or(0),
        _ => 0,
    }
}
