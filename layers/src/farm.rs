//! A merged tree as real files that all trees share by hardlinks, for kernels whose overlayfs cannot look
//! through a stub: a *farm*.
//!
//! Mode, owner and time belong to an inode, and an object has one inode, so a farm needs an inode for every
//! different use of an object. There are two kinds:
//!
//! - The object's own. Whoever uses an object first gives it the mode and time that its tree wants, and links it.
//!   It is lent, not given: only while no tree has it (one link, checked under a lock of the object) may another
//!   tree ask for something else. Content, owner and attributes of an object never change, everybody may read it,
//!   and nobody but its owner may write it (`decisions/0011`).
//! - Copies in a pool, for every further use: another mode, another time, attributes, another owner, and a second
//!   file of the same tree, since two names with one inode number would be hardlinks of each other, which
//!   they are not. Blocks are shared where the file system can (`FICLONE`).
//!
//! # Pool
//! `<2 hex>/<62 hex>.<16 hex>[.<number>]`: the object, and a hash of mode, owner, time and attributes. A copy
//! without a link to spare (ext4 allows 65,000) is replaced by a new one; its trees keep it. A copy with one
//! link is in no tree and may be removed at any time. A file of several names in one tree needs a link for each,
//! so it takes nothing that has many links already ([`MOST_LINKS`]).
//!
//! # Durability
//! Copies have data. They get their names in the pool after one sync of the file system, so that no name leads
//! to bytes that a power cut took.

mod check;

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use infradev_store::object_name;
use rustix::fs::{AtFlags, FlockOperation, Mode, Stat};
use rustix::io::Errno;

pub use check::{FarmFinding, check_farm_pool};

use crate::checkout::{self, CheckoutError, CheckoutStats, Files, Made, Objects, Pool, Wanted};
use crate::entry::Metadata;
use crate::scan::Owners;
use crate::tree::Tree;

/// How many links an object, or a copy for a file of several names, gets: what the strictest file systems allow
/// (ext2), since only the link that goes too far is told, and others of the same file may have been made by then.
const MOST_LINKS: u64 = 32_000;

/// Writes `tree`, the result of a merge, as a farm at `out`, which must not exist, and adds to `pool`.
///
/// `owners` says whose the files become: the caller's ([`Owners::Root`]) or as the tree says ([`Owners::Keep`]).
/// `objects` are directories: the store's own, which is on one file system with pool and tree and whose objects are
/// linked, then others to copy from. The caller holds a lease on the layers, writes under a
/// temporary name and renames what is complete. What an error leaves at `out` is for the caller to remove.
pub fn write_farm(
    tree: &Tree,
    objects: &[PathBuf],
    pool: &Path,
    owners: Owners,
    out: &Path,
) -> Result<CheckoutStats, CheckoutError> {
    checkout::write(tree, &Links::new(objects, pool, owners, MOST_LINKS)?, out)
}

struct Links {
    objects: Objects,
    pool: Pool,
    owners: Owners,
    /// [`MOST_LINKS`], and less in tests.
    most_links: u64,
    /// Copies that are not yet in the pool: the name there, and the path in the tree.
    copies: Mutex<Vec<(String, PathBuf)>>,
}

impl Files for Links {
    fn pool_name(&self, wanted: &Wanted<'_>, earlier: u32) -> Option<String> {
        let tag = tag(self.owners, wanted.metadata);
        let mut name = format!("{}.{tag}", object_name(&wanted.object));
        if earlier > 0 {
            name.push_str(&format!(".{earlier}"));
        }
        Some(name)
    }

    fn make(&self, wanted: &Wanted<'_>, directory: &OwnedFd, name: &[u8]) -> Result<Made, Errno> {
        let pool_name = wanted.pool_name.as_deref().expect("every file has one");
        if !wanted.repeated && self.link_object(wanted, directory, name)? {
            return Ok(Made::Linked);
        }
        let has_room =
            wanted.further_names == 0 || self.pool.links(pool_name)? + wanted.further_names < self.most_links;
        if has_room && self.pool.link(pool_name, directory, name)? {
            return Ok(Made::Linked);
        }
        let file = checkout::create(directory, name)?;
        checkout::copy_object(&self.objects, wanted.object, wanted.size, &file)?;
        checkout::finish(&file, wanted.metadata, self.owners)?;
        let copy = (pool_name.to_owned(), wanted.path.as_path().to_owned());
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
        Ok(Made::New(wanted.size))
    }

    fn owners(&self) -> Owners {
        self.owners
    }

