//! Build steps in a registry: one tag per step key, so that writers never race and a lookup is one request.
//!
//! A step whose output is dear is kept with its layers; of a cheap one only the record is, so that the keys of steps
//! above it can be computed before it is built. Sources go along with dear build steps, whose keys follow from their
//! content. Either way a tag that is there is whole: it was written last.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use infradev_layers::{Compression, Tree};
use infradev_store::{ActionRecord, LayerId, Lease, StepKey, Store};
use serde::Serialize;

use super::group::loose_parts;
use super::image::{LayerBlob, manifest_of};
use super::manifest::{Descriptor, EMPTY, MANIFEST, Manifest};
use super::pull::Puller;
use super::push::Publisher;
use super::{Remote, ShareError, in_parallel, sound_manifest, unpoisoned};
use crate::build::Prepared;
use crate::build::host::Host;
use crate::build::survey::{SurveyState, survey_with};
use crate::env::image::read_layers;
use crate::error::CommandError;
use crate::ui::Ui;

/// The kind of artifact that a step is.
const STEP: &str = "application/vnd.infradev.step.v1";
/// Holds the action record, as JSON.
const RECORD: &str = "dev.infradev.record";
/// How many steps are looked up or saved at once.
const WORKERS: usize = 8;

/// Bytes of content that a restore is taken to move in a second, compressed on the way.
const RESTORE_SPEED: f64 = 100e6;
/// Seconds that each restored step costs besides.
const RESTORE_COST: f64 = 0.2;

/// Which steps are worth keeping.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Worth {
    /// Those that take so many seconds more to build than to restore.
    Gain(f64),
    /// All: for machines that cannot build.
    Everything,
}

/// What a save did.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Saved {
    /// Steps that were looked at: those that are in the store.
    pub steps: usize,
    /// Steps that were saved with their layers.
    pub saved: usize,
    /// Steps of which the record alone was, since building them again is as quick.
    pub cheap: usize,
    /// Steps that were there already.
    pub present: usize,
    /// Bytes that were uploaded.
    pub uploaded_bytes: u64,
}

/// What a restore did.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Restored {
    /// Steps of the tasks.
    pub steps: usize,
    /// Steps that were in the store before.
    pub here: usize,
    /// Steps that were restored.
    pub restored: usize,
    /// Steps that are left to build: known to be cheap.
    pub cheap: usize,
    /// Steps that are left to build: not there, or not to be found before others are built.
    pub missing: usize,
    /// Bytes that were fetched.
    pub fetched_bytes: u64,
    /// Seconds that the restored steps took to build once.
    pub seconds_saved: f64,
    /// Seconds that the restore took.
    pub seconds: f64,
}

/// Returns the tag of a step.
pub fn step_tag(key: &StepKey) -> String {
    format!("step-{}", key.to_hex())
}

/// Lists the records of the steps of `prepared` that are in the store, each once.
pub fn records_of(
    store: &Store,
    prepared: &[Prepared],
    host: &Host,
) -> Result<Vec<ActionRecord>, CommandError> {
    let mut records: HashMap<StepKey, ActionRecord> = HashMap::new();
    for prepared in prepared {
        for step in survey_with(Some(store), prepared, host, &|key| Ok(store.step(key)?))? {
            if let SurveyState::Hit(record) = step.state {
                records.insert(record.key, *record);
            }
        }
    }
    let mut records: Vec<ActionRecord> = records.into_values().collect();
    records.sort_by_key(|record| record.key);
    Ok(records)
}

/// Saves `records` and, where it is worth it, the layers that they made.
pub fn save(
    store: &Store,
    lease: &Lease,
    records: Vec<ActionRecord>,
    remote: &dyn Remote,
    worth: Worth,
    ui: &Ui,
) -> Result<Saved, ShareError> {
    let publisher = Publisher::new(store, lease, remote, Compression::Zstd, ui)?;
    let saved = Mutex::new(Saved { steps: records.len(), ..Saved::default() });
    let dear = dear_steps(store, &records, worth)?;
    in_parallel(WORKERS, records, |record| {
        let tag = step_tag(&record.key);
        let is_dear = dear.contains(&record.key);
        if let Some(there) = sound_manifest(remote, &tag, ui)?
            && (!is_dear || Step::read(&there, &record.key).is_some_and(|step| is_there(&step, remote)))
        {
            unpoisoned(&saved).present += 1;
            return Ok(());
        }
        let layers = if is_dear { record.layers.clone() } else { vec![] };
        let trees: HashMap<LayerId, Tree> =
            layers.iter().copied().zip(read_layers(store, &layers)?).collect();
        let parts = loose_parts(&layers, &trees);
        let blobs = publisher.publish(parts.iter().collect())?;
        publisher.small_blob("an empty configuration", b"{}")?;
        let manifest = compose(&record, &blobs).to_raw();
        remote.put_manifest(&tag, MANIFEST, &manifest.bytes)?;
        let mut saved = unpoisoned(&saved);
        *(if is_dear { &mut saved.saved } else { &mut saved.cheap }) += 1;
        Ok(())
    })?;
    let mut saved = *unpoisoned(&saved);
    saved.uploaded_bytes = publisher.counts().uploaded_bytes;
    Ok(saved)
}

