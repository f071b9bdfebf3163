//! The trash: objects that gc took away and has not yet deleted.
//!
//! A writer that finds its content known may lose it to gc before it commits. So gc moves objects to
//! `trash/<batch>/` first and notes which leases are alive; it deletes a batch when all of those are dead, and
//! a commit takes back what it needs. Whoever saw an object under its name holds a lease that was noted, so no
//! clock is involved.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::lease::{live_leases, names};
use crate::lock::Lock;
use crate::pack::Table;
use crate::roots::read_json;
use crate::{Lease, ObjectId, PackId, Store};

/// The file of a batch that lists the leases which must die before the batch may go.
const LEASES: &str = "leases";

impl Store {
    /// Moves the object from the trash to its name, or a pack that has it; returns whether one was there.
    pub(crate) fn revive(&self, object: &ObjectId) -> Result<bool> {
        let name = self.layout().object(object);
        for batch in self.batches()? {
            match self.disk().rename(&batch.join(object.to_hex()), &name) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).at("rename", &name),
            }
        }
        self.revive_pack(object)
    }

    /// Moves a pack that has the object from the trash to its names; returns whether one was there.
    fn revive_pack(&self, object: &ObjectId) -> Result<bool> {
        for (batch, id) in self.packs_in_trash()? {
            let table = batch.join(format!("{id}.table"));
            let Ok(bytes) = fs::read(&table) else { continue };
            if !Table::decode(&id, &bytes).is_ok_and(|table| table.find(object).is_some()) {
                continue;
            }
            // With its table it exists again.
            for (from, to) in [
                (batch.join(format!("{id}.sqfs")), self.layout().pack(&id)),
                (table, self.layout().pack_table(&id)),
            ] {
                match self.disk().rename(&from, &to) {
                    // It was never moved, or another process was faster.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound && to.exists() => {}
                    other => other.at("rename", &to)?,
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether a pack, or what is left of it, is in the trash.
    pub(crate) fn is_pack_in_trash(&self, pack: &PackId) -> Result<bool> {
        Ok(self.packs_in_trash()?.iter().any(|(_, id)| id == pack))
    }

    fn packs_in_trash(&self) -> Result<Vec<(PathBuf, PackId)>> {
        let mut packs = vec![];
        for batch in self.batches()? {
            let names = names(&batch)?;
            let stems = names.iter().filter_map(|name| name.split_once('.')?.0.parse().ok());
            packs.extend(stems.map(|id| (batch.clone(), id)));
        }
        packs.dedup();
        Ok(packs)
    }

    /// Moves a pack to `batch`, its table first; returns whether anything of it was there.
    pub(crate) fn discard_pack(&self, pack: &PackId, batch: &Path) -> Result<bool> {
        let mut was_there = false;
        for (name, from) in [
            (format!("{pack}.table"), self.layout().pack_table(pack)),
            (format!("{pack}.sqfs"), self.layout().pack(pack)),
        ] {
            match self.disk().rename(&from, &batch.join(name)) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                other => {
                    other.at("rename", &from)?;
                    was_there = true;
                }
            }
        }
        Ok(was_there)
    }

    /// Moves an object to `batch`; returns whether it was there.
    pub(crate) fn discard(&self, object: &ObjectId, batch: &Path) -> Result<bool> {
        let name = self.layout().object(object);
        match self.disk().rename(&name, &batch.join(object.to_hex())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).at("rename", &name),
        }
    }

    /// Makes an empty batch, named after `own`.
    pub(crate) fn new_batch(&self, own: &Lease) -> Result<PathBuf> {
        let batch = self.layout().directory("trash").join(own.id());
        self.disk().create_directory(&batch).at("create", &batch)?;
        Ok(batch)
    }

    /// Notes which leases are alive after the last object was moved to `batch`.
    pub(crate) fn close_batch(&self, batch: &Path, own: &Lease) -> Result<Vec<String>> {
        let alive: Vec<String> =
            live_leases(self.layout(), own.id())?.into_iter().map(|lease| lease.id).collect();
        self.write_atomically(&batch.join(LEASES), &alive)?;
        Ok(alive)
    }

    /// Deletes the batches whose leases are all dead.
    ///
    /// Returns the bytes that this freed on disk, and how many batches must wait.
    pub(crate) fn empty_trash(&self, own: &Lease) -> Result<(u64, usize)> {
        let trash = self.layout().directory("trash");
        let Some(_emptying) = Lock::attempt_directory(&trash)? else {
            // Another collection is at it.
            return Ok((0, self.batches()?.len()));
        };
        let (mut noted, mut freed, mut waiting) = (vec![], 0, 0);
        for batch in self.batches()? {
            match read_json::<Vec<String>>(&batch.join(LEASES))? {
                Some(leases) => noted.push((batch, leases)),
                // Its collector died, if nobody is alive; else it may be moving more, and will write its own list.
                // Whoever is alive now includes whoever was alive then.
                None => match self.close_batch(&batch, own)? {
                    leases if leases.is_empty() => noted.push((batch, leases)),
                    _ => waiting += 1,
                },
            }
        }
        // Asked after the lists were read: a list that is younger than the answer could name a lease that the
        // answer has not seen.
        let alive: HashSet<String> =
            live_leases(self.layout(), own.id())?.into_iter().map(|lease| lease.id).collect();
        for (batch, leases) in noted {
            let is_final = read_json(&batch.join(LEASES))?.as_ref() == Some(&leases);
            if !is_final || leases.iter().any(|lease| alive.contains(lease)) {
                waiting += 1;
                continue;
            }
            for name in names(&batch)? {
                let path = batch.join(name);
                let bytes =
                    fs::symlink_metadata(&path).map_or(0, |metadata| crate::ingest::disk_bytes(&metadata));
                self.disk().remove_tree(&path)?;
                freed += if path.ends_with(LEASES) { 0 } else { bytes };
            }
            self.disk().remove_tree(&batch)?;
        }
        Ok((freed, waiting))
    }

    /// Lists the objects in the trash.
    pub(crate) fn thrown_away(&self) -> Result<Vec<(PathBuf, ObjectId)>> {
        let mut objects = vec![];
        for batch in self.batches()? {
            let names = names(&batch)?;
            objects.extend(names.iter().filter_map(|name| Some((batch.join(name), name.parse().ok()?))));
        }
        Ok(objects)
    }

    fn batches(&self) -> Result<Vec<PathBuf>> {
        use std::os::unix::fs::MetadataExt;
        let trash = self.layout().directory("trash");
        // Asked for every new object. A directory has a link for each directory in it, where links are counted.
        if fs::metadata(&trash).is_ok_and(|metadata| metadata.nlink() == 2) {
            return Ok(vec![]);
        }
        Ok(names(&trash)?.iter().map(|name| trash.join(name)).collect())
    }
}
