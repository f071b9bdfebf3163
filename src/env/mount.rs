//! Mounting a merged image or stub tree with a writable upper: detached until it is complete.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use serde::{Deserialize, Serialize};

use super::namespace;

/// How the merged metadata becomes a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackEnd {
    /// An EROFS image; for root.
    Erofs,
    /// A tree of stub files; for everybody, on kernels with data-only layers under `userxattr`.
    Stub,
}

impl BackEnd {
    /// Returns the word for tables.
    pub fn word(self) -> &'static str {
        match self {
            BackEnd::Erofs => "erofs",
            BackEnd::Stub => "stub",
        }
    }
}

/// The parts of an overlay. Paths are absolute.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Overlay {
    /// How `metadata` is mounted.
    pub back_end: BackEnd,
    /// The EROFS image file, or the stub tree.
    pub metadata: PathBuf,
    /// The store's objects: the data-only layer.
    pub objects: PathBuf,
    /// The writable part; `None` for a read-only mount.
    pub upper: Option<Upper>,
}

/// The writable part of an overlay: two directories of one file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Upper {
    /// What was written.
    pub upper: PathBuf,
    /// The kernel's scratch directory.
    pub work: PathBuf,
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
}

/// Mounts `overlay`, detached: nothing is visible until [`attach`].
///
/// With `owners`, the user namespace through which the image's owners are mapped.
pub(crate) fn overlay(overlay: &Overlay, owners: Option<BorrowedFd<'_>>) -> Result<OwnedFd, MountError> {
    match overlay.back_end {
        BackEnd::Erofs => {
            let image = erofs(&overlay.metadata)?;
            if let Some(owners) = owners {
                namespace::map_owners(image.as_fd(), owners)
                    .map_err(|error| MountError::new("map the owners of the image", error))?;
            }
            // A self-contained upper wants both off; kernels before 6.16 follow data-only layers only with both on.
            let plain = [("metacopy", "off"), ("redirect_dir", "off")];
            let followed = [("metacopy", "on"), ("redirect_dir", "on")];
            over(overlay, image.as_fd(), &plain)
                .or_else(|error| over(overlay, image.as_fd(), &followed).map_err(|_second| error))
        }
        BackEnd::Stub => {
            let stubs = match owners {
                Some(owners) => mapped_tree(&overlay.metadata, owners)?,
                None => open_path(&overlay.metadata)?,
            };
            over(overlay, stubs.as_fd(), &[("userxattr", "")])
        }
    }
}

/// Makes a detached mount visible at `directory`.
pub(crate) fn attach(mount: &OwnedFd, directory: &Path) -> Result<(), MountError> {
    move_mount(mount, "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| MountError::new(format!("attach the mount at {}", directory.display()), error))
}

fn erofs(image: &Path) -> Result<OwnedFd, MountError> {
    let context = Context::open("erofs")?;
    context.flag("ro")?;
    context.string("source", &image.to_string_lossy())?;
    context.create(&format!("mount the image {}", image.display()))
}

fn over(
    overlay: &Overlay,
    metadata: BorrowedFd<'_>,
    options: &[(&str, &str)],
) -> Result<OwnedFd, MountError> {
    let context = Context::open("overlay")?;
    context.string("source", "infradev")?;
    for (name, value) in options {
        if value.is_empty() { context.flag(name)? } else { context.string(name, value)? }
    }
    let objects = open_path(&overlay.objects)?;
    context.fd("lowerdir+", metadata)?;
    context.fd("datadir+", objects.as_fd())?;
    if let Some(upper) = &overlay.upper {
        // By descriptor: a string option is cut off at 255 bytes.
        context.fd("upperdir", open_path(&upper.upper)?.as_fd())?;
        context.fd("workdir", open_path(&upper.work)?.as_fd())?;
    }
    context.create("mount the overlay")
}

/// Returns a detached mount of the directory `path`, whose owners are mapped.
fn mapped_tree(path: &Path, owners: BorrowedFd<'_>) -> Result<OwnedFd, MountError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, path, flags)
        .map_err(|error| MountError::new(format!("show {}", path.display()), error))?;
    namespace::map_owners(tree.as_fd(), owners)
        .map_err(|error| MountError::new("map the owners of the stubs", error))?;
    Ok(tree)
}

fn open_path(path: &Path) -> Result<OwnedFd, MountError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| MountError::new(format!("open {}", path.display()), error))
}

/// A file system that is being configured (fsopen(2)).
struct Context {
    fd: OwnedFd,
    kind: &'static str,
}

impl Context {
    fn open(kind: &'static str) -> Result<Self, MountError> {
        let fd = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|error| MountError::new(format!("use the file system {kind}"), error))?;
        Ok(Self { fd, kind })
    }

    fn flag(&self, name: &str) -> Result<(), MountError> {
        fsconfig_set_flag(&self.fd, name).map_err(|error| self.refused(name, error))
    }

    fn string(&self, name: &str, value: &str) -> Result<(), MountError> {
        fsconfig_set_string(&self.fd, name, value).map_err(|error| self.refused(name, error))
    }

    fn fd(&self, name: &str, value: BorrowedFd<'_>) -> Result<(), MountError> {
        fsconfig_set_fd(&self.fd, name, value).map_err(|error| self.refused(name, error))
    }

    fn create(&self, action: &str) -> Result<OwnedFd, MountError> {
        let failed = |error: rustix::io::Errno| MountError {
            action: action.to_owned(),
            detail: self.kernel_message(),
            source: error.into(),
        };
        fsconfig_create(&self.fd).map_err(failed)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(&self.fd, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed)
    }

    fn refused(&self, option: &str, error: rustix::io::Errno) -> MountError {
        MountError {
            action: format!("set the option {option} of {}", self.kind),
            detail: self.kernel_message(),
            source: error.into(),
        }
    }

    /// What the kernel wrote about this context: reading its descriptor gives `e overlay: text`.
    fn kernel_message(&self) -> Option<String> {
        let mut buffer = [0u8; 1024];
        let length = rustix::io::read(&self.fd, &mut buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        Some(text.trim().trim_start_matches("e ").to_owned())
    }
}
