//! Publishing a built task: blobs before manifests, the tag last, so that it always names something whole.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use infradev_layers::{
    BlobDone, BlobSource, Compression, Kind, Metadata, Tree, TreeBuilder, merge, write_blob,
};
use infradev_store::{ActionRecord, LayerId, Lease, Store};
use serde::{Deserialize, Serialize};

use super::group::{Part, loose_parts, parts};
use super::image::{LayerBlob, RECORDS, compose};
use super::manifest::{Descriptor, EMPTY, MANIFEST, Manifest};
use super::{Digest, Remote, RemoteError, ShareError, Transfers, sound_manifest, unpoisoned};
use crate::build::root::BuiltTask;
use crate::build::unconfined::is_unconfined;
use crate::env::image::read_layers;
use crate::ui::{Ui, bytes};

/// The media type of action records.
pub(super) const RECORDS_BLOB: &str = "application/vnd.infradev.records.v1+json+zstd";
/// How many blobs are compressed or uploaded at once.
const WORKERS: usize = 4;

/// What a push did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Pushed {
    /// The task and variant.
    pub task: String,
    /// Where it is now: the place and the tag.
    pub reference: String,
    /// The digest of the image's manifest.
    pub digest: String,
    /// How many blobs it has, those of its records included.
    pub blobs: usize,
    /// How many were uploaded.
    pub uploaded: usize,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// How many came from another repository of the registry.
    pub mounted: usize,
    /// Bytes of those that were there before.
    pub present_bytes: u64,
    /// Whether the tag named this image before.
    pub unchanged: bool,
}

/// How a task is published.
#[derive(Debug, Clone, Copy)]
pub struct PushOptions {
    /// How blobs are compressed.
    pub compression: Compression,
    /// Whether what belongs to the image and is no part of it goes along: the records of its steps and their layers.
    pub records: bool,
}

/// Publishes `built` under `tag`. The lease holds its layers.
pub fn push(
    store: &Store,
    lease: &Lease,
    built: &BuiltTask,
    remote: &dyn Remote,
    tag: &str,
    options: PushOptions,
    ui: &Ui,
) -> Result<Pushed, ShareError> {
    let all: Vec<LayerId> = built.layers.iter().chain(&built.also).copied().collect();
    if let Some(layer) = lease.hold(&all)?.first() {
        return Err(infradev_store::Error::NoLayer(*layer).into());
    }
    let trees: HashMap<LayerId, Tree> = all.iter().copied().zip(read_layers(store, &all)?).collect();
    let mut of_image = parts(built, &trees);
    of_image.extend(exact_directories(built, &trees, &of_image));
    let loose = if options.records { loose_parts(&built.also, &trees) } else { vec![] };
    let publisher = Publisher::new(store, lease, remote, options.compression, ui)?;
    let mut blobs = publisher.publish(of_image.iter().chain(&loose).collect())?;
    let loose_blobs = blobs.split_off(of_image.len());

    let (configuration, manifest) = compose(built, &blobs);
    publisher.small_blob("the configuration", &configuration)?;
    let image = manifest.to_raw();
    let records = match options.records {
        true => Some(records_manifest(store, built, &image, &loose_blobs, &publisher)?),
        false => None,
    };
    let before = sound_manifest(remote, tag, ui)?;
    let unchanged = before.is_some_and(|before| before.digest == image.digest);
    if !unchanged {
        remote.put_manifest(&image.digest.to_string(), MANIFEST, &image.bytes)?;
    }
    if let Some(records) = records
        && !referrers(remote, &image.digest, ui)?.contains(&records.digest)
    {
        remote.put_manifest(&records.digest.to_string(), MANIFEST, &records.bytes)?;
        remote.add_referrer(&image.digest, &records, RECORDS)?;
    }
    if !unchanged {
        remote.put_manifest(tag, MANIFEST, &image.bytes)?;
    }
    let Counts { uploaded, uploaded_bytes, mounted, present_bytes } = publisher.counts();
    Ok(Pushed {
        task: built.name(),
        reference: format!("{}:{tag}", remote.name()),
        digest: image.digest.to_string(),
        blobs: blobs.len() + loose_blobs.len(),
        uploaded,
        uploaded_bytes,
        mounted,
        present_bytes,
        unchanged,
    })
}

