//! Repair: what the store can mend by itself, and what it must be told to write anew.
//!
//! Objects and layers come back from whoever can make them: a step that is run again, later a remote. The store
//! only has to stop believing what lies under their names; the next batch that brings the same bytes replaces it
//! by a rename, so a killed repair leaves the damage as it was, and another one mends it.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use crate::error::Result;
use crate::{LayerId, ObjectId, StepKey, Store};

/// Names whose files are damaged.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    objects: HashSet<ObjectId>,
    layers: HashSet<LayerId>,
}

impl Store {
    /// From now on takes these objects and layers for absent when they are put, until they are written anew.
    pub fn distrust(
        &self,
        objects: impl IntoIterator<Item = ObjectId>,
        layers: impl IntoIterator<Item = LayerId>,
    ) {
        let mut doubts = self.doubts();
        doubts.objects.extend(objects);
        doubts.layers.extend(layers);
    }

    /// Makes the index anew from the files.
    pub fn repair_index(&self) -> Result<()> {
        self.writable()?;
        self.index()?.remake()
    }

    /// Writes the record of `key` anew from the index; if the index has none, removes it, and the step will run
    /// again. Returns whether it was there to be written.
    pub fn repair_record(&self, key: &StepKey) -> Result<bool> {
        self.writable()?;
        let path = self.layout().step(key);
        let known = self.index()?.step(key)?;
        match &known {
            Some(record) => self.write_atomically(&path, record)?,
            None => {
                self.index()?.remove_steps(&[*key])?;
                self.disk().remove_tree(&path)?;
            }
        }
        Ok(known.is_some())
    }

    pub(crate) fn trusts_object(&self, object: &ObjectId) -> bool {
        !self.doubts().objects.contains(object)
    }

    pub(crate) fn trusts_layer(&self, layer: &LayerId) -> bool {
        !self.doubts().layers.contains(layer)
    }

    pub(crate) fn trust_object(&self, object: &ObjectId) {
        self.doubts().objects.remove(object);
    }

    pub(crate) fn trust_layer(&self, layer: &LayerId) {
        self.doubts().layers.remove(layer);
    }

    fn doubts(&self) -> MutexGuard<'_, Doubts> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
