//! Mounting what a stack became, with a writable upper: detached until it is complete.
//!
//! # Compatibility
//! Everything goes through descriptors. Kernels before 6.13 take the directories of an overlay by name only; their
//! names are then those of the descriptors below /proc/self/fd, which are short and hold no character that the
//! option string would need escaped (a value may have 255 bytes). Kernels before 6.15 take no lower directory
//! from a mount that is attached nowhere; it is then attached where the overlay will be, for a moment. Kernels
//! before 6.12 mount no EROFS image from a file; it then gets a loop device that goes with the mount.

mod context;
mod pack;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount,
};
use serde::{Deserialize, Serialize};

use context::Context;
use pack::open_pack;
pub(crate) use pack::{is_mount_point, mount_pack, try_pack};

use super::back_end::BackEnd;
use super::namespace;
use super::plan::Mapping;

/// The parts of an environment's file tree. Paths are absolute.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Overlay {
    /// How `metadata` is mounted.
    pub back_end: BackEnd,
    /// The EROFS image file, the stub tree or the farm; nothing for a copy.
    pub metadata: PathBuf,
    /// The objects of the store and of shared ones: the data-only layers of images and stubs.
    pub objects: Vec<PathBuf>,
    /// Where packs are mounted: further data-only layers of images, below the objects.
    #[serde(default)]
    pub packs: Vec<PathBuf>,
    /// The writable part; of a copy, the copy itself.
    pub upper: Upper,
}

/// The writable part of an overlay: two directories of one file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Upper {
    /// What was written.
    pub upper: PathBuf,
    /// The kernel's scratch directory.
    pub work: PathBuf,
    /// Both are made by the mount, in a file system in memory that goes with the run.
    #[serde(default)]
    pub memory: Option<Memory>,
}

/// A file system in memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Memory {
    /// Where it is mounted: the directory above both.
    pub place: PathBuf,
    /// How large it may grow, in bytes.
    pub bytes: u64,
    /// Whose the directories are, as a user and a group.
    pub owner: u32,
}

impl Upper {
    /// Two directories at `upper` and `work` that are there.
    pub(crate) fn on_disk(upper: PathBuf, work: PathBuf) -> Self {
        Self { upper, work, memory: None }
    }

    /// Two directories that the mount makes at `place`, an empty directory.
    pub(crate) fn in_memory(place: PathBuf, bytes: u64, mapping: Mapping) -> Self {
        let owner = match mapping {
            Mapping::Range(first) => first,
            Mapping::Host | Mapping::Caller { .. } => 0,
        };
        let (upper, work) = (place.join("upper"), place.join("work"));
        Self { upper, work, memory: Some(Memory { place, bytes, owner }) }
    }
}

/// A mount that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}{}", .detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default())]
pub struct MountError {
    /// The step that failed.
    pub action: String,
    /// What the kernel wrote about it.
    pub detail: Option<String>,
    /// The system call's error.
    pub source: io::Error,
}

impl MountError {
    fn new(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { action: action.into(), detail: None, source: source.into() }
    }

    /// Packs were rewritten faster than they could be mounted.
    pub(crate) fn gave_up() -> Self {
        Self::new("mount the packs", io::Error::other("they change all the time"))
    }
}

/// A lower directory, and whether it is a mount that is attached nowhere.
struct Lower {
    directory: OwnedFd,
    detached: bool,
}

/// The options of an overlay, as names and values; a flag has no value.
type Options = [(&'static str, &'static str)];

/// The upper holds all of a file that was changed: it can be read without what lies below it.
const SELF_CONTAINED: &Options = &[("metacopy", "off"), ("redirect_dir", "off")];
/// Before 6.16, data-only layers are followed only with both on.
const FOLLOWING: &Options = &[("metacopy", "on"), ("redirect_dir", "on")];
/// Marks that everybody may set in a user namespace; implies a self-contained upper.
const USER_ATTRIBUTES: &Options = &[("userxattr", "")];

/// Mounts `overlay` at the directory `place`.
///
/// With `owners`, the user namespace through which the owners below the upper are mapped.
pub(crate) fn mount(
    overlay: &Overlay,
    owners: Option<BorrowedFd<'_>>,
    place: &Path,
) -> Result<(), MountError> {
    if let Some(memory) = &overlay.upper.memory {
        make_in_memory(memory, &overlay.upper)?;
    }
    let (lower, choices): (_, &[&Options]) = match overlay.back_end {
        BackEnd::Erofs => {
            let image = erofs(&overlay.metadata)?;
            if let Some(owners) = owners {
                map_owners(&image, owners)?;
            }
            (Lower { directory: image, detached: true }, &[SELF_CONTAINED, FOLLOWING])
        }
        BackEnd::Stub => (tree(&overlay.metadata, owners)?, &[USER_ATTRIBUTES]),
        BackEnd::Farm => (tree(&overlay.metadata, owners)?, &[USER_ATTRIBUTES, SELF_CONTAINED]),
        // Made for these owners.
        BackEnd::Copy => return attach(&writable_clone(&overlay.upper.upper)?, place),
    };
    let mut mounted = over(overlay, &lower, choices);
    if mounted.is_err() && lower.detached {
        // Until the overlay has its own clone of it.
        attach(&lower.directory, place)?;
        mounted = over(overlay, &lower, choices);
        unmount(place, UnmountFlags::DETACH)
            .map_err(|error| MountError::new(format!("let go of {}", place.display()), error))?;
    }
    attach(&mounted?, place)
}