/// Returns the records that were published beside an image, if it can be read which.
fn referrers(remote: &dyn Remote, image: &Digest, ui: &Ui) -> Result<Vec<Digest>, ShareError> {
    match remote.referrers(image, RECORDS) {
        Err(error @ RemoteError::Corrupt { .. }) => {
            ui.warn_once(&error);
            Ok(vec![])
        }
        read => Ok(read?),
    }
}

/// Makes the manifest of what belongs to an image and is no part of it: the records of its steps, and the layers
/// that these made and that are not in the stack.
fn records_manifest(
    store: &Store,
    built: &BuiltTask,
    image: &super::remote::RawManifest,
    loose: &[LayerBlob],
    publisher: &Publisher<'_>,
) -> Result<super::remote::RawManifest, ShareError> {
    let mut records: Vec<ActionRecord> = vec![];
    for step in &built.steps {
        // What ran without a sandbox is nobody else's to believe.
        records.extend(store.step(&step.key)?.filter(|record| !is_unconfined(record)));
    }
    records.sort_by_key(|record| record.key);
    records.dedup_by_key(|record| record.key);
    let text = serde_json::to_vec(&records).expect("plain data");
    let compressed = zstd::bulk::compress(&text, 9).expect("memory suffices");
    publisher.small_blob("the action records", &compressed)?;
    publisher.small_blob("an empty configuration", b"{}")?;
    let mut layers = vec![Descriptor::of(RECORDS_BLOB, &compressed)];
    layers.extend(loose.iter().map(LayerBlob::descriptor));
    let mut manifest = Manifest::new(Descriptor::of(EMPTY, b"{}"), layers);
    manifest.artifact_type = Some(RECORDS.to_owned());
    manifest.subject = Some(Descriptor::new(MANIFEST, image.digest, image.bytes.len() as u64));
    Ok(manifest.to_raw())
}

/// Archives describe every directory, also those that a layer only implies; where that would change what a lower
/// layer says of one, a last archive says it again.
pub(super) fn exact_directories(
    built: &BuiltTask,
    trees: &HashMap<LayerId, Tree>,
    parts: &[Part],
) -> Option<Part> {
    let wanted = merge(built.layers.iter().map(|layer| &trees[layer]));
    let shown: Vec<Tree> = parts.iter().map(|part| described(&part.tree)).collect();
    let shown = merge(&shown);
    let mut again = TreeBuilder::new();
    let mut any = false;
    for entry in wanted.entries().iter().filter(|entry| !entry.path.is_root() && entry.kind.is_directory()) {
        if shown.get(&entry.path) != Some(&entry.kind) {
            any = true;
            again.add(entry.path.clone(), entry.kind.clone()).expect("a tree has each path once");
        }
    }
    let tree = again.finish().expect("directories of a tree");
    // Its own parents would be implied: they are described as they are.
    let mut whole = TreeBuilder::new();
    for entry in tree.entries() {
        let kind = wanted.get(&entry.path).unwrap_or(&entry.kind).clone();
        whole.add(entry.path.clone(), kind).expect("a tree has each path once");
    }
    let tree = whole.finish().expect("directories of a tree");
    any.then(|| Part { layers: vec![], tree, number: 0, label: "directories".to_owned() })
}

/// What engines see of a tree.
fn described(tree: &Tree) -> Tree {
    let mut builder = TreeBuilder::new();
    for entry in tree.entries() {
        let kind = match &entry.kind {
            Kind::ImpliedDirectory if !entry.path.is_root() => {
                Kind::Directory { metadata: Metadata::implied(), opaque: false }
            }
            kind => kind.clone(),
        };
        builder.add(entry.path.clone(), kind).expect("a tree has each path once");
    }
    builder.finish().expect("a tree")
}

