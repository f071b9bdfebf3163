//! Writing: bytes become objects, encodings become layers, both visible only when complete and durable.
//!
//! The order of events, each kept by a test:
//!
//! 1. A lease is held before the first byte.
//! 2. Content is hashed while it is written below `tmp/<lease>`; what the store has is not written again.
//! 3. `commit` syncs the file system once, renames the objects, then the layers, then the records to their
//!    names under the shared commit lock, syncs once more, and writes the rows of the index.
//!
//! No file is synced by itself: one `syncfs(2)` costs about as much as one `fsync(2)`. A crash leaves garbage
//! below `tmp`, or complete objects that no layer needs; never a name with wrong bytes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Timespec, Timestamps};

use crate::action::ActionRecord;
use crate::disk::{Disk, DiskFile};
use crate::error::{Context, Error, Result};
use crate::index::LayerRow;
use crate::lock::{Lock, Mode};
use crate::pack::Tier;
use crate::references::{self, Reference};
use crate::{LayerId, Lease, ObjectId, Store};

/// Content up to this many bytes is held in memory and hashed before anything is written, so that known
/// content costs no write at all. Larger than 99 % of the files of a Python environment.
const IN_MEMORY: usize = 1 << 20;

/// Directories that a batch spreads its files over: the kernel makes one file at a time in each.
const SLOTS: u64 = 16;

/// The modification time of every object: 1980-01-01, the earliest date that a zip archive can hold.
/// Environments never see it; it is fixed so that backups and copies of a store are equal.
pub(crate) const OBJECT_MTIME: i64 = 315_532_800;

/// Level of the encodings; they are small, and read at every merge.
const ENCODING_LEVEL: i32 = 3;

/// A batch of new objects, layers and records. Dropped without [`Ingest::commit`], it leaves nothing.
///
/// All methods but `commit` may be called from many threads.
#[derive(Debug)]
pub struct Ingest<'a> {
    store: &'a Store,
    lease: &'a Lease,
    staging: PathBuf,
    staged: Mutex<HashMap<ObjectId, PathBuf>>,
    layers: Mutex<Vec<NewLayer>>,
    steps: Mutex<Vec<ActionRecord>>,
    counter: AtomicU64,
    written: AtomicU64,
    /// Whether the last large content was known.
    expects_known: AtomicBool,
}

#[derive(Debug)]
struct NewLayer {
    row: LayerRow,
    references: Vec<references::Reference>,
    encoded: Encoded,
}

/// Where the encoding of a layer is until its commit.
#[derive(Debug)]
enum Encoded {
    /// Staged, compressed.
    New(PathBuf),
    /// In the store; and here, since a collection may take it until a lease names it.
    Known(Vec<u8>),
}

/// What a commit did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Committed {
    /// Layers that the store did not have.
    pub layers: u64,
    /// Objects that the store did not have.
    pub objects: u64,
    /// Their sizes in bytes.
    pub bytes: u64,
}

