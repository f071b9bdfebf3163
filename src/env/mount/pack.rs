//! Packs: squashfs images, each mounted once for all environments.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};

use super::context::Context;
use super::{MountError, attach, loop_device, open_path};

/// Whether a file system is mounted at `path`, a directory (statx(2), Linux 5.8); an absent one has none.
pub(crate) fn is_mount_point(path: &Path) -> bool {
    let found = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Opens a mounted pack. The bare directory would be an empty layer, and files without content.
pub(super) fn open_pack(path: &Path) -> Result<OwnedFd, MountError> {
    match is_mount_point(path) {
        true => open_path(path),
        false => {
            let gone = io::Error::other("it is not mounted any more");
            Err(MountError::new(format!("use the pack {}", path.display()), gone))
        }
    }
}

/// What is read, and so decompressed, around the place of a fault in a pack: one block.
pub(super) const READ_AROUND_KIB: &str = "256";

/// Mounts the squashfs image of a pack, attached nowhere.
fn squashfs(image: &Path) -> Result<OwnedFd, MountError> {
    let (device, _kept_until_it_is_mounted) = loop_device(image)?;
    let mounted = |threads: Option<&str>| {
        let context = Context::open("squashfs")?;
        context.flag("ro")?;
        context.string("source", &device.to_string_lossy())?;
        if let Some(threads) = threads {
            context.string("threads", threads)?;
        }
        context.create(&format!("mount the pack {}", image.display()))
    };
    // A decompressor for each processor, where the kernel lets that be chosen (Linux 6.2).
    let mount = mounted(Some("percpu")).or_else(|_| mounted(None))?;
    // Afterwards: mounting makes it four blocks.
    if let Some(name) = device.file_name() {
        let setting = Path::new("/sys/block").join(name).join("queue/read_ahead_kb");
        let _only_slower_without = fs::write(setting, READ_AROUND_KIB);
    }
    Ok(mount)
}

/// Mounts the image of a pack at a directory.
pub(crate) fn mount_pack(image: &Path, place: &Path) -> Result<(), MountError> {
    attach(&squashfs(image)?, place)
}

/// Tries to mount the image of a pack, and lets go of it.
pub(crate) fn try_pack(image: &Path) -> Result<(), MountError> {
    squashfs(image).map(drop)
}
