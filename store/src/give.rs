//! Giving objects away: a tree that takes the only copy of its files needs no room for another.
//!
//! The root of the stack goes first, then its layers, as in a collection; what nothing else needs is then in the
//! trash, and is taken from there file by file. Killed anywhere in between, the store is whole, and the next
//! collection deletes what was not taken. A layer that is in the store keeps all of its objects, needed or not.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::gc::PATIENCE;
use crate::lease::live_leases;
use crate::lock::Lock;
use crate::references::Reference;
use crate::{LayerId, Lease, ObjectId, RootKind, StepKey, Store};

/// Objects that were given up, to be taken one by one.
#[derive(Debug)]
pub struct GivenUp<'a> {
    store: &'a Store,
    batch: PathBuf,
    /// Whether other commands were running, which may have counted on the objects: then they are only copied.
    contended: bool,
}

impl Store {
    /// Lists the objects of `layers` that nothing would need if the root `name` and these layers were gone.
    pub fn plan_give_up(
        &self,
        kind: RootKind,
        name: &str,
        layers: &[LayerId],
        own: &Lease,
    ) -> Result<Vec<Reference>> {
        let root = self.root_file(kind, name);
        let stay = self.layers_that_stay(layers, Some(&root), own)?;
        let needed = self.objects_of(&stay)?;
        let mut free = vec![];
        for layer in layers.iter().filter(|layer| !stay.contains(layer) && self.has_layer(layer)) {
            free.extend(self.references(layer)?.into_iter().filter(|found| !needed.contains(&found.object)));
        }
        free.sort_unstable();
        free.dedup();
        Ok(free)
    }

    /// Removes the root `name`, then those of `layers` that nothing else needs, and gives their objects up.
    ///
    /// `own` must not hold the layers.
    pub fn give_up(
        &self,
        kind: RootKind,
        name: &str,
        layers: &[LayerId],
        own: &Lease,
    ) -> Result<GivenUp<'_>> {
        self.writable()?;
        self.remove_root(kind, name)?;
        let _commit = Lock::wait_at_most(&self.layout().commit_lock(), PATIENCE)?;
        let stay = self.layers_that_stay(layers, None, own)?;
        let needed = self.objects_of(&stay)?;
        let dead: HashSet<LayerId> =
            layers.iter().filter(|layer| !stay.contains(layer) && self.has_layer(layer)).copied().collect();
        let mut objects = vec![];
        for layer in &dead {
            objects.extend(self.references(layer)?.into_iter().map(|reference| reference.object));
        }
        objects.retain(|object| !needed.contains(object));
        objects.sort_unstable();
        objects.dedup();
        let steps: Vec<StepKey> =
            self.record_keys()?.into_iter().filter(|key| self.is_record_of(key, &dead)).collect();
        // What is no root any more must not be one again after a power cut, when its layers have gone.
        let root = self.layout().root();
        self.disk().sync_file_system(root).at("sync", root)?;
        let dead: Vec<LayerId> = dead.into_iter().collect();
        self.index()?.remove(&dead)?;
        self.remove_steps(&steps)?;
        for layer in &dead {
            self.disk().remove_tree(&self.layout().layer(layer))?;
        }
        let live = self.live_stacks(own)?;
        for path in self.dead_derived(&live)? {
            self.disk().remove_tree(&path)?;
        }
        let batch = self.new_batch(own)?;
        for object in &objects {
            self.discard(object, &batch)?;
        }
        let contended = !self.close_batch(&batch, own)?.is_empty();
        Ok(GivenUp { store: self, batch, contended })
    }

    /// The layers that keep their objects when `layers` lose theirs: all others, and those that are needed.
    fn layers_that_stay(
        &self,
        layers: &[LayerId],
        without: Option<&Path>,
        own: &Lease,
    ) -> Result<HashSet<LayerId>> {
        let mut stay: HashSet<LayerId> = self.layers()?.into_iter().collect();
        stay.retain(|layer| !layers.contains(layer));
        for (path, stack) in crate::roots::file_roots(self)? {
            if Some(path.as_path()) != without {
                stay.extend(stack.layers.into_iter().chain(stack.also));
            }
        }
        for lease in live_leases(self.layout(), own.id())? {
            stay.extend(lease.layers);
        }
        Ok(stay)
    }

    fn objects_of(&self, layers: &HashSet<LayerId>) -> Result<HashSet<ObjectId>> {
        let mut needs = HashMap::new();
        self.add_needs(layers.iter().copied(), &mut needs)?;
        Ok(needs.into_values().flatten().collect())
    }
}

impl GivenUp<'_> {
    /// Where the objects are, under the digits of their ids.
    pub fn directory(&self) -> &Path {
        &self.batch
    }

    /// Moves an object to `to`, where nothing may be; says whether it did. What somebody else wants too, or what
    /// lies on another file system, stays for the caller to copy.
    pub fn take(&self, object: &ObjectId, to: &Path) -> io::Result<bool> {
        let from = self.batch.join(object.to_hex());
        if self.contended {
            return Ok(false);
        }
        match fs::symlink_metadata(&from) {
            // A farm has it, or somebody linked it: changing it here would change it there.
            Ok(found) if std::os::unix::fs::MetadataExt::nlink(&found) != 1 => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        match self.store.disk().rename_new(&from, to) {
            Ok(()) => Ok(true),
            // A commit took it back in the meantime, or it lies elsewhere.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::CrossesDevices) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes an object that was copied, to make room for the next.
    pub fn forget(&self, object: &ObjectId) -> io::Result<()> {
        if self.contended {
            return Ok(());
        }
        match self.store.disk().remove_file(&self.batch.join(object.to_hex())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Deletes what was not taken.
    pub fn finish(self, own: &Lease) -> Result<()> {
        self.store.empty_trash(own).map(drop)
    }
}
