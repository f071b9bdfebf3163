//! Compressing: plain objects that nothing uses right now go into packs, and packs that are mostly dead are
//! rewritten.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

use super::read::Unread;
use super::table::BLOCK;
use super::write::{Source, Staged};
use super::{PACK_MINIMUM, Pack, Tier};
use crate::error::{Context, Result};
use crate::gc::PATIENCE;
use crate::ingest::disk_bytes;
use crate::lock::{Lock, Mode};
use crate::verify::{Finding, Progress, Subject};
use crate::{LayerId, Lease, ObjectId, PackId, Store};

/// What a compression would do.
#[derive(Debug, Default)]
pub struct CompressPlan {
    /// Plain objects that would be packed, ascending.
    pub objects: Vec<ObjectId>,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Plain objects that a pack has already, and which would go if the packed copy is sound, ascending.
    pub copies: Vec<ObjectId>,
    /// Their bytes on disk.
    pub copy_bytes: u64,
    /// Packs that would be rewritten: most of them is dead, they are small beside what is packed now, or of an
    /// older form.
    pub rewritten: Vec<PackId>,
    /// Plain objects that are large enough but stay as they are, because something uses them right now.
    pub in_use: usize,
    /// Objects that no pack may take over from another: what is under their names there is damaged.
    pub(super) dropped: HashSet<(PackId, ObjectId)>,
    /// What the live layers need, and which layers there were.
    pub(super) needed: HashSet<ObjectId>,
    pub(super) needs: HashMap<LayerId, Vec<ObjectId>>,
    pub(super) known: HashSet<LayerId>,
}

/// What a compression did.
#[derive(Debug, Default, serde::Serialize)]
pub struct CompressDone {
    /// The pack that was written.
    pub pack: Option<PackId>,
    /// Objects in it that were plain or in other packs.
    pub objects: usize,
    /// Bytes of their content.
    pub content: u64,
    /// Bytes of the pack on disk, its table included.
    pub packed: u64,
    /// Plain copies that went.
    pub plain: usize,
    /// Bytes that this freed on disk.
    pub freed: u64,
    /// Batches of the trash that wait for a running command to end.
    pub waiting: usize,
    /// Objects and packs that are not what they should be, and were left as they are.
    pub damage: Vec<Finding>,
}

/// Tells which layers are used by environments that no lease holds: those mounted for the host. Called with the
/// commit lock held; an error stops the compression before anything plain is removed.
pub type InUse<'a> = &'a dyn Fn() -> Result<Vec<LayerId>>;

impl Store {
    /// Plans a compression.
    pub fn plan_compress(&self, own: &Lease, in_use: InUse<'_>) -> Result<CompressPlan> {
        let mut plan = self.empty_compress_plan(own)?;
        let hot = self.hot_objects(own, in_use)?;
        let packs = self.packs()?;
        let needed = std::mem::take(&mut plan.needed);
        self.for_each_object(
            |object| needed.contains(object),
            |object, metadata| {
                if metadata.len() < PACK_MINIMUM || !metadata.is_file() {
                    return;
                }
                let is_packed = packs
                    .iter()
                    .any(|pack| pack.table.find(&object).is_some_and(|packed| packed.size == metadata.len()));
                if hot.contains(&object) {
                    plan.in_use += 1;
                } else if is_packed {
                    plan.copies.push(object);
                    plan.copy_bytes += disk_bytes(metadata);
                } else {
                    plan.objects.push(object);
                    plan.bytes += disk_bytes(metadata);
                }
            },
        )?;
        plan.needed = needed;
        let is_dead = |pack: &Arc<Pack>| plan.live_bytes(pack, &packs) * 2 < pack.table.end();
        // So that the number of packs grows with the logarithm of the bytes: each is looked through in turn.
        let is_small = |pack: &Arc<Pack>| pack.table.end() <= plan.bytes / 2;
        let is_old = |pack: &Arc<Pack>| pack.table.block() != BLOCK;
        let rewritten = packs.iter().filter(|pack| is_dead(pack) || is_small(pack) || is_old(pack));
        let rewritten = rewritten.map(|pack| pack.id);
        plan.rewritten = rewritten.collect();
        Ok(plan)
    }

