//! The root file system of a run, put together from the specification's mounts.
//!
//! Every destination is resolved inside the new root (openat2(2), RESOLVE_IN_ROOT): a symlink in an environment
//! cannot lead a mount elsewhere.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Mount, Spec};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change,
    move_mount, open_tree, unmount,
};

use super::{Failure, While};
use crate::env::launch::{LaunchPlan, RootFileSystem};
use crate::env::{mount, namespace};

/// Makes the root file system of `plan` this process's root.
pub(super) fn enter(plan: &LaunchPlan, user_namespace: Option<&OwnedFd>) -> Result<(), Failure> {
    let path = root_path(&plan.spec)?;
    // What happens here must not reach the host, nor the other way round.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).during("separate the mounts from the host's")?;
    match &plan.root {
        RootFileSystem::Overlay(overlay) => {
            mount::mount(overlay, user_namespace.map(AsFd::as_fd), path).map_err(refused)?;
        }
        RootFileSystem::Mounted => {
            let clone = clone_tree(path)?;
            move_mount(&clone, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .during("attach the environment")?;
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).during("open the environment")?;
    for mount in plan.spec.mounts().iter().flatten() {
        add(&root, mount)?;
    }
    link_devices(&root)?;
    if let Some(linux) = plan.spec.linux() {
        for path in linux.readonly_paths().iter().flatten() {
            make_read_only(&root, Path::new(path))?;
        }
        for path in linux.masked_paths().iter().flatten() {
            mask(&root, Path::new(path))?;
        }
    }
    rustix::process::fchdir(&root).during("enter the environment")?;
    // With both arguments alike, the old root ends up on top of the new one (pivot_root(2), NOTES).
    rustix::process::pivot_root(".", ".").during("change the root")?;
    unmount(".", UnmountFlags::DETACH).during("leave the old root")?;
    rustix::process::chdir("/").during("enter the environment")
}

/// Adds the symlinks that every /dev has (runtime-linux.md, "Dev symbolic links"; devpts in config-linux.md).
fn link_devices(root: &OwnedFd) -> Result<(), Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let devices =
        rustix::fs::openat2(root, "dev", flags, Mode::empty(), ResolveFlags::IN_ROOT).during("open /dev")?;
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        match rustix::fs::symlinkat(target, &devices, name) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(Failure::new(format!("link /dev/{name}"), error)),
        }
    }
    Ok(())
}

pub(super) fn refused(error: mount::MountError) -> Failure {
    let mount::MountError { action, detail, source } = error;
    Failure::new(action, detail.map_or_else(|| source.to_string(), |detail| format!("{detail}: {source}")))
}

fn root_path(spec: &Spec) -> Result<&PathBuf, Failure> {
    let root = spec.root().as_ref().map(oci_spec::runtime::Root::path);
    root.ok_or_else(|| Failure::new("read the plan", "it has no root"))
}

fn add(root: &OwnedFd, mount: &Mount) -> Result<(), Failure> {
    let destination = mount.destination();
    let action = format!("mount {}", destination.display());
    let options = mount.options().clone().unwrap_or_default();
    let (attributes, rest) = split_options(&options);
    let kind = mount.typ().as_deref().unwrap_or("bind");
    let (mounted, is_directory) = if kind == "bind" {
        let source = mount.source().as_ref().ok_or_else(|| Failure::new(&action, "it has no source"))?;
        let clone = clone_tree(source)?;
        namespace::restrict(clone.as_fd(), attributes.bits().into()).during(&action)?;
        let stat = rustix::fs::fstat(&clone).during(&action)?;
        (clone, rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
    } else {
        (new_file_system(kind, attributes, &rest).during(&action)?, true)
    };
    let target = destination_in(root, destination, is_directory).during(&action)?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&mounted, "", &target, "", both).during(&action)
}

fn split_options(options: &[String]) -> (MountAttrFlags, Vec<&str>) {
    let (mut attributes, mut rest) = (MountAttrFlags::empty(), vec![]);
    for option in options {
        match option.as_str() {
            "ro" => attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY,
            "nosuid" => attributes |= MountAttrFlags::MOUNT_ATTR_NOSUID,
            "nodev" => attributes |= MountAttrFlags::MOUNT_ATTR_NODEV,
            "noexec" => attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC,
            "bind" | "rbind" => {}
            other => rest.push(other),
        }
    }
    (attributes, rest)
}

fn new_file_system(kind: &str, attributes: MountAttrFlags, options: &[&str]) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for option in options {
        match option.split_once('=') {
            Some((name, value)) => fsconfig_set_string(&context, name, value)?,
            None => fsconfig_set_flag(&context, *option)?,
        }
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn clone_tree(source: &Path) -> Result<OwnedFd, Failure> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, source, flags).during(&format!("show {}", source.display()))
}

/// Opens the place of a mount below `root`, making it where it is missing.
fn destination_in(root: &OwnedFd, path: &Path, is_directory: bool) -> rustix::io::Result<OwnedFd> {
    let open = |path: &Path, flags: OFlags, mode: Mode| {
        rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, mode, ResolveFlags::IN_ROOT)
    };
    let missing = match open(path, OFlags::PATH, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => path,
        other => return other,
    };
    let parent = missing.parent().unwrap_or(Path::new("/"));
    let parent = destination_in(root, parent, true)?;
    let name = CString::new(missing.file_name().unwrap_or_default().as_encoded_bytes()).unwrap_or_default();
    if is_directory {
        rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o755))?;
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&parent, &name, flags, Mode::from_raw_mode(0o644))?;
    }
    open(path, OFlags::PATH, Mode::empty())
}

fn make_read_only(root: &OwnedFd, path: &Path) -> Result<(), Failure> {
    let action = format!("protect {}", path.display());
    let Some(place) = existing(root, path).during(&action)? else { return Ok(()) };
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = open_tree(&place, "", flags).during(&action)?;
    namespace::restrict(clone.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY.bits().into()).during(&action)?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&clone, "", &place, "", both).during(&action)
}

fn mask(root: &OwnedFd, path: &Path) -> Result<(), Failure> {
    let action = format!("hide {}", path.display());
    let Some(place) = existing(root, path).during(&action)? else { return Ok(()) };
    let stat = rustix::fs::fstat(&place).during(&action)?;
    let cover = if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        new_file_system("tmpfs", MountAttrFlags::MOUNT_ATTR_RDONLY, &["size=0"]).during(&action)?
    } else {
        clone_tree(Path::new("/dev/null"))?
    };
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&cover, "", &place, "", both).during(&action)
}

fn existing(root: &OwnedFd, path: &Path) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        Err(rustix::io::Errno::NOENT) => Ok(None),
        other => other.map(Some),
    }
}
