//! Verification of packs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;

use super::Pack;
use super::read::Unread;
use crate::error::{Error, Result};
use crate::verify::{Depth, Progress, Report, Subject};
use crate::{LayerId, ObjectId, PackId, Store};

/// The objects that packs have, as far as they were checked.
#[derive(Debug, Default)]
pub(crate) struct CheckedPacks {
    /// Objects and their sizes: sound, or named as damaged already.
    done: HashSet<(ObjectId, u64)>,
}

impl CheckedPacks {
    /// Whether nothing is left to say about an object: it is not plain, and a pack has it.
    pub(crate) fn is_done(&self, store: &Store, object: &ObjectId, size: u64) -> bool {
        self.done.contains(&(*object, size)) && store.layout().object(object).symlink_metadata().is_err()
    }
}

type Needed = HashMap<ObjectId, (u64, Vec<LayerId>)>;

impl Store {
    /// Checks every pack: its table, its image, and with [`Depth::ReadData`] every object in it.
    pub(crate) fn check_packs(
        &self,
        depth: Depth,
        needed: &Needed,
        report: &mut Report,
        progress: &dyn Progress,
    ) -> Result<CheckedPacks> {
        let mut checked = CheckedPacks::default();
        for id in self.pack_ids()? {
            report.packs += 1;
            let pack = match self.read_table(&id) {
                Ok(Ok(pack)) => Arc::new(pack),
                Ok(Err(detail)) => {
                    report.note_damage(Subject::Pack(id), detail, vec![]);
                    continue;
                }
                // Rewritten since it was listed.
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    report.note_unchecked(Subject::Pack(id), error.to_string());
                    continue;
                }
            };
            let mut depth = depth;
            match self.check_image(&pack, depth) {
                Ok(Ok(())) => {}
                Ok(Err(detail)) => {
                    report.note_damage(Subject::Pack(id), detail, vec![]);
                    // Which objects that costs, only reading them tells.
                    depth = Depth::ReadData;
                }
                Err(error) => report.note_unchecked(Subject::Pack(id), error.to_string()),
            }
            self.check_objects_of(&pack, depth, needed, report, &mut checked, progress);
        }
        Ok(checked)
    }

    /// Every pack that has a table, readable or not.
    fn pack_ids(&self) -> Result<Vec<PackId>> {
        let tables = |id: &PackId| self.layout().pack_table(id).symlink_metadata().is_ok();
        Ok(self.all_pack_files()?.into_iter().filter(tables).collect())
    }

    fn check_image(&self, pack: &Pack, depth: Depth) -> std::io::Result<Result<(), String>> {
        let reading = match self.open_pack(pack) {
            Ok(Some(reading)) => reading,
            Ok(None) => return Ok(Err("its image is missing".to_owned())),
            Err(error) => return Err(std::io::Error::other(error)),
        };
        match (reading.check_length()?, depth) {
            (Ok(()), Depth::ReadData) => reading.check_frame(),
            (other, _) => Ok(other),
        }
    }

    fn check_objects_of(
        &self,
        pack: &Arc<Pack>,
        depth: Depth,
        needed: &Needed,
        report: &mut Report,
        checked: &mut CheckedPacks,
        progress: &dyn Progress,
    ) {
        let objects = pack.table.objects();
        let check = |object: &ObjectId| match depth {
            Depth::Quick => Ok(()),
            Depth::ReadData => self.check_packed(pack, object, progress),
        };
        let results: Vec<_> = objects.par_iter().map(|packed| check(&packed.object)).collect();
        for (packed, result) in objects.iter().zip(results) {
            let (object, size) = (packed.object, packed.size);
            let layers = needed.get(&object).map(|(_, layers)| layers.clone());
            match result {
                Ok(()) => {
                    report.bytes_read += if depth == Depth::ReadData { size } else { 0 };
                    checked.done.insert((object, size));
                }
                Err(Unread::Failed(error)) => {
                    report.note_unchecked(Subject::Object(object), format!("in pack {}: {error}", pack.id));
                    checked.done.insert((object, size));
                }
                Err(Unread::Damaged(detail)) => match layers {
                    Some(_) if self.layout().object(&object).is_file() => report.shadowed += 1,
                    Some(layers) => {
                        let detail = format!("in pack {}: {detail}", pack.id);
                        report.note_damage(Subject::Object(object), detail, layers);
                        checked.done.insert((object, size));
                    }
                    // The next layer that has it would take it as it is.
                    None => {
                        let detail = format!("object {object}, which nothing needs: {detail}");
                        report.note_damage(Subject::Pack(pack.id), detail, vec![]);
                    }
                },
            }
        }
    }
}
