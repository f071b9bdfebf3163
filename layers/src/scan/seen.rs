//! What a scan of a directory found, kept so that the next one need not read what has not changed.
//!
//! A file is taken for unchanged if inode, size and change time are the same. The change time (`st_ctime`) moves
//! with content, mode, owner and attributes alike, and nobody can set it. It is believed only if it was at least a
//! second old when the scan began: a later change within one tick of the clock would else go unnoticed.

use std::collections::HashMap;

use infradev_store::LayerId;
use rustix::fs::Stat;

use super::Owners;
use crate::entry::Kind;
use crate::path::TreePath;
use crate::tree::Tree;

/// The files of one scan, and the tree that came of them.
#[derive(Debug)]
pub struct Seen {
    tree: Tree,
    /// One per entry of `tree`, in its order.
    stamps: Vec<Stamp>,
}

/// By what a file is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    /// In nanoseconds since 1970.
    changed: i64,
}

/// An entry that must be read.
const NONE: Stamp = Stamp { device: 0, inode: 0, changed: 0 };
/// How old a change time must be to be believed, in nanoseconds: no file system's clock is coarser.
const SETTLED: i64 = 1_000_000_000;

/// The form of [`Seen::encode`]; another one is as good as none.
const MAGIC: &[u8] = b"infradev seen 1\n";

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        let nanoseconds = i64::try_from(stat.st_ctime_nsec).unwrap_or_default();
        let changed = stat.st_ctime.saturating_mul(1_000_000_000).saturating_add(nanoseconds);
        Self { device: stat.st_dev, inode: stat.st_ino, changed }
    }
}

impl Seen {
    /// Puts together what a scan found that began at `began`, in nanoseconds since 1970.
    pub(super) fn new(tree: Tree, stamps: &HashMap<TreePath, Stamp>, began: i64) -> Self {
        let settled = |stamp: &&Stamp| stamp.changed < began - SETTLED;
        let stamps =
            tree.entries().iter().map(|entry| *stamps.get(&entry.path).filter(settled).unwrap_or(&NONE));
        Self { stamps: stamps.collect(), tree }
    }

    /// The tree that the scan found.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the file at `path` as it was, if it is the same still.
    pub(super) fn unchanged(&self, path: &TreePath, stat: &Stat) -> Option<&Kind> {
        let position = self.tree.position(path)?;
        match &self.tree.entries()[position].kind {
            kind @ Kind::File { content, .. }
                if self.stamps[position] == Stamp::of(stat)
                    && u64::try_from(stat.st_size) == Ok(content.size()) =>
            {
                Some(kind)
            }
            _ => None,
        }
    }

    /// Writes all but the tree, which is a layer of the store.
    pub fn encode(&self, owners: Owners) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(self.tree.layer_id().as_bytes());
        bytes.extend_from_slice(&tag(owners).to_le_bytes());
        for stamp in &self.stamps {
            bytes.extend_from_slice(&stamp.device.to_le_bytes());
            bytes.extend_from_slice(&stamp.inode.to_le_bytes());
            bytes.extend_from_slice(&stamp.changed.to_le_bytes());
        }
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(check.as_bytes());
        bytes
    }

    /// Names the layer that [`Self::decode`] will ask for; `None` if the bytes are not whole, or of other owners.
    pub fn layer(bytes: &[u8], owners: Owners) -> Option<LayerId> {
        let (body, check) = bytes.split_last_chunk::<32>()?;
        let (id, rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<32>()?;
        let same_owners = rest.first_chunk::<8>() == Some(&tag(owners).to_le_bytes());
        (same_owners && blake3::hash(body) == *check).then(|| LayerId::from_bytes(*id))
    }

    /// Reads what [`Self::encode`] wrote, whose tree is `tree`; `None` if the two do not fit.
    pub fn decode(bytes: &[u8], tree: Tree) -> Option<Self> {
        let rest = bytes.get(MAGIC.len() + 40..bytes.len().checked_sub(32)?)?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let stamp = |bytes: &[u8]| Stamp {
            device: number(&bytes[..8]),
            inode: number(&bytes[8..16]),
            changed: number(&bytes[16..]) as i64,
        };
        let stamps: Vec<Stamp> = rest.chunks_exact(24).map(stamp).collect();
        (rest.len() == tree.entries().len() * 24).then_some(Self { tree, stamps })
    }
}

/// Owners are part of the tree, so another mapping makes another tree of the same files.
fn tag(owners: Owners) -> u64 {
    match owners {
        Owners::Keep => 0,
        Owners::Root => 1,
        Owners::Shifted(first) => 2 << 32 | u64::from(first),
    }
}