/// Whether the layers of a step that was saved are still there.
fn is_there(step: &Step, remote: &dyn Remote) -> bool {
    let is_there = |blob: &LayerBlob| remote.has_blob(&blob.digest, blob.size).unwrap_or(false);
    !step.blobs.is_empty() && step.blobs.iter().all(is_there)
}

/// Returns the steps that are kept with their layers.
fn dear_steps(store: &Store, records: &[ActionRecord], worth: Worth) -> Result<HashSet<StepKey>, ShareError> {
    let mut dear = HashSet::new();
    let mut needs_sources = false;
    for record in records {
        if is_worth(store, record, worth)? {
            dear.insert(record.key);
            needs_sources |= record.kind == "build";
        }
    }
    // The key of a build step follows from what is in its source: without that nobody finds it.
    if needs_sources {
        let sources = records.iter().filter(|record| record.kind == "source");
        dear.extend(sources.map(|record| record.key));
    }
    Ok(dear)
}

fn is_worth(store: &Store, record: &ActionRecord, worth: Worth) -> Result<bool, ShareError> {
    let Worth::Gain(gain) = worth else { return Ok(true) };
    let mut size = 0;
    for layer in &record.layers {
        size += store.references(layer)?.iter().map(|reference| reference.size).sum::<u64>();
    }
    Ok(record.seconds - (RESTORE_COST + size as f64 / RESTORE_SPEED) >= gain)
}

fn compose(record: &ActionRecord, blobs: &[LayerBlob]) -> Manifest {
    let mut layers: Vec<Descriptor> = blobs.iter().map(LayerBlob::descriptor).collect();
    if layers.is_empty() {
        layers.push(Descriptor::of(EMPTY, b"{}"));
    }
    let mut manifest = Manifest::new(Descriptor::of(EMPTY, b"{}"), layers);
    manifest.artifact_type = Some(STEP.to_owned());
    let text = serde_json::to_string(record).expect("plain data");
    manifest.annotations.insert(RECORD.to_owned(), text);
    manifest
}

/// A step that was found.
#[derive(Debug, Clone)]
struct Step {
    record: ActionRecord,
    /// None of a cheap step.
    blobs: Vec<LayerBlob>,
}

impl Step {
    /// Takes a manifest apart; `None` if it is not what was saved under this key, which is a miss.
    fn read(raw: &super::remote::RawManifest, key: &StepKey) -> Option<Self> {
        let manifest = manifest_of(raw).ok()?;
        let record: ActionRecord = serde_json::from_str(manifest.annotations.get(RECORD)?).ok()?;
        let blobs: Vec<LayerBlob> =
            manifest.layers.iter().filter_map(|layer| LayerBlob::read(layer, None)).collect();
        let holds = |layer: &LayerId| blobs.iter().any(|blob| blob.layers.contains(layer));
        let is_whole = blobs.is_empty() || record.layers.iter().all(holds);
        (record.key == *key && !record.layers.is_empty() && is_whole).then_some(Self { record, blobs })
    }
}