/// What is known of a blob that was made once.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    blob: BlobDone,
    /// Where it was uploaded to or found.
    places: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    uploaded: usize,
    pub(super) uploaded_bytes: u64,
    mounted: usize,
    present_bytes: u64,
}

pub(super) struct Publisher<'a> {
    store: &'a Store,
    lease: &'a Lease,
    remote: &'a dyn Remote,
    compression: Compression,
    ui: &'a Ui,
    transfers: Transfers,
    /// By blob, whether it is there: what several parts or steps have is published by one of them.
    settled: Mutex<HashMap<Digest, Arc<Mutex<bool>>>>,
    counts: Mutex<Counts>,
    sent: AtomicU64,
}

impl<'a> Publisher<'a> {
    pub(super) fn new(
        store: &'a Store,
        lease: &'a Lease,
        remote: &'a dyn Remote,
        compression: Compression,
        ui: &'a Ui,
    ) -> Result<Self, ShareError> {
        let transfers = Transfers::of(store)?;
        let (settled, counts, sent) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Ok(Self { store, lease, remote, compression, ui, transfers, settled, counts, sent })
    }

    fn settled(&self, digest: Digest) -> Arc<Mutex<bool>> {
        Arc::clone(unpoisoned(&self.settled).entry(digest).or_default())
    }

