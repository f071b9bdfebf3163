//! Promotion: packed objects become plain again, for whoever cannot mount a pack or needs a file of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use super::read::Unread;
use super::{Pack, Tier};
use crate::error::{Context, Error, Result};
use crate::lock::{Lock, Mode};
use crate::references::Reference;
use crate::{LayerId, Lease, ObjectId, Store};

/// What a promotion did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promoted {
    /// Objects that were written.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A pack, and the store that it is in.
type Place<'a> = (&'a Store, Arc<Pack>);

/// Finds a pack to make an object plain from; none if that is not needed, or not possible.
type FindPack = for<'a> fn(&'a Store, &Reference) -> Result<Option<Place<'a>>>;

impl Promoted {
    fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

impl Store {
    /// Makes every object of `layers` plain. The caller's lease holds the layers, so they stay so.
    ///
    /// Costs one question to the index if none of them was packed, and a listing if nothing is.
    pub fn promote_layers(&self, layers: &[LayerId], lease: &Lease) -> Result<Promoted> {
        if !self.has_packs()? {
            return self.promote_shared_layers(layers, lease);
        }
        let hot = self.index()?.hot_layers()?;
        let is_cold = |layer: &&LayerId| !hot.contains(layer) && self.has_layer(layer);
        let cold: Vec<LayerId> = layers.iter().filter(is_cold).copied().collect();
        let references: Vec<Vec<Reference>> =
            cold.par_iter().map(|layer| self.references(layer)).collect::<Result<_>>()?;
        let mut promoted = self.promote(&references.concat(), lease)?;
        promoted.add(self.promote_shared_layers(layers, lease)?);
        if !cold.is_empty() {
            let _commit = Lock::wait(&self.layout().commit_lock(), Mode::Shared)?;
            let is_plain = |references: &Vec<Reference>| {
                references.iter().all(|reference| self.tier_of(reference) == Some(Tier::Hot))
            };
            let plain = cold.iter().zip(&references).filter(|(_, references)| is_plain(references));
            let tiers: Vec<(LayerId, Tier)> = plain.map(|(layer, _)| (*layer, Tier::Hot)).collect();
            let _looked_at_again_next_time = self.index()?.set_tiers(&tiers);
        }
        Ok(promoted)
    }

    /// Makes every object of `layers` plain, here, that only a pack of a shared store has: such packs are not
    /// mounted. Looks at the layers of shared stores with packs alone.
    pub fn promote_shared_layers(&self, layers: &[LayerId], lease: &Lease) -> Result<Promoted> {
        let mut references = vec![];
        for store in self.shared() {
            if store.has_packs()? {
                let theirs = layers.iter().filter(|layer| !self.has_layer(layer) && store.has_layer(layer));
                for layer in theirs {
                    references.extend(store.references(layer)?);
                }
            }
        }
        self.promote_listed(&references, Self::shared_pack_if_not_plain, lease)
    }

    /// Makes those of `objects` plain that are only in packs; what is in no pack is none of this function's business.
    pub fn promote(&self, objects: &[Reference], lease: &Lease) -> Result<Promoted> {
        if !self.has_packs()? {
            return self.promote_shared(objects, lease);
        }
        self.promote_listed(objects, Self::pack_if_not_plain, lease)
    }

    /// Makes those of `objects` plain that only a pack of a shared store has.
    pub fn promote_shared(&self, objects: &[Reference], lease: &Lease) -> Result<Promoted> {
        for store in self.shared() {
            if store.has_packs()? {
                return self.promote_listed(objects, Self::shared_pack_if_not_plain, lease);
            }
        }
        Ok(Promoted::default())
    }