/// Restores the steps of `prepared` that the remote has and the store lacks.
pub fn restore(
    store: &Store,
    lease: &Lease,
    prepared: &[Prepared],
    host: &Host,
    remote: &dyn Remote,
    ui: &Ui,
) -> Result<Restored, CommandError> {
    let started = Instant::now();
    let puller = Puller::new(store, lease, remote, ui)?;
    // What was asked for so far; `None` is a miss.
    let asked: Mutex<HashMap<StepKey, Option<Step>>> = Mutex::default();
    let mut restored = Restored::default();
    let mut fetched: HashSet<StepKey> = HashSet::new();
    loop {
        let mut here = HashSet::new();
        let mut unknown = HashSet::new();
        let mut found: HashMap<StepKey, Step> = HashMap::new();
        let mut missing = HashSet::new();
        for prepared in prepared {
            let lookup = |key: &StepKey| -> Result<Option<ActionRecord>, crate::build::BuildError> {
                if let Some(record) = store.step(key)? {
                    return Ok(Some(record));
                }
                Ok(unpoisoned(&asked).get(key).cloned().flatten().map(|step| step.record))
            };
            for step in survey_with(Some(store), prepared, host, &lookup)? {
                match step.state {
                    SurveyState::Hit(record) => {
                        match unpoisoned(&asked).get(&record.key).cloned().flatten() {
                            Some(step) => drop(found.insert(record.key, step)),
                            None => drop(here.insert(record.key)),
                        }
                    }
                    SurveyState::Miss(record) => drop(missing.insert(record.key())),
                    SurveyState::Unknown => drop(unknown.insert(step.label)),
                }
            }
        }
        let new: Vec<StepKey> =
            missing.iter().filter(|key| !unpoisoned(&asked).contains_key(key)).copied().collect();
        // Sources at once: what a build step reads of them is part of its key.
        let sources: Vec<Step> = found
            .values()
            .filter(|step| step.record.kind == "source" && !fetched.contains(&step.record.key))
            .cloned()
            .collect();
        if new.is_empty() && sources.is_empty() {
            let dear: Vec<Step> = found
                .values()
                .filter(|step| !step.blobs.is_empty() && !fetched.contains(&step.record.key))
                .cloned()
                .collect();
            fetch(&puller, store, &dear, &mut restored, ui)?;
            restored.here = here.len();
            restored.cheap = found.values().filter(|step| step.blobs.is_empty()).count();
            let kept = found.values().filter(|step| {
                step.blobs.is_empty() || store.step(&step.record.key).is_ok_and(|found| found.is_some())
            });
            restored.missing = missing.len() + unknown.len() + found.len() - kept.count();
            break;
        }
        fetched.extend(sources.iter().map(|step| step.record.key));
        fetch(&puller, store, &sources, &mut restored, ui)?;
        let answers = in_parallel(WORKERS, new, |key| {
            let raw = sound_manifest(remote, &step_tag(&key), ui)?;
            Ok((key, raw.and_then(|raw| Step::read(&raw, &key))))
        })?;
        unpoisoned(&asked).extend(answers);
    }
    restored.steps = restored.here + restored.restored + restored.cheap + restored.missing;
    restored.fetched_bytes = puller.fetched.load(Ordering::Relaxed);
    restored.seconds = started.elapsed().as_secs_f64();
    Ok(restored)
}

/// Fetches steps; one of which something has vanished or is damaged is a miss.
fn fetch(
    puller: &Puller<'_>,
    store: &Store,
    steps: &[Step],
    restored: &mut Restored,
    ui: &Ui,
) -> Result<(), CommandError> {
    match fetch_whole(puller, store, steps, restored) {
        Err(error) if error.is_loss() && steps.len() > 1 => {
            for step in steps {
                fetch(puller, store, std::slice::from_ref(step), restored, ui)?;
            }
            Ok(())
        }
        Err(error) if error.is_loss() => {
            let label = steps.first().map_or("", |step| step.record.label.as_str());
            ui.warn(format!("{label} is left to build: {error}"));
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Fetches the layers of steps, and takes their records.
fn fetch_whole(
    puller: &Puller<'_>,
    store: &Store,
    steps: &[Step],
    restored: &mut Restored,
) -> Result<(), ShareError> {
    let wanted: Vec<LayerId> = steps.iter().flat_map(|step| step.record.layers.clone()).collect();
    let missing: HashSet<LayerId> = puller.lease.hold(&wanted)?.into_iter().collect();
    let blobs: Vec<LayerBlob> = steps.iter().flat_map(|step| step.blobs.clone()).collect();
    puller.layers(&missing, &blobs)?;
    let whole = steps.iter().filter(|step| step.record.layers.iter().all(|layer| store.has_layer(layer)));
    let records: Vec<ActionRecord> = whole.map(|step| step.record.clone()).collect();
    restored.restored += records.len();
    restored.seconds_saved += records.iter().map(|record| record.seconds).sum::<f64>();
    puller.take_records(records)?;
    Ok(())
}
