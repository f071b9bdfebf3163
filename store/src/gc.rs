//! Garbage collection: what no root needs goes, in two phases, beside running writers.
//!
//! A plan is computed without locks and may be shown. Carrying it out takes the commit lock exclusively, adds
//! what became live since, and moves the rest out of the way; deletion comes after, when no lease that was
//! alive then is alive any more. What cannot be judged stays: an unreadable root or live layer stops the collection.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rayon::prelude::*;

use crate::error::{Context, Error, Result};
use crate::ingest::disk_bytes;
use crate::lease::{live_leases, names};
use crate::lock::Lock;
use crate::references::read_head;
use crate::roots::file_roots;
use crate::{LayerId, Lease, ObjectId, PackId, StackId, StepKey, Store};

/// Commits hold their lock for as long as some renames take; who holds it longer is stopped.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What a collection would remove.
#[derive(Debug, Default)]
pub struct GcPlan {
    /// How many roots there are: tasks, pins, environments and live leases.
    pub roots: usize,
    /// Layers that roots need.
    pub live_layers: usize,
    /// Layers that no root needs.
    pub layers: Vec<LayerId>,
    /// Action records of such layers.
    pub steps: Vec<StepKey>,
    /// Objects that no live layer needs.
    pub objects: Vec<ObjectId>,
    /// Packs without an object that a live layer needs.
    pub packs: Vec<PackId>,
    /// Merged images, stub trees and farms of stacks that no root has.
    pub derived: Vec<PathBuf>,
    /// Bytes on disk of all of these.
    pub bytes: u64,
    /// How long to wait for other commands to pause their commits, which take moments.
    pub patience: Duration,
    known: HashSet<LayerId>,
    /// The objects of the live layers, which were read whole.
    needed: HashMap<LayerId, Vec<ObjectId>>,
}

/// What a collection removed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct GcDone {
    /// Layers removed.
    pub layers: usize,
    /// Objects moved to the trash.
    pub objects: usize,
    /// Packs moved to the trash.
    pub packs: usize,
    /// Bytes that the deletions freed on disk.
    pub freed: u64,
    /// Batches of the trash that wait for a running command to end.
    pub waiting: usize,
}

/// What must stay.
#[derive(Debug, Default)]
struct Live {
    roots: usize,
    layers: HashSet<LayerId>,
    stacks: HashSet<StackId>,
}

impl Store {
    /// Plans a collection. `all` allows a store without any root to lose everything.
    pub fn plan_gc(&self, own: &Lease, all: bool) -> Result<GcPlan> {
        let live = self.live(own)?;
        let present = self.layers()?;
        if live.roots == 0 && !present.is_empty() && !all {
            return Err(Error::NoRoots { path: self.layout().root().to_owned() });
        }
        let mut plan = GcPlan { roots: live.roots, live_layers: live.layers.len(), ..GcPlan::default() };
        plan.patience = PATIENCE;
        self.add_needs(live.layers.iter().copied(), &mut plan.needed)?;
        let needed: HashSet<ObjectId> = plan.needed.values().flatten().copied().collect();
        plan.layers = present.iter().filter(|layer| !live.layers.contains(layer)).copied().collect();
        for layer in &plan.layers {
            // Another collection may have been faster.
            plan.bytes +=
                fs::metadata(self.layout().layer(layer)).map_or(0, |metadata| disk_bytes(&metadata));
        }
        let dead: HashSet<LayerId> = plan.layers.iter().copied().collect();
        plan.known = present.into_iter().collect();
        plan.steps = self.record_keys()?.into_iter().filter(|key| self.is_record_of(key, &dead)).collect();
        let is_dead = |object: &ObjectId| !needed.contains(object);
        self.for_each_object(is_dead, |object, metadata| {
            plan.bytes += disk_bytes(metadata);
            plan.objects.push(object);
        })?;
        for pack in self.packs()? {
            if pack.table.objects().iter().all(|packed| !needed.contains(&packed.object)) {
                plan.bytes += self.pack_bytes(&pack.id);
                plan.packs.push(pack.id);
            }
        }
        plan.derived = self.dead_derived(&live.stacks)?;
        for path in &plan.derived {
            plan.bytes += fs::symlink_metadata(path).map_or(0, |metadata| disk_bytes(&metadata));
        }
        Ok(plan)
    }