    pub(super) fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Publishes the blobs of `parts`, several at once, large ones first; returns them in the order of `parts`.
    pub(super) fn publish(&self, parts: Vec<&Part>) -> Result<Vec<LayerBlob>, ShareError> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(parts[*at].tree.apparent_bytes()));
        let blobs = super::in_parallel(WORKERS, order, |at| Ok((at, self.publish_one(parts[at])?)))?;
        let mut blobs: Vec<(usize, LayerBlob)> = blobs;
        blobs.sort_by_key(|(at, _)| *at);
        Ok(blobs.into_iter().map(|(_, blob)| blob).collect())
    }

    fn publish_one(&self, part: &Part) -> Result<LayerBlob, ShareError> {
        let name = self.cache_name(part);
        let (facts_path, blob_path) = (
            self.transfers.made.join(format!("{name}.json")),
            self.transfers.made.join(format!("{name}.blob")),
        );
        let known: Option<Facts> =
            fs::read(&facts_path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let mut facts = match known {
            Some(facts) => facts,
            None => Facts { blob: self.make(part, &blob_path)?, places: vec![] },
        };
        let blob = |facts: &Facts| LayerBlob {
            digest: Digest::from_bytes(facts.blob.digest),
            size: facts.blob.size,
            diff_id: Some(Digest::from_bytes(facts.blob.diff_id)),
            compression: self.compression,
            layers: part.layers.clone(),
            toc: facts.blob.toc,
        };
        let made = blob(&facts);
        let settled = self.settled(made.digest);
        let mut settled = unpoisoned(&settled);
        if *settled {
            return Ok(made);
        }
        let place = self.remote.name();
        self.ui.moving("look for", || part.label.clone());
        if self.remote.has_blob(&made.digest, made.size)? {
            self.count(|counts| counts.present_bytes += made.size);
        } else if self.mount(&made.digest, &facts.places)? {
            self.count(|counts| counts.mounted += 1);
        } else {
            if !fs::metadata(&blob_path).is_ok_and(|found| found.len() == made.size) {
                // Collected since it was made; another version of the compressor may give other bytes.
                facts = Facts { blob: self.make(part, &blob_path)?, places: vec![] };
            }
            self.upload(&blob(&facts), &blob_path, &part.label)?;
        }
        if !facts.places.contains(&place) {
            facts.places.push(place);
            let text = serde_json::to_vec(&facts).expect("plain data");
            let temporary = facts_path.with_extension(format!("{}.tmp", std::process::id()));
            let _made_again_next_time =
                fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &facts_path));
        }
        *settled = true;
        Ok(blob(&facts))
    }

    fn mount(&self, digest: &Digest, places: &[String]) -> Result<bool, ShareError> {
        for place in places.iter().filter(|place| **place != self.remote.name()) {
            if self.remote.mount_blob(digest, place)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Compresses a part into the cache.
    fn make(&self, part: &Part, path: &Path) -> Result<BlobDone, ShareError> {
        let label = format!("compress {}", part.label);
        self.ui.started(&label);
        let made = self.compress(part, path);
        let size = made.as_ref().map_or(0, |made| made.size);
        self.ui.finished(&label, if made.is_ok() { "made" } else { "failed" }, &bytes(size));
        made
    }

    fn compress(&self, part: &Part, path: &Path) -> Result<BlobDone, ShareError> {
        let layers = part.layers.iter().map(|layer| self.store.layer(layer)).collect::<Result<_, _>>()?;
        let source = BlobSource { layers, tree: &part.tree };
        let open = |object: &infradev_store::ObjectId| {
            File::open(self.store.plain(object, self.lease).map_err(io::Error::other)?)
        };
        let failed = |error| infradev_store::Error::io("write", path, error);
        let temporary = self.lease.new_directory("blob")?.join("blob");
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&temporary).map_err(failed)?);
        let done = write_blob(&source, self.compression, &open, &mut file)?;
        file.flush().map_err(failed)?;
        fs::rename(&temporary, path).map_err(failed)?;
        Ok(done)
    }

    fn upload(&self, blob: &LayerBlob, path: &Path, label: &str) -> Result<(), ShareError> {
        let label = format!("upload {label}");
        let mut file = File::open(path).map_err(|error| infradev_store::Error::io("open", path, error))?;
        self.ui.started(&label);
        let progress = |count: u64| {
            let sent = self.sent.fetch_add(count, Ordering::Relaxed) + count;
            self.ui.moving("upload", || format!("{} sent", bytes(sent)));
        };
        let done = self.remote.put_blob(&blob.digest, blob.size, &mut file, &progress);
        self.ui.finished(&label, if done.is_ok() { "sent" } else { "failed" }, &bytes(blob.size));
        done?;
        self.count(|counts| {
            counts.uploaded += 1;
            counts.uploaded_bytes += blob.size;
        });
        Ok(())
    }

    /// Uploads a blob that is in memory, unless it is there.
    pub(super) fn small_blob(&self, what: &str, content: &[u8]) -> Result<(), ShareError> {
        let (digest, size) = (Digest::of(content), content.len() as u64);
        let settled = self.settled(digest);
        let mut settled = unpoisoned(&settled);
        if *settled {
            return Ok(());
        }
        if self.remote.has_blob(&digest, size)? {
            self.count(|counts| counts.present_bytes += size);
            *settled = true;
            return Ok(());
        }
        let path = self.lease.new_directory("blob")?.join("small");
        let failed = |error| infradev_store::Error::io("write", &path, error);
        fs::write(&path, content).map_err(failed)?;
        let mut file = File::open(&path).map_err(failed)?;
        self.ui.detail(format!("uploading {what}: {}", bytes(size)));
        self.remote.put_blob(&digest, size, &mut file, &|_| {})?;
        *settled = true;
        self.count(|counts| {
            counts.uploaded += 1;
            counts.uploaded_bytes += size;
        });
        Ok(())
    }

    /// Names a blob by everything that it is made of.
    fn cache_name(&self, part: &Part) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("infradev blob v1");
        hasher.update(self.compression.word().as_bytes());
        hasher.update(&(part.layers.len() as u64).to_le_bytes());
        for layer in &part.layers {
            hasher.update(layer.as_bytes());
        }
        hasher.update(&(part.number as u64).to_le_bytes());
        hasher.update(&part.tree.encode());
        hasher.finalize().to_hex().to_string()
    }
}