    /// Reads what must stay.
    pub(super) fn empty_compress_plan(&self, own: &Lease) -> Result<CompressPlan> {
        let mut plan =
            CompressPlan { known: self.layers()?.into_iter().collect(), ..CompressPlan::default() };
        self.add_needs(self.live_layers(own)?.into_iter(), &mut plan.needs)?;
        plan.needed = plan.needs.values().flatten().copied().collect();
        Ok(plan)
    }

    /// Carries out `plan`, less what is in use by now.
    pub fn compress(
        &self,
        mut plan: CompressPlan,
        own: &Lease,
        in_use: InUse<'_>,
        progress: &dyn Progress,
    ) -> Result<CompressDone> {
        self.writable()?;
        let directory = self.layout().packs();
        // A store that was made before there were packs has none.
        match self.disk().create_directory(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).at("create", &directory);
            }
            _ => {}
        }
        // A child that another thread is just starting may hold a lock that was let go, for a moment.
        let _one_at_a_time = Lock::wait_directory_at_most(&directory, Duration::from_secs(1))?;
        let mut done = CompressDone::default();
        let packs = self.packs()?;
        let sound = self.check_copies(&mut plan, &packs, progress);
        let rewritten = self.check_rewritten(&plan, &packs, &mut done.damage, progress)?;
        let others: Vec<&Arc<Pack>> =
            packs.iter().filter(|pack| !plan.rewritten.contains(&pack.id)).collect();
        let has_elsewhere = |object: &ObjectId| {
            let mut having = others.iter().filter(|pack| pack.table.find(object).is_some());
            having.any(|pack| self.check_packed(pack, object, progress).is_ok())
        };
        let mut sources: BTreeMap<ObjectId, Source> = BTreeMap::new();
        for pack in &rewritten {
            let live = pack.table.objects().iter().map(|packed| packed.object);
            let live = live.filter(|object| plan.keeps(pack, object) && !has_elsewhere(object));
            sources.extend(live.map(|object| (object, Source::Blocks(Arc::clone(pack), object))));
        }
        sources.extend(plan.objects.iter().map(|object| (*object, Source::Plain(*object))));
        let sources: Vec<Source> = sources.into_values().collect();
        let written = match sources.is_empty() {
            true => None,
            false => {
                let (staged, damaged) = self.write_pack(own, &sources, progress)?;
                done.damage.extend(damaged.into_iter().map(|(object, detail)| Finding {
                    what: Subject::Object(object),
                    detail,
                    layers: vec![],
                }));
                staged
            }
        };
        if let Some(staged) = &written {
            self.name_pack(staged)?;
            done.pack = Some(staged.id);
            done.objects = staged.table.objects().len();
            done.content = staged.table.objects().iter().map(|packed| packed.size).sum();
            done.packed = self.pack_bytes(&staged.id);
        }
        let packed: HashSet<ObjectId> = written
            .iter()
            .flat_map(|staged| staged.table.objects())
            .map(|packed| packed.object)
            .chain(sound)
            .collect();
        let gone: Vec<Arc<Pack>> = rewritten.into_iter().filter(|pack| done.pack != Some(pack.id)).collect();
        done.plain = self.let_go(plan, &packed, &gone, own, in_use)?;
        (done.freed, done.waiting) = self.empty_trash(own)?;
        Ok(done)
    }

    /// Checks the packed copies of plain objects; returns those that are sound. The others are packed anew, and
    /// the packs that have them are rewritten without them.
    fn check_copies(
        &self,
        plan: &mut CompressPlan,
        packs: &[Arc<Pack>],
        progress: &dyn Progress,
    ) -> Vec<ObjectId> {
        let check = |object: &ObjectId| {
            let having = packs.iter().filter(|pack| pack.table.find(object).is_some());
            let damaged: Vec<PackId> = having
                .clone()
                .filter(|pack| self.check_packed(pack, object, progress).is_err())
                .map(|pack| pack.id)
                .collect();
            (*object, having.count() > damaged.len(), damaged)
        };
        let checked: Vec<_> = plan.copies.par_iter().map(check).collect();
        let mut sound = vec![];
        for (object, is_sound, damaged) in checked {
            if is_sound && damaged.is_empty() {
                sound.push(object)
            } else {
                plan.objects.push(object)
            }
            plan.rewritten.extend(&damaged);
            plan.dropped.extend(damaged.into_iter().map(|pack| (pack, object)));
        }
        plan.objects.sort_unstable();
        plan.rewritten.sort_unstable();
        plan.rewritten.dedup();
        sound
    }

    /// Checks what is to be copied from the packs that are to be rewritten; one with damage stays as it is.
    fn check_rewritten(
        &self,
        plan: &CompressPlan,
        packs: &[Arc<Pack>],
        damage: &mut Vec<Finding>,
        progress: &dyn Progress,
    ) -> Result<Vec<Arc<Pack>>> {
        let mut sound = vec![];
        for pack in packs.iter().filter(|pack| plan.rewritten.contains(&pack.id)) {
            let live: Vec<ObjectId> = pack.table.objects().iter().map(|packed| packed.object).collect();
            let live = live.into_par_iter().filter(|object| plan.keeps(pack, object));
            let check = |object: ObjectId| {
                self.check_packed(pack, &object, progress).err().map(|unread| (object, unread))
            };
            let found: Vec<_> = live.filter_map(check).collect();
            for (object, unread) in &found {
                let detail = match unread {
                    Unread::Damaged(detail) => detail.clone(),
                    Unread::Failed(error) => error.to_string(),
                };
                let detail = format!("in pack {}: {detail}", pack.id);
                damage.push(Finding { what: Subject::Object(*object), detail, layers: vec![] });
            }
            if found.is_empty() {
                sound.push(Arc::clone(pack));
            }
        }
        Ok(sound)
    }

    /// Reads an object of a pack and compares it with its id.
    pub(crate) fn check_packed(
        &self,
        pack: &Pack,
        object: &ObjectId,
        progress: &dyn Progress,
    ) -> Result<(), Unread> {
        let missing = || Unread::Damaged("its image is missing".to_owned());
        let reading = self.open_pack(pack).map_err(|error| Unread::Failed(std::io::Error::other(error)))?;
        let packed = pack.table.find(object).ok_or_else(missing)?;
        reading.ok_or_else(missing)?.read(packed, |block| {
            progress.advance(block.len() as u64);
            Ok(())
        })
    }

    /// Gives a pack its names, the image first: with its table it exists.
    pub(super) fn name_pack(&self, staged: &Staged) -> Result<()> {
        // A collection takes an image without a table for one that was forgotten.
        let _commit = Lock::wait(&self.layout().commit_lock(), Mode::Shared)?;
        for (from, to) in [
            (&staged.image, self.layout().pack(&staged.id)),
            (&staged.table_path, self.layout().pack_table(&staged.id)),
        ] {
            if to.is_dir() {
                // What a failing disk made of it.
                self.disk().remove_tree(&to)?;
            }
            self.disk().rename(from, &to).at("rename", &to)?;
        }
        let root = self.layout().root();
        self.disk().sync_file_system(root).at("sync", root)
    }

    /// Moves the plain copies of `packed` objects to the trash, but for those in use, and the packs that were
    /// rewritten; returns how many objects went.
    fn let_go(
        &self,
        mut plan: CompressPlan,
        packed: &HashSet<ObjectId>,
        gone: &[Arc<Pack>],
        own: &Lease,
        in_use: InUse<'_>,
    ) -> Result<usize> {
        if packed.is_empty() && gone.is_empty() {
            return Ok(0);
        }
        let _commit = Lock::wait_at_most(&self.layout().commit_lock(), PATIENCE)?;
        let hot = self.hot_objects(own, in_use)?;
        let mut others = self.packs()?;
        others.retain(|pack| !gone.iter().any(|gone| gone.id == pack.id));
        let new = self.layers()?.into_iter().filter(|layer| !plan.known.contains(layer));
        let all: Vec<LayerId> = self.live_layers(own)?.into_iter().chain(new).collect();
        self.add_needs(all.into_iter(), &mut plan.needs)?;
        let needed: HashSet<ObjectId> = plan.needs.into_values().flatten().collect();
        let leaving: Vec<ObjectId> = packed.iter().filter(|object| !hot.contains(object)).copied().collect();
        // Before the first of them goes: a layer whose row says hot is not looked at when it is mounted.
        self.note_tiers(&leaving.iter().copied().collect())?;
        let batch = self.new_batch(own)?;
        let mut count = 0;
        for object in &leaving {
            count += usize::from(self.discard(object, &batch)?);
        }
        for pack in gone {
            // What a commit has found in it since it was rewritten without that.
            let is_last = |object: &ObjectId| {
                needed.contains(object) && !packed.contains(object) && !self.layout().object(object).is_file()
            };
            if !pack.table.objects().iter().any(|packed| is_last(&packed.object)) {
                self.discard_pack(&pack.id, &batch)?;
            }
        }
        self.close_batch(&batch, own)?;
        Ok(count)
    }

    /// Writes into the index which layers are packed when the plain copies of `leaving` have gone.
    fn note_tiers(&self, leaving: &HashSet<ObjectId>) -> Result<()> {
        let tier = |layer: &LayerId| -> Result<(LayerId, Tier)> {
            let references = self.references(layer)?;
            let tiers = references.iter().map(|reference| match leaving.contains(&reference.object) {
                true => Tier::Packed,
                false => self.tier_of(reference).unwrap_or(Tier::Mixed),
            });
            Ok((*layer, Tier::of_all(tiers)))
        };
        // One whose head cannot be read needs a look at every mount.
        let tier = |layer: &LayerId| tier(layer).unwrap_or((*layer, Tier::Mixed));
        let tiers: Vec<_> = self.layers()?.par_iter().map(tier).collect();
        self.index()?.set_tiers(&tiers)
    }

    /// Returns the objects whose plain copies may be opened at any moment.
    fn hot_objects(&self, own: &Lease, in_use: InUse<'_>) -> Result<HashSet<ObjectId>> {
        // Leases first: whoever mounts for the host lets go of its lease when the mount can be seen.
        let mut layers = self.leased_layers(own)?;
        layers.extend(in_use()?);
        let mut needs = HashMap::new();
        self.add_needs(layers.into_iter(), &mut needs)?;
        Ok(needs.into_values().flatten().collect())
    }
}

