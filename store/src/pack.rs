//! Packs: cold objects, compressed, in squashfs images that root mounts and everybody can read without mounting.
//!
//! A pack is two files: the image `packs/<id>.sqfs` and its table `packs/<id>.table`, by which it is named and with
//! which it exists: the image gets its name first and loses it last. The table says where the blocks of every
//! object are, so nothing here ever parses squashfs, and all of the image but the blocks follows from it.
//!
//! # Order of events
//! 1. A pack is written below `tmp/<lease>`, synced, and named; another sync; only then do plain copies go.
//! 2. They go as in a collection: under the commit lock, by way of the trash, with the leases noted that are alive
//!    at that moment. So do packs that were rewritten.
//! 3. What a live lease or a mounted environment needs keeps its plain copies: overlayfs opens content when it is
//!    read, and a mount looks only where it was told to when it was made.
//! 4. Whoever mounts takes a lease first and lists the packs afterwards, so it either keeps the plain copies or
//!    sees the pack that has them.

mod check;
mod compress;
mod mend;
mod promote;
mod read;
mod squashfs;
mod table;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

pub use compress::{CompressDone, CompressPlan, InUse};
pub use promote::Promoted;
use squashfs::frame;
pub(crate) use table::Table;

use crate::error::{Context, Result};
use crate::references::Reference;
use crate::{ObjectId, PackId, Store};

/// Smaller objects stay plain, in bytes: they are 3 % of the bytes of a Python environment and nearly all of its
/// files, and every one would be a read of its own. Content that is smaller is not looked for in packs, so this may
/// be lowered and not raised.
pub const PACK_MINIMUM: u64 = 128 << 10;

/// A pack whose table was read and is what was written.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) id: PackId,
    pub(crate) table: Table,
}

/// The tables that were read.
#[derive(Debug, Default)]
pub(crate) struct Tables(BTreeMap<PackId, Arc<Pack>>);

impl Store {
    /// Lists the packs by their names, for mounting; their tables are not read.
    pub fn pack_names(&self) -> Result<Vec<PackId>> {
        let names = crate::lease::names(&self.layout().packs())?;
        let names = names.iter().filter_map(|name| name.strip_suffix(".table")?.parse().ok());
        Ok(names.filter(|pack| self.layout().pack(pack).is_file()).collect())
    }

    /// Whether there are packs in this store.
    pub(crate) fn has_packs(&self) -> Result<bool> {
        Ok(!self.pack_names()?.is_empty())
    }

    /// Lists the places where packs were mounted that are neither there nor in the trash any more.
    ///
    /// A process that was about to use such a mount had a lease, which kept the pack in the trash.
    pub fn forsaken_pack_mounts(&self) -> Result<Vec<PackId>> {
        let mut forsaken = vec![];
        for name in crate::lease::names(&self.layout().packs())? {
            if let Ok(pack) = name.parse::<PackId>()
                && !self.layout().pack(&pack).exists()
                && !self.is_pack_in_trash(&pack)?
            {
                forsaken.push(pack);
            }
        }
        Ok(forsaken)
    }

    /// Lists the packs that are there and can be read.
    pub(crate) fn packs(&self) -> Result<Vec<Arc<Pack>>> {
        let names = self.pack_names()?;
        let mut tables = self.tables.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        tables.0.retain(|id, _| names.contains(id));
        for id in names {
            // One that is damaged is named by a verification, and its objects count as missing.
            if !tables.0.contains_key(&id)
                && let Ok(Ok(pack)) = self.read_table(&id)
            {
                tables.0.insert(id, Arc::new(pack));
            }
        }
        Ok(tables.0.values().cloned().collect())
    }

    /// Reads the table of a pack; the inner error says what is wrong with it.
    pub(crate) fn read_table(&self, id: &PackId) -> Result<Result<Pack, String>> {
        let path = self.layout().pack_table(id);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => {
                return Ok(Err("its table is not a regular file".to_owned()));
            }
            other => other.at("read", &path)?,
        };
        Ok(Table::decode(id, &bytes).map(|table| Pack { id: *id, table }))
    }

    /// Returns a pack that has the object; those that cannot be read have none.
    pub(crate) fn pack_of(&self, object: &ObjectId, size: u64) -> Result<Option<Arc<Pack>>> {
        if size < PACK_MINIMUM {
            return Ok(None);
        }
        let has = |pack: &Arc<Pack>| pack.table.find(object).is_some_and(|packed| packed.size == size);
        Ok(self.packs()?.into_iter().find(has))
    }

    /// Whether the object is there, plain or packed, as far as that can be seen without reading it.
    pub(crate) fn tier_of(&self, reference: &Reference) -> Option<Tier> {
        let metadata = fs::symlink_metadata(self.layout().object(&reference.object));
        if metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == reference.size) {
            return Some(Tier::Hot);
        }
        let pack = self.pack_of(&reference.object, reference.size);
        pack.is_ok_and(|pack| pack.is_some()).then_some(Tier::Packed)
    }
}

/// How the objects of a layer are stored: the index keeps it, so that a mount of plain layers looks no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Tier {
    /// All plain.
    #[default]
    Hot,
    /// All packed.
    Packed,
    /// Some plain and some packed, or not known.
    Mixed,
}

impl Tier {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Tier::Hot => "hot",
            Tier::Packed => "packed",
            Tier::Mixed => "mixed",
        }
    }

    /// The tier of objects of both.
    pub(crate) fn and(self, other: Self) -> Self {
        if self == other { self } else { Tier::Mixed }
    }

    /// The tier of objects of these tiers; of none, hot.
    pub(crate) fn of_all(tiers: impl IntoIterator<Item = Self>) -> Self {
        tiers.into_iter().reduce(Self::and).unwrap_or_default()
    }
}
