//! Accounting: who uses which bytes of the store.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use crate::error::Result;
use crate::ingest::disk_bytes;
use crate::pack::Pack;
use crate::{LayerId, ObjectId, Store};

/// What one group of layers uses. All in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// The sizes of the distinct objects.
    pub unique: u64,
    /// The blocks that these take on disk (`st_blocks`), layer encodings included; of a packed object, the bytes of
    /// its blocks in the pack.
    pub on_disk: u64,
    /// The part of `on_disk` that no other group uses: what removing this group would free.
    pub marginal: u64,
    /// Number of distinct objects.
    pub objects: u64,
}

impl Store {
    /// Computes the use of each of `groups`, and of all together.
    pub fn usage(&self, groups: &[Vec<LayerId>]) -> Result<(Vec<Usage>, Usage)> {
        struct Shared {
            size: u64,
            disk: u64,
            users: u32,
        }
        let packs = self.packs()?;
        let mut objects: HashMap<ObjectId, Shared> = HashMap::new();
        let mut layers: HashMap<LayerId, Shared> = HashMap::new();
        let mut of_group: Vec<(Vec<LayerId>, Vec<ObjectId>)> = vec![];
        let mut references: HashMap<LayerId, Vec<ObjectId>> = HashMap::new();
        for group in groups {
            let mut own_layers = group.clone();
            own_layers.sort_unstable();
            own_layers.dedup();
            let mut own_objects = vec![];
            for layer in &own_layers {
                if !references.contains_key(layer) {
                    let found = self.references(layer)?;
                    for reference in &found {
                        objects.entry(reference.object).or_insert_with(|| Shared {
                            size: reference.size,
                            disk: self.object_bytes(&reference.object, &packs),
                            users: 0,
                        });
                    }
                    references.insert(*layer, found.iter().map(|reference| reference.object).collect());
                    let disk = self.encoding_bytes(layer)?;
                    layers.insert(*layer, Shared { size: 0, disk, users: 0 });
                }
                own_objects.extend(&references[layer]);
            }
            own_objects.sort_unstable();
            own_objects.dedup();
            for object in &own_objects {
                objects.entry(*object).and_modify(|shared| shared.users += 1);
            }
            for layer in &own_layers {
                layers.entry(*layer).and_modify(|shared| shared.users += 1);
            }
            of_group.push((own_layers, own_objects));
        }
        let sum = |shared: &mut dyn Iterator<Item = &Shared>| {
            shared.fold(Usage::default(), |sum, shared| Usage {
                unique: sum.unique + shared.size,
                on_disk: sum.on_disk + shared.disk,
                marginal: sum.marginal + if shared.users == 1 { shared.disk } else { 0 },
                objects: sum.objects + u64::from(shared.size > 0),
            })
        };
        let usages = of_group
            .iter()
            .map(|(own_layers, own_objects)| {
                let own_layers = own_layers.iter().map(|layer| &layers[layer]);
                sum(&mut own_layers.chain(own_objects.iter().map(|object| &objects[object])))
            })
            .collect();
        Ok((usages, sum(&mut layers.values().chain(objects.values()))))
    }

    /// Returns what an object takes on disk in bytes: its blocks if it is plain, else its part of a pack.
    fn object_bytes(&self, object: &ObjectId, packs: &[Arc<Pack>]) -> u64 {
        let packed = || {
            let found = |pack: &Arc<Pack>| Some(pack.table.stored(pack.table.find(object)?));
            packs.iter().find_map(found).unwrap_or(0)
        };
        let path = self.layout().object(object);
        fs::symlink_metadata(path).map_or_else(|_| packed(), |metadata| disk_bytes(&metadata))
    }

    /// Returns what the whole store takes on disk in bytes: every file of it, images, records and caches too.
    pub fn disk_total(&self) -> Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let device = fs::metadata(self.layout().root()).map_or(0, |metadata| metadata.dev());
        let (mut total, mut seen) = (0, std::collections::HashSet::new());
        let mut directories = vec![self.layout().root().to_owned()];
        while let Some(directory) = directories.pop() {
            // Directories may vanish, or be mounts of environments and packs: those are other devices, but for the
            // mount of a copy.
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else { continue };
                if metadata.dev() != device {
                    continue;
                }
                if metadata.is_dir() && entry.file_name() != "merged" {
                    directories.push(entry.path());
                }
                if metadata.nlink() == 1 || metadata.is_dir() || seen.insert(metadata.ino()) {
                    total += disk_bytes(&metadata);
                }
            }
        }
        Ok(total)
    }
}
