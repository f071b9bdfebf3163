//! Fetching a published task: what it names is checked, and only what the store lacks is moved.
//!
//! The digest of the manifest vouches for the tables of contents, these for the encodings of layers, and these, by
//! blake3, for every file. A layer is in the store when it has its name; the task is, when all of its layers are.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use infradev_layers::{Toc, Tree};
use infradev_store::references::Reference;
use infradev_store::{ActionRecord, LayerId, Lease, RootKind, Store};
use serde::Serialize;

use super::fetch::{Fetched, fetch_frames, fetch_whole};
use super::image::{LayerBlob, RECORDS, manifest_of, take_apart};
use super::manifest::{Descriptor, Manifest};
use super::push::RECORDS_BLOB;
use super::{Remote, RemoteError, ShareError, Transfers, in_parallel, named};
use crate::build::root::BuiltTask;
use crate::build::unconfined::is_unconfined;
use crate::ui::{Ui, bytes};

/// No configuration is larger.
const MAX_CONFIG: u64 = 16 << 20;
/// Records are not larger, compressed or not.
const MAX_RECORDS: u64 = 256 << 20;
/// How many blobs are fetched at once.
const WORKERS: usize = 4;
/// Small blobs are committed together, up to so many bytes.
const BATCH: u64 = 64 << 20;

/// What a pull did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Pulled {
    /// The task and variant.
    pub task: String,
    /// Where it is from.
    pub reference: String,
    /// The digest of the image's manifest.
    pub digest: String,
    /// Layers that the store had not.
    pub layers: usize,
    /// Objects that it had not.
    pub objects: usize,
    /// Bytes of what was missing, as it is compressed: what a pull cannot do without.
    pub missing_bytes: u64,
    /// Bytes that were fetched: blobs and parts of them, tables, manifests.
    pub fetched_bytes: u64,
    /// Bytes of all blobs of the image.
    pub image_bytes: u64,
    /// Action records that were taken.
    pub records: usize,
    /// Action records that were not, since nobody trusts the place.
    pub untrusted_records: usize,
}

/// Fetches the task that `reference`, a tag or digest, names.
///
/// With `trusted`, takes the records of its steps too, so that builds find them.
pub fn pull(
    store: &Store,
    lease: &Lease,
    remote: &dyn Remote,
    reference: &str,
    trusted: bool,
    ui: &Ui,
) -> Result<Pulled, ShareError> {
    let raw = remote.manifest(reference)?.ok_or_else(|| RemoteError::Absent {
        place: remote.name(),
        what: format!("the image `{reference}`"),
    })?;
    let wrong = |error: super::image::ImageError| ShareError::Image {
        reference: named(remote, reference),
        detail: error.to_string(),
    };
    let manifest = manifest_of(&raw).map_err(wrong)?;
    let puller = Puller::new(store, lease, remote, ui)?;
    puller.count(raw.bytes.len() as u64);
    let configuration = puller.small_blob(&manifest.config, MAX_CONFIG)?;
    let published = take_apart(&manifest, &configuration).map_err(wrong)?;
    let built = published.built;
    let records = puller.records(&raw.digest)?;
    let mut pulled = Pulled {
        task: built.name(),
        reference: named(remote, reference),
        digest: raw.digest.to_string(),
        image_bytes: published.blobs.iter().map(|blob| blob.size).sum(),
        ..Pulled::default()
    };

    let mut blobs = published.blobs;
    let mut wanted: Vec<LayerId> = built.layers.clone();
    if let Some(records) = records.as_ref().filter(|_| trusted) {
        blobs.extend(records.blobs.iter().cloned());
        wanted.extend(&built.also);
    }
    let missing: HashSet<LayerId> = lease.hold(&wanted)?.into_iter().collect();
    let moved = puller.layers(&missing, &blobs)?;
    (pulled.layers, pulled.objects, pulled.missing_bytes) = (missing.len(), moved.objects, moved.bytes);
    if let Some(layer) = lease.hold(&wanted)?.first() {
        return Err(wrong(super::image::ImageError(format!("none of its blobs has layer {layer}"))));
    }
    match records {
        Some(records) if trusted => pulled.records = puller.take_records(records.records)?,
        Some(records) => pulled.untrusted_records = records.records.len(),
        None => {}
    }
    // Layers that only builds need are no part of what was asked for, where records are not taken.
    let also = if trusted { built.also.clone() } else { vec![] };
    let also = also.into_iter().filter(|layer| store.reaches_layer(layer)).collect();
    let built = BuiltTask { also, ..built };
    store.set_root(RootKind::Task, &built.name(), &built)?;
    pulled.fetched_bytes = puller.fetched.load(Ordering::Relaxed);
    Ok(pulled)
}

/// What was new of some layers.
pub(super) struct Moved {
    objects: usize,
    /// As it was compressed.
    bytes: u64,
}

/// What belongs to an image and is no part of it.
struct Records {
    records: Vec<ActionRecord>,
    blobs: Vec<LayerBlob>,
}