    /// Carries out `plan`, less what became live since.
    pub fn gc(&self, mut plan: GcPlan, own: &Lease) -> Result<GcDone> {
        self.writable()?;
        let mut done = GcDone::default();
        {
            let _commit = Lock::wait_at_most(&self.layout().commit_lock(), plan.patience)?;
            let live = self.live(own)?;
            let new = self.layers()?.into_iter().filter(|layer| !plan.known.contains(layer));
            let all = live.layers.iter().copied().chain(new);
            self.add_needs(all, &mut plan.needed)?;
            let needed: HashSet<ObjectId> = plan.needed.values().flatten().copied().collect();
            let layers: Vec<LayerId> =
                plan.layers.into_iter().filter(|layer| !live.layers.contains(layer)).collect();
            let dead: HashSet<LayerId> = layers.iter().copied().collect();
            let steps: Vec<StepKey> =
                plan.steps.into_iter().filter(|key| self.is_record_of(key, &dead)).collect();
            // What is no root any more must not be one again after a power cut, when its layers have gone.
            if !layers.is_empty() {
                let root = self.layout().root();
                self.disk().sync_file_system(root).at("sync", root)?;
            }
            // Rows first, then names, then bytes: at no moment does a row or a name stand for missing bytes.
            self.index()?.remove(&layers)?;
            self.remove_steps(&steps)?;
            for layer in &layers {
                self.disk().remove_tree(&self.layout().layer(layer))?;
            }
            done.layers = layers.len();
            let batch = self.new_batch(own)?;
            for object in plan.objects.iter().filter(|object| !needed.contains(object)) {
                done.objects += usize::from(self.discard(object, &batch)?);
            }
            for pack in self.packs()?.iter().filter(|pack| plan.packs.contains(&pack.id)) {
                if pack.table.objects().iter().all(|packed| !needed.contains(&packed.object)) {
                    done.packs += usize::from(self.discard_pack(&pack.id, &batch)?);
                }
            }
            self.discard_orphans(&batch, own)?;
            self.close_batch(&batch, own)?;
            for path in self.dead_derived(&live.stacks)? {
                done.freed += fs::symlink_metadata(&path).map_or(0, |metadata| disk_bytes(&metadata));
                self.disk().remove_tree(&path)?;
            }
            for pool in [self.layout().stub_pool(), self.layout().farm_pool()] {
                done.freed += trim_pool(self, pool)?;
            }
        }
        let (freed, waiting) = self.empty_trash(own)?;
        done.freed += freed;
        done.waiting = waiting;
        Ok(done)
    }

    /// Forgets a layer that nothing needs, with the records that name it; returns whether nothing needed it.
    /// Its objects stay for the next collection.
    pub fn forget_layer(&self, layer: &LayerId, own: &Lease) -> Result<bool> {
        self.writable()?;
        let _commit = Lock::wait_at_most(&self.layout().commit_lock(), PATIENCE)?;
        if self.live(own)?.layers.contains(layer) {
            return Ok(false);
        }
        let dead = HashSet::from([*layer]);
        let steps: Vec<StepKey> =
            self.record_keys()?.into_iter().filter(|key| self.is_record_of(key, &dead)).collect();
        self.index()?.remove(&[*layer])?;
        self.remove_steps(&steps)?;
        self.disk().remove_tree(&self.layout().layer(layer))?;
        Ok(true)
    }

    /// Lists what running commands claim, by lease.
    pub fn claimed_layers(&self) -> Result<Vec<Vec<LayerId>>> {
        Ok(live_leases(self.layout(), "")?.into_iter().map(|lease| lease.layers).collect())
    }

    /// Lists the layers that some root or live lease needs.
    pub(crate) fn live_layers(&self, own: &Lease) -> Result<HashSet<LayerId>> {
        Ok(self.live(own)?.layers)
    }

    /// Lists the stacks that some root or live lease has.
    pub(crate) fn live_stacks(&self, own: &Lease) -> Result<HashSet<StackId>> {
        Ok(self.live(own)?.stacks)
    }

    /// Lists the layers that live leases need.
    pub(crate) fn leased_layers(&self, own: &Lease) -> Result<HashSet<LayerId>> {
        Ok(live_leases(self.layout(), own.id())?.into_iter().flat_map(|lease| lease.layers).collect())
    }

