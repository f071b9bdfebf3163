//! Packed content for environments: packs are mounted once for the whole host, or what is needed of them becomes
//! plain.
//!
//! The caller holds a lease on the layers and asks afterwards: a compression either sees the lease and leaves the
//! plain objects, or is done, and its pack is in the list. A pack that is rewritten stays in the trash as long as
//! the lease lives, and its mount stays with it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use infradev_store::references::Reference;
use infradev_store::{LayerId, Lease, PackId, Store};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

use super::back_end::BackEnd;
use super::image::StackError;
use super::mount::{MountError, is_mount_point, mount_pack};

/// How often packs are listed anew when one is rewritten in between.
const ATTEMPTS: usize = 16;

/// What an environment needs of the packs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Needs<'a> {
    /// The objects of these layers.
    Layers(&'a [LayerId]),
    /// These objects.
    Objects(&'a [Reference]),
}

/// Makes packed content usable with `back_end`; returns the directories of the mounted packs.
pub(crate) fn ready(
    store: &Store,
    back_end: BackEnd,
    needs: Needs<'_>,
    lease: &Lease,
) -> Result<Vec<PathBuf>, StackError> {
    if back_end == BackEnd::Erofs
        && let Ok(packs) = mount_all(store)?
    {
        match needs {
            Needs::Layers(layers) => store.promote_shared_layers(layers, lease)?,
            Needs::Objects(objects) => store.promote_shared(objects, lease)?,
        };
        return Ok(packs);
    }
    match needs {
        Needs::Layers(layers) => store.promote_layers(layers, lease)?,
        Needs::Objects(objects) => store.promote(objects, lease)?,
    };
    Ok(vec![])
}

/// Mounts every pack that is not mounted yet; the inner error says why packs cannot be mounted here.
fn mount_all(store: &Store) -> Result<Result<Vec<PathBuf>, MountError>, StackError> {
    for _ in 0..ATTEMPTS {
        let mounted = store.pack_names()?.iter().map(|pack| mount_one(store, pack)).collect();
        match mounted {
            Ok(Some(packs)) => return Ok(Ok(packs)),
            // Rewritten since it was listed.
            Ok(None) => {}
            Err(Failure::Io(error)) => return Err(error),
            Err(Failure::Mount(error)) => return Ok(Err(error)),
        }
    }
    Ok(Err(MountError::gave_up()))
}

enum Failure {
    Mount(MountError),
    Io(StackError),
}

/// Mounts a pack at its directory unless that was done; returns the directory, `None` if the pack is gone.
fn mount_one(store: &Store, pack: &PackId) -> Result<Option<PathBuf>, Failure> {
    let (image, place) = (store.layout().pack(pack), store.layout().pack_mount(pack));
    if is_mount_point(&place) {
        return Ok(Some(place));
    }
    let failed = |action, path: &PathBuf| {
        let path = path.clone();
        move |source| Failure::Io(StackError::Io { action, path, source })
    };
    let file = match File::open(&image) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed("open", &image))?,
    };
    // One mount, however many ask for it.
    let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
    locked.map_err(|error| failed("lock", &image)(error.into()))?;
    if is_mount_point(&place) {
        return Ok(Some(place));
    }
    if !image.exists() {
        return Ok(None);
    }
    match store.disk().create_directory(&place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("create", &place)(error));
        }
        _ => {}
    }
    mount_pack(&image, &place).map_err(Failure::Mount)?;
    Ok(Some(place))
}

/// Lets go of the mounts of packs that are gone. Environments that use them have them still.
pub(crate) fn sweep_mounts(store: &Store) -> Result<(), StackError> {
    for pack in store.forsaken_pack_mounts()? {
        release(store, &pack);
    }
    Ok(())
}

/// Unmounts a pack, so that whoever needs it next mounts what is there then.
pub(crate) fn release(store: &Store, pack: &PackId) {
    let place = store.layout().pack_mount(pack);
    while is_mount_point(&place) && unmount(&place, UnmountFlags::DETACH).is_ok() {}
    let _somebody_else_may_have_mounted_it = fs::remove_dir(&place);
}
