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

use infradev_store::{FileSystem, Store};

use mount::BackEnd;
use plan::Mapping;

/// Returns the back end for this process: images for root, stubs for everybody else.
pub fn default_back_end(_store: &Store) -> BackEnd {
    if rustix::process::geteuid().is_root() { BackEnd::Erofs } else { BackEnd::Stub }
}

/// Says which file system below the store cannot hold what this process would mount; `None` if all is well.
pub fn unmountable(store: &Store) -> Option<&'static str> {
    match store.file_system() {
        FileSystem::Overlay => Some("overlayfs, which cannot hold the writable part of an overlay"),
        FileSystem::Memory if default_back_end(store) == BackEnd::Erofs => {
            Some("tmpfs, from which the kernel mounts no image")
        }
        _ => None,
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
