//! Environments: a merged stack, mounted with a writable upper, and commands run in it.

pub mod holder;
pub mod image;
pub(crate) mod join;
pub mod launch;
pub mod mount;
mod namespace;
mod network;
pub mod plan;
pub mod stage;
pub mod state;

use std::sync::OnceLock;

use infradev_store::{FileSystem, Store};

use mount::BackEnd;
use plan::Mapping;

/// Returns the back end that works for this process here, found once by a trial mount.
///
/// Root may mount images, unless the kernel or the file system of the store refuses; stubs are for everybody else.
pub fn default_back_end(store: &Store) -> BackEnd {
    static CHOSEN: OnceLock<BackEnd> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let root = rustix::process::geteuid().is_root();
        if root && trial_image(store).is_ok() { BackEnd::Erofs } else { BackEnd::Stub }
    })
}

/// Mounts an image of nothing over the store's objects, detached: gone as soon as it is there.
fn trial_image(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    let image = store.layout().cache("trial.erofs");
    // An empty one is what a power cut left.
    if !image.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        let temporary = store.layout().cache(&format!("trial.{}", std::process::id()));
        let mut file = std::fs::File::create(&temporary)?;
        infradev_layers::write_image(&infradev_layers::merge([]), &mut file)?;
        std::fs::rename(&temporary, &image)?;
    }
    let (back_end, metadata, objects) = (BackEnd::Erofs, image, store.layout().objects());
    mount::overlay(&mount::Overlay { back_end, metadata, objects, upper: None }, None)?;
    Ok(())
}

/// Says which file system below the store cannot hold what this process would mount; `None` if all is well.
pub fn unmountable(store: &Store) -> Option<&'static str> {
    match store.file_system() {
        FileSystem::Overlay => Some("overlayfs, which cannot hold the writable part of an overlay"),
        FileSystem::Local | FileSystem::Memory | FileSystem::Remote(_) => None,
    }
}

/// Returns how runs of this process map user ids.
pub fn default_mapping() -> Mapping {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() {
        Mapping::Range(Mapping::RANGE)
    } else {
        Mapping::Caller { uid: uid.as_raw(), gid: gid.as_raw() }
    }
}
