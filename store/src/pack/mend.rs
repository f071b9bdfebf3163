//! Packs that are damaged: what is sound of them goes on in a new one.

use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::compress::{CompressDone, InUse};
use crate::error::Result;
use crate::verify::Progress;
use crate::{Lease, ObjectId, PackId, Store};

impl Store {
    /// Replaces damaged packs by what is sound of them. A pack with a damaged object that is needed and nowhere
    /// else stays as it is, and so does one without a readable table while anything is missing.
    pub fn mend_packs(
        &self,
        own: &Lease,
        in_use: InUse<'_>,
        progress: &dyn Progress,
    ) -> Result<CompressDone> {
        self.writable()?;
        let mut plan = self.empty_compress_plan(own)?;
        for pack in self.packs()? {
            let reading = self.open_pack(&pack)?;
            let is_framed = reading.is_some_and(|reading| {
                matches!((reading.check_length(), reading.check_frame()), (Ok(Ok(())), Ok(Ok(()))))
            });
            let objects: Vec<_> = pack.table.objects().iter().map(|packed| packed.object).collect();
            let check = |object: &ObjectId| self.check_packed(&pack, object, progress).is_err();
            let damaged: Vec<_> = objects.into_par_iter().filter(check).collect();
            if damaged.is_empty() && is_framed {
                continue;
            }
            plan.rewritten.push(pack.id);
            let is_spare =
                |object: &ObjectId| self.layout().object(object).is_file() || !plan.needed.contains(object);
            plan.dropped.extend(damaged.into_iter().filter(is_spare).map(|object| (pack.id, object)));
        }
        let done = match plan.rewritten.is_empty() {
            true => CompressDone::default(),
            false => self.compress(plan, own, in_use, progress)?,
        };
        self.remove_unreadable_packs(own)?;
        Ok(done)
    }

    /// Removes packs that only the kernel could still read, if nothing is missing without them.
    fn remove_unreadable_packs(&self, own: &Lease) -> Result<()> {
        let readable: Vec<PackId> = self.packs()?.iter().map(|pack: &Arc<_>| pack.id).collect();
        let unreadable: Vec<PackId> =
            self.all_pack_files()?.into_iter().filter(|id| !readable.contains(id)).collect();
        if unreadable.is_empty() || self.lacks_objects(own)? {
            return Ok(());
        }
        for id in unreadable {
            self.disk().remove_tree(&self.layout().pack_table(&id))?;
            self.disk().remove_tree(&self.layout().pack(&id))?;
        }
        Ok(())
    }

    /// Moves images without a table to `batch`, which a killed command left; not while anything is missing, since
    /// then it may be the table. The caller holds the commit lock.
    pub(crate) fn discard_orphans(&self, batch: &Path, own: &Lease) -> Result<()> {
        let is_orphan = |id: &PackId| !self.layout().pack_table(id).exists();
        let orphans: Vec<PackId> = self.all_pack_files()?.into_iter().filter(is_orphan).collect();
        if !orphans.is_empty() && !self.lacks_objects(own)? {
            for id in orphans {
                self.discard_pack(&id, batch)?;
            }
        }
        Ok(())
    }

    /// The ids of all files that are or were part of a pack.
    pub(crate) fn all_pack_files(&self) -> Result<Vec<PackId>> {
        let names = crate::lease::names(&self.layout().packs())?;
        let stem = |name: &String| name.split_once('.').and_then(|(stem, _)| stem.parse().ok());
        let mut ids: Vec<PackId> = names.iter().filter_map(stem).collect();
        ids.dedup();
        Ok(ids)
    }

    /// Whether some object of a live layer is neither plain nor in a pack.
    fn lacks_objects(&self, own: &Lease) -> Result<bool> {
        let lacks = |layer: &crate::LayerId| {
            Ok(self.references(layer)?.iter().any(|reference| self.tier_of(reference).is_none()))
        };
        let live = self.live_layers(own)?;
        let lacking: Vec<bool> = live.par_iter().map(lacks).collect::<Result<_>>()?;
        Ok(lacking.contains(&true))
    }
}
