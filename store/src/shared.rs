//! Shared stores: somebody else's, read in place below this one.
//!
//! A store on a cluster's file system belongs to its maintainer, and nodes may only read it. Its layers, the records
//! of its steps and its built tasks are found as if they were here; its objects are mounted where they are. Nothing
//! is written there, no lock is taken and its index is not needed: a name that is visible is complete, as in every
//! store. What a copy of content is needed for (packed objects, farms, copies) is written here.
//!
//! The owner's collections cannot see who reads. What is built there as a task, or pinned, stays.

use std::path::PathBuf;
use std::sync::Arc;

use crate::pack::Pack;
use crate::references::Reference;
use crate::{ActionRecord, LayerId, ObjectId, StepKey, Store};

impl Store {
    /// Puts this store over others, opened for reading, which are searched in this order.
    pub fn over(mut self, shared: Vec<Store>) -> Self {
        self.shared = shared;
        self
    }

    /// Lists the stores below this one.
    pub fn shared(&self) -> &[Store] {
        &self.shared
    }

    /// Whether the layer is in this store or in a shared one.
    pub fn reaches_layer(&self, layer: &LayerId) -> bool {
        self.everywhere().any(|store| store.has_layer(layer))
    }

    /// Lists the directories in which objects are found: this store's first.
    pub fn object_directories(&self) -> Vec<PathBuf> {
        self.everywhere().map(|store| store.layout().objects()).collect()
    }

    /// This store, then the shared ones.
    pub(crate) fn everywhere(&self) -> impl Iterator<Item = &Store> {
        std::iter::once(self).chain(&self.shared)
    }

    /// Returns the record of a step from a shared store that has all of its layers; without its index, which other
    /// users could not open.
    pub(crate) fn shared_step(&self, key: &StepKey) -> Option<ActionRecord> {
        self.shared.iter().find_map(|store| {
            // One that cannot be read is a miss, and the business of its owner.
            let record = store.record(key).ok().flatten()?;
            let is_whole = record.key == *key && record.layers.iter().all(|layer| store.has_layer(layer));
            is_whole.then_some(record)
        })
    }

    /// Returns where a plain object of a shared store is; its size is right.
    pub(crate) fn shared_object(&self, reference: &Reference) -> Option<PathBuf> {
        let paths = self.shared.iter().map(|store| store.layout().object(&reference.object));
        let is_it = |path: &PathBuf| {
            path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == reference.size)
        };
        paths.into_iter().find(is_it)
    }

    /// Returns where a plain object is, of whatever size: here or in a shared store.
    pub(crate) fn plain_object(&self, object: &ObjectId) -> Option<PathBuf> {
        self.everywhere().map(|store| store.layout().object(object)).find(|path| path.exists())
    }

    /// Returns a pack with the object, and the shared store that it is in.
    pub(crate) fn shared_pack_of(&self, reference: &Reference) -> crate::Result<Option<(&Store, Arc<Pack>)>> {
        for store in &self.shared {
            if let Some(pack) = store.pack_of(&reference.object, reference.size)? {
                return Ok(Some((store, pack)));
            }
        }
        Ok(None)
    }
}