impl CompressPlan {
    /// Bytes of a pack that are worth keeping: needed, and in no larger pack. (Two packs have the same objects if
    /// a rewriting was killed.)
    fn live_bytes(&self, pack: &Pack, packs: &[Arc<Pack>]) -> u64 {
        let rank = |pack: &Pack| (pack.table.end(), pack.id);
        let is_elsewhere = |object: &ObjectId| {
            packs.iter().any(|other| rank(other) > rank(pack) && other.table.find(object).is_some())
        };
        let live = pack
            .table
            .objects()
            .iter()
            .filter(|packed| self.needed.contains(&packed.object) && !is_elsewhere(&packed.object));
        live.map(|packed| pack.table.stored(packed)).sum()
    }

    /// Whether a rewritten pack hands an object on.
    fn keeps(&self, pack: &Pack, object: &ObjectId) -> bool {
        self.needed.contains(object) && !self.dropped.contains(&(pack.id, *object))
    }
}

impl Store {
    /// Bytes that both files of a pack take on disk.
    pub(crate) fn pack_bytes(&self, pack: &PackId) -> u64 {
        let paths = [self.layout().pack(pack), self.layout().pack_table(pack)];
        paths.iter().map(|path| fs::symlink_metadata(path).map_or(0, |metadata| disk_bytes(&metadata))).sum()
    }
}