    fn live(&self, own: &Lease) -> Result<Live> {
        let mut live = Live::default();
        for (path, stack) in file_roots(self)? {
            live.roots += 1;
            // What stands under the name of a layer is judged when its objects are read.
            let absent = |layer: &&LayerId| {
                fs::symlink_metadata(self.layout().layer(layer)).is_err() && !self.reaches_layer(layer)
            };
            if let Some(layer) = stack.layers.iter().chain(&stack.also).find(absent) {
                let detail =
                    format!("its layer {layer} is neither here nor in a shared store that was named");
                return Err(Error::UnreadableRoot { path, detail });
            }
            live.stacks.insert(stack.id());
            live.layers.extend(stack.layers.into_iter().chain(stack.also));
        }
        for lease in live_leases(self.layout(), own.id())? {
            live.roots += 1;
            live.layers.extend(lease.layers);
            live.stacks.extend(lease.stacks);
        }
        Ok(live)
    }

    /// Adds the objects of `layers` to `needs`. One that is damaged is an error, so all bytes are read: a flipped
    /// bit in its table would give the wrong objects away. One that is absent is asked for again by the next call:
    /// a lease claims a layer before a commit gives it its name.
    pub(crate) fn add_needs(
        &self,
        layers: impl Iterator<Item = LayerId>,
        needs: &mut HashMap<LayerId, Vec<ObjectId>>,
    ) -> Result<()> {
        let new: Vec<LayerId> = layers.filter(|layer| !needs.contains_key(layer)).collect();
        let read = |layer: &LayerId| {
            let unreadable = |detail| Error::UnreadableRoot { path: self.layout().layer(layer), detail };
            match self.layer(layer) {
                Ok(encoding) => match read_head(&encoding) {
                    Ok((references, _)) => {
                        let objects = references.iter().map(|reference| reference.object).collect();
                        Ok(Some((*layer, objects)))
                    }
                    Err(error) => Err(unreadable(error.to_string())),
                },
                Err(Error::NoLayer(_)) => Ok(None),
                Err(Error::DamagedLayer { detail, .. }) => Err(unreadable(detail)),
                Err(error) => Err(error),
            }
        };
        let found: Vec<_> = new.par_iter().map(read).collect::<Result<_>>()?;
        needs.extend(found.into_iter().flatten());
        Ok(())
    }

    /// Calls `visit` with every object in the store for which `wanted` holds; others are not looked at.
    pub(crate) fn for_each_object(
        &self,
        wanted: impl Fn(&ObjectId) -> bool,
        mut visit: impl FnMut(ObjectId, &fs::Metadata),
    ) -> Result<()> {
        for prefix in names(&self.layout().objects())? {
            let directory = self.layout().objects().join(&prefix);
            for rest in names(&directory)? {
                if let Ok(object) = format!("{prefix}{rest}").parse()
                    && wanted(&object)
                    && let Ok(metadata) = fs::symlink_metadata(directory.join(&rest))
                {
                    visit(object, &metadata);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn dead_derived(&self, live: &HashSet<StackId>) -> Result<Vec<PathBuf>> {
        let live: BTreeSet<String> = live.iter().map(StackId::to_hex).collect();
        let mut dead = vec![];
        for (directory, suffix) in [("images", ".erofs"), ("stubs", ""), ("farm", "")] {
            let directory = self.layout().directory(directory);
            for name in names(&directory)? {
                let stack = name.strip_suffix(suffix).unwrap_or(&name);
                if stack.parse::<StackId>().is_ok() && !live.contains(stack) {
                    dead.push(directory.join(&name));
                }
            }
        }
        Ok(dead)
    }

    /// Whether the record names a layer that is dead or absent. One that cannot be read is left to be repaired.
    pub(crate) fn is_record_of(&self, key: &StepKey, dead: &HashSet<LayerId>) -> bool {
        let is_gone = |layer: &LayerId| dead.contains(layer) || !self.has_layer(layer);
        self.record(key).is_ok_and(|record| record.is_some_and(|record| record.layers.iter().any(is_gone)))
    }

    pub(crate) fn remove_steps(&self, steps: &[StepKey]) -> Result<()> {
        self.index()?.remove_steps(steps)?;
        for step in steps {
            self.disk().remove_tree(&self.layout().step(step))?;
        }
        Ok(())
    }
}

/// Removes the files of a pool that no tree links to any more.
fn trim_pool(store: &Store, pool: PathBuf) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut freed = 0;
    let mut directories = vec![pool];
    while let Some(directory) = directories.pop() {
        for name in names(&directory)? {
            let path = directory.join(name);
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                directories.push(path);
            } else if metadata.nlink() == 1 {
                store.disk().remove_tree(&path)?;
                freed += disk_bytes(&metadata);
            }
        }
    }
    Ok(freed)
}