/// Mounts a file system in memory, and makes the writable part in it.
fn make_in_memory(memory: &Memory, upper: &Upper) -> Result<(), MountError> {
    let context = Context::open("tmpfs")?;
    context.string("source", "infradev")?;
    context.string("size", &memory.bytes.to_string())?;
    context.string("mode", "0700")?;
    attach(&context.create("mount a file system in memory")?, &memory.place)?;
    for path in [&upper.upper, &upper.work] {
        let failed = |error| MountError::new(format!("create {}", path.display()), error);
        fs::DirBuilder::new().mode(0o755).create(path).map_err(failed)?;
        std::os::unix::fs::chown(path, Some(memory.owner), Some(memory.owner)).map_err(failed)?;
    }
    Ok(())
}

/// Makes a detached mount visible at `directory`.
fn attach(mount: &OwnedFd, directory: &Path) -> Result<(), MountError> {
    move_mount(mount, "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| MountError::new(format!("attach the mount at {}", directory.display()), error))
}

fn erofs(image: &Path) -> Result<OwnedFd, MountError> {
    match erofs_from(image, image) {
        Err(error) if error.source.raw_os_error() == Some(libc::ENOTBLK) => {
            let (device, _kept_until_it_is_mounted) = loop_device(image)?;
            erofs_from(&device, image)
        }
        other => other,
    }
}

fn erofs_from(source: &Path, image: &Path) -> Result<OwnedFd, MountError> {
    let context = Context::open("erofs")?;
    context.flag("ro")?;
    context.string("source", &source.to_string_lossy())?;
    context.create(&format!("mount the image {}", image.display()))
}

/// Mounts the overlay over `lower`, detached, with the first options that the kernel takes.
fn over(overlay: &Overlay, lower: &Lower, choices: &[&Options]) -> Result<OwnedFd, MountError> {
    let mut data = vec![];
    if matches!(overlay.back_end, BackEnd::Erofs | BackEnd::Stub) {
        for objects in &overlay.objects {
            data.push(open_path(objects)?);
        }
    }
    if overlay.back_end == BackEnd::Erofs {
        for pack in &overlay.packs {
            data.push(open_pack(pack)?);
        }
    }
    let layers = Layers {
        lower: lower.directory.as_fd(),
        data,
        upper: open_path(&overlay.upper.upper)?,
        work: open_path(&overlay.upper.work)?,
    };
    let mut mounted = layers.mount(choices[0]);
    for options in &choices[1..] {
        mounted = mounted.or_else(|_| layers.mount(options));
    }
    mounted
}

/// The directories of an overlay.
struct Layers<'a> {
    lower: BorrowedFd<'a>,
    /// Where content lies; what stands in several is read from the first.
    data: Vec<OwnedFd>,
    upper: OwnedFd,
    work: OwnedFd,
}

impl Layers<'_> {
    fn context(&self, options: &Options) -> Result<Context, MountError> {
        let context = Context::open("overlay")?;
        context.string("source", "infradev")?;
        for (name, value) in options {
            if value.is_empty() { context.flag(name)? } else { context.string(name, value)? }
        }
        Ok(context)
    }

    fn mount(&self, options: &Options) -> Result<OwnedFd, MountError> {
        self.mount_by_descriptor(options).or_else(|_| self.mount_by_name(options))
    }

    fn mount_by_descriptor(&self, options: &Options) -> Result<OwnedFd, MountError> {
        let context = self.context(options)?;
        context.fd("lowerdir+", self.lower)?;
        for data in &self.data {
            context.fd("datadir+", data.as_fd())?;
        }
        context.fd("upperdir", self.upper.as_fd())?;
        context.fd("workdir", self.work.as_fd())?;
        context.create("mount the overlay")
    }

    fn mount_by_name(&self, options: &Options) -> Result<OwnedFd, MountError> {
        let name = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let context = self.context(options)?;
        let mut lower = name(self.lower);
        for data in &self.data {
            lower = format!("{lower}::{}", name(data.as_fd()));
        }
        context.string("lowerdir", &lower)?;
        context.string("upperdir", &name(self.upper.as_fd()))?;
        context.string("workdir", &name(self.work.as_fd()))?;
        context.create("mount the overlay")
    }
}

/// Opens a directory as it is, or as a detached mount of it whose owners are mapped.
fn tree(path: &Path, owners: Option<BorrowedFd<'_>>) -> Result<Lower, MountError> {
    let Some(owners) = owners else { return Ok(Lower { directory: open_path(path)?, detached: false }) };
    let directory = clone_tree(path)?;
    map_owners(&directory, owners)?;
    Ok(Lower { directory, detached: true })
}

fn map_owners(mount: &OwnedFd, owners: BorrowedFd<'_>) -> Result<(), MountError> {
    namespace::map_owners(mount.as_fd(), owners)
        .map_err(|error| MountError::new("map the owners of the lower directory", error))
}

/// Returns a detached mount of a directory that holds all of an environment.
fn writable_clone(path: &Path) -> Result<OwnedFd, MountError> {
    let directory = clone_tree(path)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    namespace::restrict(directory.as_fd(), attributes.bits().into())
        .map_err(|error| MountError::new(format!("restrict {}", path.display()), error))?;
    Ok(directory)
}

fn clone_tree(path: &Path) -> Result<OwnedFd, MountError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, path, flags).map_err(|error| MountError::new(format!("show {}", path.display()), error))
}

fn open_path(path: &Path) -> Result<OwnedFd, MountError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| MountError::new(format!("open {}", path.display()), error))
}

/// Makes a loop device of an image. It reads by way of the page cache, where the kernel reads ahead: squashfs waits
/// for each of its blocks, and past the cache for the disk each time.
fn loop_device(image: &Path) -> Result<(PathBuf, File), MountError> {
    namespace::loop_device(image)
        .map_err(|error| MountError::new(format!("make a loop device of {}", image.display()), error))
}