/// A blob with layers that are missing: what of it is needed.
struct Need<'a> {
    blob: &'a LayerBlob,
    toc: Toc,
    /// The encodings of the missing layers.
    layers: Vec<(LayerId, Vec<u8>)>,
    /// Objects to take from this blob.
    objects: HashSet<Reference>,
}

pub(super) struct Puller<'a> {
    store: &'a Store,
    pub(super) lease: &'a Lease,
    remote: &'a dyn Remote,
    ui: &'a Ui,
    transfers: Transfers,
    /// Bytes that came over so far.
    pub(super) fetched: AtomicU64,
}

impl<'a> Puller<'a> {
    pub(super) fn new(
        store: &'a Store,
        lease: &'a Lease,
        remote: &'a dyn Remote,
        ui: &'a Ui,
    ) -> Result<Self, ShareError> {
        let (transfers, fetched) = (Transfers::of(store)?, AtomicU64::new(0));
        Ok(Self { store, lease, remote, ui, transfers, fetched })
    }

    /// Fetches the layers `missing` from `blobs`; returns what of their content was new.
    pub(super) fn layers(
        &self,
        missing: &HashSet<LayerId>,
        blobs: &[LayerBlob],
    ) -> Result<Moved, ShareError> {
        let holds = |blob: &&LayerBlob| blob.layers.iter().any(|layer| missing.contains(layer));
        let holding: Vec<&LayerBlob> = blobs.iter().filter(holds).collect();
        let needs = in_parallel(WORKERS, holding, |blob| self.need(blob, missing))?;
        let objects: HashSet<Reference> = needs.iter().flat_map(|need| &need.objects).copied().collect();
        self.check_room(objects.iter().map(|object| object.size).sum())?;
        let mut left = objects.clone();
        let frames = needs.iter().flat_map(|need| &need.toc.frames);
        let bytes = frames.filter(|frame| left.remove(&frame.object)).map(|frame| frame.length).sum();
        let parts: HashMap<LayerId, usize> =
            needs.iter().flat_map(|need| &need.layers).fold(HashMap::new(), |mut parts, (layer, _)| {
                *parts.entry(*layer).or_default() += 1;
                parts
            });
        let (alone, shared): (Vec<Need<'_>>, Vec<Need<'_>>) =
            needs.into_iter().partition(|need| need.layers.iter().all(|(layer, _)| parts[layer] == 1));
        let alone = batches(alone);
        in_parallel(WORKERS, alone, |batch| self.take(&batch))?;
        // What is spread over several blobs is committed when all of it is here.
        if !shared.is_empty() {
            self.take(&shared)?;
        }
        Ok(Moved { objects: objects.len(), bytes })
    }

