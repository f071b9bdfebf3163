//! The only `unsafe` of the program: system calls that no safe wrapper covers.

#![expect(
    unsafe_code,
    reason = "namespaces, id-mapped mounts and inherited descriptors have no safe wrappers"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::thread::UnshareFlags;

/// Moves the calling process into new namespaces (unshare(2)).
///
/// Must be called before the process has a second thread: a new user namespace is refused otherwise, and the
/// others would hold for one thread only.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: rustix asks that no two threads share state which the flags would split, such as the file
    // table under CLONE_FILES. The stages that call this are single-threaded, and never pass that flag.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Takes over a descriptor that the parent process left open under this number.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(F_GETFD) has no memory arguments; it fails on a number that is not open.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is open, and only this call takes it: each stage calls once per number of its
    // command line.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Marks every descriptor from 3 on as closed at the next exec (close_range(2), Linux 5.11).
pub(crate) fn close_on_exec() -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now, so no owned descriptor becomes invalid.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets attributes of a detached mount, and of those below it (mount_setattr(2), Linux 5.12).
pub(crate) fn restrict(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    set_attributes(mount, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, attributes, 0)
}

/// Maps the owners of a detached mount through a user namespace (mount_setattr(2), MOUNT_ATTR_IDMAP).
pub(crate) fn map_owners(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let namespace = user_namespace.as_raw_fd() as u64;
    set_attributes(mount, libc::AT_EMPTY_PATH, libc::MOUNT_ATTR_IDMAP, namespace)
}

fn set_attributes(mount: BorrowedFd<'_>, flags: i32, attr_set: u64, userns_fd: u64) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd };
    // SAFETY: the path is a NUL-terminated empty string and the structure lives through the call; its size
    // is passed, as the kernel's extensible-structure rule asks.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