    fn promote_listed(&self, objects: &[Reference], find: FindPack, lease: &Lease) -> Result<Promoted> {
        if self.packed_only(objects, find)?.is_empty() {
            return Ok(Promoted::default());
        }
        self.writable()?;
        // One process writes what several need at once.
        let _one_at_a_time = Lock::wait_directory(&self.layout().objects())?;
        let wanted = self.packed_only(objects, find)?;
        if wanted.is_empty() {
            return Ok(Promoted::default());
        }
        let directory = lease.new_directory("promote")?;
        let root = self.layout().root();
        let written: Vec<PathBuf> = wanted
            .par_iter()
            .map(|(reference, place)| self.unpack(reference, place, &directory))
            .collect::<Result<_>>()?;
        self.disk().sync_file_system(root).at("sync", root)?;
        {
            let _commit = Lock::wait(&self.layout().commit_lock(), Mode::Shared)?;
            for ((reference, _), from) in wanted.iter().zip(&written) {
                let to = self.layout().object(&reference.object);
                if to.is_dir() {
                    self.disk().remove_tree(&to)?;
                }
                self.disk().rename(from, &to).at("rename", &to)?;
            }
        }
        // Before a row says that the layer is plain.
        self.disk().sync_file_system(root).at("sync", root)?;
        self.disk().remove_tree(&directory)?;
        let bytes = wanted.iter().map(|(reference, _)| reference.size).sum();
        Ok(Promoted { objects: wanted.len() as u64, bytes })
    }

    /// Returns those of `objects` that are in a pack and not plain, each once.
    fn packed_only(&self, objects: &[Reference], find: FindPack) -> Result<Vec<(Reference, Place<'_>)>> {
        let mut found = vec![];
        for reference in objects {
            if let Some(place) = find(self, reference)? {
                found.push((*reference, place));
            }
        }
        found.sort_unstable_by_key(|(reference, _)| *reference);
        found.dedup_by_key(|(reference, _)| *reference);
        Ok(found)
    }

    fn pack_if_not_plain(&self, reference: &Reference) -> Result<Option<Place<'_>>> {
        match self.tier_of(reference) {
            Some(Tier::Packed) => {
                Ok(self.pack_of(&reference.object, reference.size)?.map(|pack| (self, pack)))
            }
            Some(_) => Ok(None),
            None => self.shared_pack_if_not_plain(reference),
        }
    }

    fn shared_pack_if_not_plain(&self, reference: &Reference) -> Result<Option<Place<'_>>> {
        match self.tier_of(reference).is_some() || self.shared_object(reference).is_some() {
            true => Ok(None),
            false => self.shared_pack_of(reference),
        }
    }

    /// Writes an object of a pack to a file in `directory`, ready to be renamed.
    fn unpack(&self, reference: &Reference, place: &Place<'_>, directory: &Path) -> Result<PathBuf> {
        let path = directory.join(reference.object.to_hex());
        let (store, mut pack) = place.clone();
        loop {
            let packed = pack.table.find(&reference.object).ok_or(Error::NoObject(reference.object))?;
            if let Some(reading) = store.open_pack(&pack)? {
                let mut file = self.disk().create(&path, 0o444).at("create", &path)?;
                let id = pack.id;
                reading.read(packed, |block| file.write_all(block)).map_err(|unread| match unread {
                    Unread::Damaged(detail) => {
                        Error::DamagedPack { pack: id, detail: format!("object {}: {detail}", packed.object) }
                    }
                    Unread::Failed(error) => Error::io("unpack to", &path, error),
                })?;
                crate::ingest::set_object_time(file.file()).at("set the time of", &path)?;
                return Ok(path);
            }
            // Rewritten since it was listed: another one has the object.
            pack =
                store.pack_of(&reference.object, reference.size)?.ok_or(Error::NoObject(reference.object))?;
        }
    }

    /// Makes one object plain, if it is packed, and returns where it is.
    pub fn plain(&self, object: &ObjectId, lease: &Lease) -> Result<PathBuf> {
        if let Some(path) = self.plain_object(object) {
            return Ok(path);
        }
        for store in self.everywhere() {
            let packs = store.packs()?;
            if let Some(packed) = packs.iter().find_map(|pack| pack.table.find(object)) {
                self.promote(&[Reference { object: *object, size: packed.size }], lease)?;
            }
        }
        Ok(self.layout().object(object))
    }
}