    fn finish(&self, root: &OwnedFd) -> Result<(), Errno> {
        let copies = std::mem::take(&mut *self.copies.lock().unwrap_or_else(PoisonError::into_inner));
        if !copies.is_empty() {
            rustix::fs::syncfs(root)?;
        }
        for (pool_name, path) in copies {
            use std::os::unix::ffi::OsStrExt;
            self.pool.keep(&pool_name, root, path.as_os_str().as_bytes())?;
        }
        Ok(())
    }
}

impl Links {
    fn new(objects: &[PathBuf], pool: &Path, owners: Owners, most_links: u64) -> Result<Self, CheckoutError> {
        let (objects, pool) = (Objects::open(objects)?, checkout::open_pool(pool)?);
        Ok(Self { objects, pool, owners, most_links, copies: Mutex::default() })
    }

    /// Links the object itself, if it shows what is wanted or may be made to; says whether it did.
    fn link_object(&self, wanted: &Wanted<'_>, directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        if !lendable(wanted.metadata) {
            return Ok(false);
        }
        let file = match self.objects.open_own(&wanted.object) {
            // Of a shared store, if it is anywhere: that lends nothing.
            Err(Errno::NOENT) => return Ok(false),
            other => other?,
        };
        // Until the link is there, nobody may think that the object is free.
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let stat = rustix::fs::fstat(&file)?;
        if stat.st_size as u64 != wanted.size {
            return Err(Errno::IO);
        }
        if !self.is_owner(&stat, wanted.metadata)
            || checkout::links(&stat) + wanted.further_names >= self.most_links
        {
            return Ok(false);
        }
        if !shows(&stat, wanted.metadata) {
            if stat.st_nlink != 1 {
                return Ok(false);
            }
            match rustix::fs::fchmod(&file, Mode::from_raw_mode(wanted.metadata.mode.into())) {
                // Somebody else's, or on a file system that is read-only: a copy will do.
                Err(Errno::PERM | Errno::ROFS) => return Ok(false),
                other => other?,
            }
            rustix::fs::futimens(&file, &checkout::times(wanted.metadata.mtime))?;
        }
        let object = object_name(&wanted.object);
        match rustix::fs::linkat(self.objects.own(), &object, directory, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // EPERM: the system protects hardlinks, and the object is somebody else's.
            Err(Errno::MLINK | Errno::PERM) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_owner(&self, stat: &Stat, metadata: &Metadata) -> bool {
        let (user, group) = checkout::owner(self.owners, metadata)
            .unwrap_or_else(|| (rustix::process::geteuid(), rustix::process::getegid()));
        (stat.st_uid, stat.st_gid) == (user.as_raw(), group.as_raw())
    }
}

/// Whether an object may take this metadata: it stays readable for all, and writable for its owner at most.
fn lendable(metadata: &Metadata) -> bool {
    metadata.mode & !0o755 == 0 && metadata.mode & 0o444 == 0o444 && metadata.xattrs.is_empty()
}

fn shows(stat: &Stat, metadata: &Metadata) -> bool {
    stat.st_mode & 0o7777 == u32::from(metadata.mode)
        && (stat.st_mtime, stat.st_mtime_nsec) == (metadata.mtime, 0)
}

/// Names what a file shows besides its content.
fn tag(owners: Owners, metadata: &Metadata) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("infradev farm v1");
    hasher.update(&metadata.mode.to_le_bytes());
    let (user, group) =
        checkout::owner(owners, metadata).map_or((u32::MAX, u32::MAX), |(u, g)| (u.as_raw(), g.as_raw()));
    hasher.update(&user.to_le_bytes());
    hasher.update(&group.to_le_bytes());
    hasher.update(&metadata.mtime.to_le_bytes());
    for bytes in metadata.xattrs.iter().flat_map(|(name, value)| [name, value]) {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The owners that a farm of whoever runs this is written for: a pool has one owner.
pub fn farm_owners() -> Owners {
    if rustix::process::geteuid().is_root() { Owners::Keep } else { Owners::Root }
}

/// Returns the descriptor's file's metadata, as far as a tag names it.
fn metadata_of(file: impl AsFd, stat: &Stat) -> Result<Metadata, Errno> {
    let xattrs = crate::scan::read_allowed_xattrs(file)?;
    let metadata = Metadata::new(stat.st_mode, stat.st_mtime);
    Ok(Metadata { uid: stat.st_uid, gid: stat.st_gid, xattrs, ..metadata })
}
