//! What a scan of a directory found, kept so that the next one need not read what has not changed.
//!
//! A file is taken for unchanged if inode, size and change time are the same. The change time (`st_ctime`) moves
//! with content, mode, owner and attributes alike, and nobody can set it. It is believed only if it was at least a
//! second old when the scan began: a later change within one tick of the clock would else go unnoticed.

use infradev_store::LayerId;
use rustix::fs::Stat;

use super::{Owners, Scanned};
use crate::entry::Kind;
use crate::path::TreePath;
use crate::tree::Tree;

/// The files of an earlier scan, and the tree that came of them.
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

/// The form of [`encode`]; another one is as good as none.
const MAGIC: &[u8] = b"infradev seen 1\n";

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        let nanoseconds = i64::try_from(stat.st_ctime_nsec).unwrap_or_default();
        let changed = stat.st_ctime.saturating_mul(1_000_000_000).saturating_add(nanoseconds);
        Self { device: stat.st_dev, inode: stat.st_ino, changed }
    }
}

impl Seen {
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

    /// Names the layer that [`Self::decode`] will ask for; `None` if the bytes are not whole, or of other owners.
    pub fn layer(bytes: &[u8], owners: Owners) -> Option<LayerId> {
        let (body, check) = bytes.split_last_chunk::<32>()?;
        let (id, rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<32>()?;
        let same_owners = rest.first_chunk::<8>() == Some(&tag(owners).to_le_bytes());
        (same_owners && blake3::hash(body) == *check).then(|| LayerId::from_bytes(*id))
    }

    /// Reads what [`Scanned::seen`] wrote, whose tree is `tree`; `None` if the two do not fit.
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

/// Writes what a scan found, all but its tree, which is `layer` of the store.
pub(super) fn encode(scanned: &Scanned, layer: LayerId, owners: Owners) -> Vec<u8> {
    let entries = scanned.tree.entries();
    let mut bytes = Vec::with_capacity(MAGIC.len() + 72 + 24 * entries.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(layer.as_bytes());
    bytes.extend_from_slice(&tag(owners).to_le_bytes());
    let settled = |stamp: &&Stamp| stamp.changed < scanned.began - SETTLED;
    for entry in entries {
        let stamp = scanned.stamps.get(&entry.path).filter(settled).unwrap_or(&NONE);
        bytes.extend_from_slice(&stamp.device.to_le_bytes());
        bytes.extend_from_slice(&stamp.inode.to_le_bytes());
        bytes.extend_from_slice(&stamp.changed.to_le_bytes());
    }
    let check = blake3::hash(&bytes);
    bytes.extend_from_slice(check.as_bytes());
    bytes
}

/// Owners are part of the tree, so another mapping makes another tree of the same files.
fn tag(owners: Owners) -> u64 {
    match owners {
        Owners::Keep => 0,
        Owners::Root => 1,
        Owners::Shifted(first) => 2 << 32 | u64::from(first),
    }
}