    /// Finds out what is needed of a blob.
    fn need<'b>(&self, blob: &'b LayerBlob, missing: &HashSet<LayerId>) -> Result<Need<'b>, ShareError> {
        let toc = self.toc(blob)?;
        let mut layers = vec![];
        let mut objects = HashSet::new();
        for encoding in &toc.layers {
            let layer = LayerId::of(encoding);
            if missing.contains(&layer) && blob.layers.contains(&layer) {
                let tree = Tree::decode(encoding).map_err(|error| {
                    self.corrupt(blob, format!("holds layer {layer}, which is damaged: {error}"))
                })?;
                objects.extend(tree.references());
                layers.push((layer, encoding.clone()));
            }
        }
        if let Some(absent) = blob
            .layers
            .iter()
            .find(|layer| missing.contains(layer) && !layers.iter().any(|(found, _)| found == *layer))
        {
            return Err(self.corrupt(blob, format!("should hold layer {absent}, and does not")));
        }
        let here: HashSet<Reference> = toc.frames.iter().map(|frame| frame.object).collect();
        objects.retain(|object| here.contains(object) && !self.store.has_object(object));
        Ok(Need { blob, toc, layers, objects })
    }

    fn toc(&self, blob: &LayerBlob) -> Result<Toc, ShareError> {
        let tail = match self.remote.blob_part(&blob.digest, blob.toc.offset, blob.toc.length)? {
            Some(tail) => tail,
            None => {
                super::fetch::tail_of_whole(&self.transfers, self.remote, blob, &|count| self.count(count))?
            }
        };
        self.count(tail.len() as u64);
        let toc = blob.toc.read(&tail, blob.compression, blob.toc.offset);
        toc.map_err(|error| self.corrupt(blob, error.to_string()))
    }

    /// Takes what is needed of some blobs, and commits it.
    fn take(&self, needs: &[Need<'_>]) -> Result<(), ShareError> {
        let ingest = self.store.ingest(self.lease)?;
        // What two batches have is fetched by both: neither waits for the other, and that is little.
        let mut taken = HashSet::new();
        for need in needs {
            let objects: HashSet<Reference> =
                need.objects.iter().filter(|object| taken.insert(**object)).copied().collect();
            let size: u64 = objects.iter().map(|object| object.size).sum();
            let label = format!("fetch {}", label(&need.layers));
            self.ui.started(&label);
            let count = |count: u64| self.count(count);
            let mut left = objects.clone();
            let wanted = need.toc.frames.iter().filter(|frame| left.remove(&frame.object));
            let frames: Vec<_> = wanted.copied().collect();
            let wanted: u64 = frames.iter().map(|frame| frame.length).sum();
            let what =
                Fetched { transfers: &self.transfers, remote: self.remote, blob: need.blob, ingest: &ingest };
            // Nearly all of it: then all, which also checks the archive as engines would read it.
            let mut done = if wanted * 20 >= need.blob.size * 19 {
                Ok(false)
            } else {
                fetch_frames(&what, &frames, &count)
            };
            if let Ok(false) = done {
                done = fetch_whole(&what, &need.toc, &objects, &count).map(|()| true);
            }
            self.ui.finished(&label, if done.is_ok() { "fetched" } else { "failed" }, &bytes(size));
            done?;
        }
        let mut put = HashSet::new();
        for (layer, encoding) in needs.iter().flat_map(|need| &need.layers) {
            if put.insert(layer) {
                ingest.put_layer(encoding)?;
            }
        }
        ingest.commit()?;
        Ok(())
    }

    /// Fetches what was published beside an image.
    fn records(&self, image: &super::Digest) -> Result<Option<Records>, ShareError> {
        let Some(digest) = self.remote.referrers(image, RECORDS)?.pop() else { return Ok(None) };
        let reference = digest.to_string();
        let Some(raw) = self.remote.manifest(&reference)? else { return Ok(None) };
        self.count(raw.bytes.len() as u64);
        let corrupt = |detail: String| RemoteError::Corrupt {
            place: self.remote.name(),
            what: format!("the action records {reference}"),
            detail,
        };
        let manifest: Manifest = manifest_of(&raw).map_err(|error| corrupt(format!("are none: {error}")))?;
        let Some((first, others)) =
            manifest.layers.split_first().filter(|(first, _)| first.media_type == RECORDS_BLOB)
        else {
            return Err(corrupt("are of an unknown form".to_owned()).into());
        };
        let compressed = self.small_blob(first, MAX_RECORDS)?;
        let mut text = vec![];
        let read = zstd::Decoder::new(&compressed[..])
            .and_then(|decoder| decoder.take(MAX_RECORDS).read_to_end(&mut text));
        read.map_err(|error| corrupt(format!("cannot be decompressed: {error}")))?;
        let records =
            serde_json::from_slice(&text).map_err(|error| corrupt(format!("cannot be read: {error}")))?;
        let blobs = others.iter().filter_map(|other| LayerBlob::read(other, None)).collect();
        Ok(Some(Records { records, blobs }))
    }

    /// Takes the records all of whose layers are here; returns how many.
    pub(super) fn take_records(&self, records: Vec<ActionRecord>) -> Result<usize, ShareError> {
        let ingest = self.store.ingest(self.lease)?;
        let mut taken = 0;
        for record in records {
            let is_whole = record.layers.iter().all(|layer| self.store.has_layer(layer));
            if is_whole && !is_unconfined(&record) && self.store.step(&record.key)?.is_none() {
                ingest.put_step(record);
                taken += 1;
            }
        }
        ingest.commit()?;
        Ok(taken)
    }

    fn small_blob(&self, descriptor: &Descriptor, most: u64) -> Result<Vec<u8>, ShareError> {
        let content = super::fetch::small_blob(self.remote, descriptor, most)?;
        self.count(content.len() as u64);
        Ok(content)
    }

    fn check_room(&self, needed: u64) -> Result<(), ShareError> {
        let free = self.store.free_bytes()?;
        match needed + needed / 20 <= free {
            true => Ok(()),
            false => Err(ShareError::Room { needed, free }),
        }
    }

    fn corrupt(&self, blob: &LayerBlob, detail: String) -> ShareError {
        RemoteError::Corrupt { place: self.remote.name(), what: format!("blob {}", blob.digest), detail }
            .into()
    }

    fn count(&self, count: u64) {
        let fetched = self.fetched.fetch_add(count, Ordering::Relaxed) + count;
        self.ui.moving("fetch", || format!("{} fetched", bytes(fetched)));
    }
}

fn label(layers: &[(LayerId, Vec<u8>)]) -> String {
    match layers {
        [(layer, _)] => format!("layer {}", layer.short()),
        layers => crate::ui::counted(layers.len(), "layer"),
    }
}

/// Puts small needs together, so that not every small blob costs two syncs of the file system.
fn batches(needs: Vec<Need<'_>>) -> Vec<Vec<Need<'_>>> {
    let mut batches: Vec<(u64, Vec<Need<'_>>)> = vec![];
    for need in needs {
        let size: u64 = need.objects.iter().map(|object| object.size).sum();
        match batches.last_mut() {
            Some((filled, batch)) if *filled + size <= BATCH => {
                *filled += size;
                batch.push(need);
            }
            _ => batches.push((size, vec![need])),
        }
    }
    batches.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    batches.into_iter().map(|(_, batch)| batch).collect()
}