impl Store {
    /// Begins a batch under `lease`.
    pub fn ingest<'a>(&'a self, lease: &'a Lease) -> Result<Ingest<'a>> {
        self.writable()?;
        Ok(Ingest {
            store: self,
            lease,
            staging: lease.new_directory("ingest")?,
            staged: Mutex::default(),
            layers: Mutex::default(),
            steps: Mutex::default(),
            counter: AtomicU64::new(0),
            written: AtomicU64::new(0),
            expects_known: AtomicBool::new(false),
        })
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic in another thread ends the batch; what it held is still consistent.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Ingest<'_> {
    /// Takes `content` as an object; returns its id.
    pub fn put_bytes(&self, content: &[u8]) -> Result<ObjectId> {
        let object = ObjectId::of(content);
        if !self.knows(&object, content.len() as u64)? {
            let (path, mut file) = self.create()?;
            file.write_all(content).at("write", &path)?;
            self.keep(object, content.len() as u64, path, &file)?;
        }
        Ok(object)
    }

    /// Takes all that `reader` gives as an object; returns its id and size in bytes.
    ///
    /// Errors of `reader` are told apart by [`PutError`].
    pub fn put(&self, reader: &mut dyn Read) -> std::result::Result<(ObjectId, u64), PutError> {
        self.take(reader, 64 << 10).map(|(object, size, _)| (object, size))
    }

    /// As [`Self::put`], of a content of about `expected` bytes; also returns whether a large content was known.
    fn take(
        &self,
        reader: &mut dyn Read,
        expected: usize,
    ) -> std::result::Result<(ObjectId, u64, bool), PutError> {
        // With room to spare, the end is seen without growing.
        let mut buffer = Vec::with_capacity(expected.min(IN_MEMORY) + 1);
        reader.take(IN_MEMORY as u64).read_to_end(&mut buffer).map_err(PutError::Read)?;
        if buffer.len() < IN_MEMORY {
            return Ok((self.put_bytes(&buffer)?, buffer.len() as u64, false));
        }
        let (path, mut file) = self.create()?;
        let mut hasher = blake3::Hasher::new();
        let mut size = 0;
        let mut filled = buffer.len();
        while filled > 0 {
            hasher.update(&buffer[..filled]);
            file.write_all(&buffer[..filled]).at("write", &path)?;
            size += filled as u64;
            filled = fill(reader, &mut buffer).map_err(PutError::Read)?;
        }
        let object = hasher.finalize().into();
        let known = self.knows(&object, size)?;
        if known {
            self.disk().remove_file(&path).at("remove", &path)?;
        } else {
            self.keep(object, size, path, &file)?;
        }
        Ok((object, size, known))
    }

    /// Takes all of `file`, from where it stands, as an object; returns its id and size in bytes.
    ///
    /// A large file is copied while it is hashed, in one pass. Only where the last large one turned out to be known
    /// is the next one hashed first: a copy that is thrown away costs more than a second read of one that is not.
    pub fn put_file(&self, file: &mut File) -> std::result::Result<(ObjectId, u64), PutError> {
        let size = file.metadata().map_err(PutError::Read)?.len();
        if size >= IN_MEMORY as u64 && self.expects_known.load(Ordering::Relaxed) {
            let begin = file.stream_position().map_err(PutError::Read)?;
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(&mut *file).map_err(PutError::Read)?;
            let (object, size) = (hasher.finalize().into(), hasher.count());
            if self.knows(&object, size)? {
                return Ok((object, size));
            }
            file.seek(std::io::SeekFrom::Start(begin)).map_err(PutError::Read)?;
        }
        let (object, size, known) = self.take(file, usize::try_from(size).unwrap_or(IN_MEMORY))?;
        if size >= IN_MEMORY as u64 {
            self.expects_known.store(known, Ordering::Relaxed);
        }
        Ok((object, size))
    }

    /// Takes `encoding` as a layer, all of whose objects were put or are in the store. Those of a shared store are
    /// copied: a layer and its objects are in one store.
    pub fn put_layer(&self, encoding: &[u8]) -> Result<LayerId> {
        let layer = LayerId::of(encoding);
        let (references, _) = references::read_head(encoding)?;
        self.copy_shared(&references)?;
        let bytes = references.iter().map(|reference| reference.size).sum();
        let row = LayerRow { layer, objects: references.len() as u64, bytes, tier: Tier::Hot };
        let encoded = match self.store.has_layer(&layer) && self.store.trusts_layer(&layer) {
            true => Encoded::Known(encoding.to_vec()),
            false => Encoded::New(self.stage(encoding)?.0),
        };
        unpoisoned(&self.layers).push(NewLayer { row, references, encoded });
        Ok(layer)
    }

    fn copy_shared(&self, references: &[Reference]) -> Result<()> {
        if self.store.shared().is_empty() {
            return Ok(());
        }
        for reference in references {
            if !self.knows(&reference.object, reference.size)?
                && let Some(path) = self.store.shared_object(reference)
            {
                let mut file = File::open(&path).at("open", &path)?;
                match self.put_file(&mut file) {
                    Ok(_) => {}
                    Err(PutError::Read(error)) => return Err(error).at("read", &path),
                    Err(PutError::Store(error)) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn stage(&self, encoding: &[u8]) -> Result<(PathBuf, DiskFile)> {
        let (path, mut file) = self.create()?;
        let compressed = zstd::bulk::compress(encoding, ENCODING_LEVEL).at("compress", &path)?;
        file.write_all(&compressed).at("write", &path)?;
        Ok((path, file))
    }

    /// Returns where the content of an object of this batch, or of the store, can be read now. What is only in
    /// a pack is made plain for it.
    pub fn content(&self, object: &ObjectId) -> Result<PathBuf> {
        let staged = unpoisoned(&self.staged).get(object).cloned();
        staged.map_or_else(|| self.store.plain(object, self.lease), Ok)
    }

    /// Records that a step made layers of this batch or of the store.
    pub fn put_step(&self, record: ActionRecord) {
        unpoisoned(&self.steps).push(record);
    }

    /// Bytes of content written so far; known content is not written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Makes everything visible, durable and indexed.
    pub fn commit(self) -> Result<Committed> {
        let staged = std::mem::take(&mut *unpoisoned(&self.staged));
        let mut layers = std::mem::take(&mut *unpoisoned(&self.layers));
        let steps = std::mem::take(&mut *unpoisoned(&self.steps));
        let layout = self.store.layout();
        let mut committed = Committed::default();
        let mut steps_staged = vec![];
        for step in &steps {
            let (path, mut file) = self.create()?;
            file.write_all(&crate::seal::sealed(step)).at("write", &path)?;
            steps_staged.push((path, layout.step(&step.key)));
        }
        let staged_layer = |layer: &NewLayer| matches!(layer.encoded, Encoded::New(_));
        if !staged.is_empty() || !steps.is_empty() || layers.iter().any(staged_layer) {
            self.sync()?;
        }
        {
            let _commit = Lock::wait(&layout.commit_lock(), Mode::Shared)?;
            let ids: Vec<LayerId> = layers.iter().map(|layer| layer.row.layer).collect();
            self.lease.note(&ids)?;
            for layer in &mut layers {
                let mut tiers = vec![];
                for reference in &layer.references {
                    tiers.push(self.make_visible(reference, &staged, &mut committed)?);
                }
                layer.row.tier = Tier::of_all(tiers);
            }
            for layer in &layers {
                match &layer.encoded {
                    Encoded::New(path) => self.name_layer(path, &layer.row.layer)?,
                    Encoded::Known(_) if self.store.has_layer(&layer.row.layer) => continue,
                    // Collected since it was put, as nothing needed it then.
                    Encoded::Known(encoding) => {
                        let (path, file) = self.stage(encoding)?;
                        file.sync().at("sync", &path)?;
                        self.name_layer(&path, &layer.row.layer)?;
                    }
                }
                committed.layers += 1;
            }
            for (path, name) in &steps_staged {
                self.replace(path, name)?;
            }
        }
        self.sync()?;
        let rows: Vec<LayerRow> = layers.iter().map(|layer| layer.row).collect();
        self.store.index()?.add(&rows, &steps)?;
        Ok(committed)
    }

    /// Moves an object of a new layer to its name, or finds it there or in a pack, or takes it back from the trash.
    fn make_visible(
        &self,
        reference: &references::Reference,
        staged: &HashMap<ObjectId, PathBuf>,
        committed: &mut Committed,
    ) -> Result<Tier> {
        let name = self.store.layout().object(&reference.object);
        if let Some(tier) = self.tier(reference) {
            return Ok(tier);
        }
        if let Some(path) = staged.get(&reference.object) {
            // Replaces what a failing disk made of the object.
            self.replace(path, &name)?;
            self.store.trust_object(&reference.object);
            committed.objects += 1;
            committed.bytes += reference.size;
            return Ok(Tier::Hot);
        }
        let _another_process_may_be_faster = self.store.revive(&reference.object)?;
        self.tier(reference).ok_or(Error::NoObject(reference.object))
    }

    /// Whether the content need not be written: it is staged already, or in the store. Content in the trash is
    /// taken back at once, since only what a lease saw under its name is safe from deletion.
    fn knows(&self, object: &ObjectId, size: u64) -> Result<bool> {
        if size == 0 || unpoisoned(&self.staged).contains_key(object) {
            return Ok(true);
        }
        let reference = references::Reference { object: *object, size };
        if self.tier(&reference).is_some() {
            return Ok(true);
        }
        Ok(self.store.trusts_object(object) && self.store.revive(object)? && self.tier(&reference).is_some())
    }

    /// How the store has the object, as far as that can be seen without reading it.
    fn tier(&self, reference: &references::Reference) -> Option<Tier> {
        self.store.tier_of(reference).filter(|_| self.store.trusts_object(&reference.object))
    }

    fn keep(&self, object: ObjectId, size: u64, path: PathBuf, file: &DiskFile) -> Result<()> {
        set_object_time(file.file()).at("set the time of", &path)?;
        self.written.fetch_add(size, Ordering::Relaxed);
        let twin = unpoisoned(&self.staged).insert(object, path);
        twin.map_or(Ok(()), |twin| self.disk().remove_file(&twin).at("remove", &twin))
    }

    fn create(&self) -> Result<(PathBuf, DiskFile)> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let slot = self.staging.join((number % SLOTS).to_string());
        let path = slot.join(number.to_string());
        // Mode 0444 from the start: an object can be opened for writing only here.
        let file = match self.disk().create(&path, 0o444) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                match self.disk().create_directory(&slot) {
                    Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
                    _ => self.disk().create(&path, 0o444),
                }
            }
            other => other,
        };
        Ok((path.clone(), file.at("create", &path)?))
    }

    fn sync(&self) -> Result<()> {
        let path = self.store.layout().root();
        self.disk().sync_file_system(path).at("sync", path)
    }

    fn disk(&self) -> &Disk {
        self.store.disk()
    }

    /// Gives a new layer its name, unless another process was faster.
    fn name_layer(&self, from: &Path, layer: &LayerId) -> Result<()> {
        use std::io::ErrorKind::{AlreadyExists, InvalidInput};
        let to = self.store.layout().layer(layer);
        if !self.store.trusts_layer(layer) {
            self.replace(from, &to)?;
            self.store.trust_layer(layer);
            return Ok(());
        }
        match self.disk().rename_new(from, &to) {
            Err(error) if error.kind() == AlreadyExists && self.store.has_layer(layer) => {
                self.disk().remove_file(from).at("remove", from)
            }
            // Damaged, or a file system without RENAME_NOREPLACE: replacing equal content is harmless.
            Err(error) if matches!(error.kind(), AlreadyExists | InvalidInput) => self.replace(from, &to),
            other => other.at("rename", &to),
        }
    }

    /// Renames `from` to `to`, whatever a failing disk has put there.
    fn replace(&self, from: &Path, to: &Path) -> Result<()> {
        if fs::symlink_metadata(to).is_ok_and(|metadata| metadata.is_dir()) {
            self.disk().remove_tree(to)?;
        }
        self.disk().rename(from, to).at("rename", to)
    }
}

impl Drop for Ingest<'_> {
    fn drop(&mut self) {
        // What a commit moved is gone from here; the rest goes with the lease if it cannot go now.
        let _goes_with_the_lease = self.disk().remove_tree(&self.staging);
    }
}

/// Why content could not be put.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The content could not be read.
    #[error("the content cannot be read")]
    Read(#[source] std::io::Error),
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Reads until `buffer` is full or the reader ends; returns how much was read.
fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Gives an object its time.
pub(crate) fn set_object_time(file: &fs::File) -> rustix::io::Result<()> {
    let time = Timespec { tv_sec: OBJECT_MTIME, tv_nsec: 0 };
    rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })
}

/// Returns how many bytes `metadata` takes on disk.
pub(crate) fn disk_bytes(metadata: &fs::Metadata) -> u64 {
    metadata.blocks() * 512
}
