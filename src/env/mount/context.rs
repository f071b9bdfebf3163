//! File systems before they are mounted (fsopen(2)), and what the kernel says when it refuses.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::MountError;

/// A file system that is being configured (fsopen(2)).
pub(super) struct Context {
    fd: OwnedFd,
    kind: &'static str,
}

impl Context {
    pub(super) fn open(kind: &'static str) -> Result<Self, MountError> {
        let fd = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|error| MountError::new(format!("use the file system {kind}"), error))?;
        Ok(Self { fd, kind })
    }

    pub(super) fn flag(&self, name: &str) -> Result<(), MountError> {
        fsconfig_set_flag(&self.fd, name).map_err(|error| self.refused(name, error))
    }

    pub(super) fn string(&self, name: &str, value: &str) -> Result<(), MountError> {
        fsconfig_set_string(&self.fd, name, value).map_err(|error| self.refused(name, error))
    }

    pub(super) fn fd(&self, name: &str, value: BorrowedFd<'_>) -> Result<(), MountError> {
        fsconfig_set_fd(&self.fd, name, value).map_err(|error| self.refused(name, error))
    }

    pub(super) fn create(&self, action: &str) -> Result<OwnedFd, MountError> {
        let failed = |error: rustix::io::Errno| MountError {
            action: action.to_owned(),
            detail: self.kernel_message(),
            source: error.into(),
        };
        fsconfig_create(&self.fd).map_err(failed)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(&self.fd, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed)
    }

    pub(super) fn refused(&self, option: &str, error: rustix::io::Errno) -> MountError {
        MountError {
            action: format!("set the option {option} of {}", self.kind),
            detail: self.kernel_message(),
            source: error.into(),
        }
    }

    /// What the kernel wrote about this context: reading its descriptor gives `e overlay: text`.
    pub(super) fn kernel_message(&self) -> Option<String> {
        let mut buffer = [0u8; 1024];
        let length = rustix::io::read(&self.fd, &mut buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        Some(text.trim().trim_start_matches("e ").to_owned())
    }
}
