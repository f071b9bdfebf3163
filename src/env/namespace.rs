//! The only `unsafe` of the program: system calls that no safe wrapper covers.

#![expect(
    unsafe_code,
    reason = "namespaces, id-mapped mounts, loop devices and inherited descriptors have no safe wrappers"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::process::Pid;
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

/// Starts a process that does nothing in a new user namespace, until it is killed or its parent ends.
///
/// Must be called before the process has a second thread, which the child would not have.
pub(crate) fn sleep_in_user_namespace() -> io::Result<Pid> {
    let parent = rustix::process::getpid().as_raw_nonzero().get();
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and without a stack, clone(2) is fork(2): the child has a copy of all memory, and
    // goes on here on the copy of this stack.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match child {
        0 => {
            // SAFETY: system calls without memory arguments. The parent may have ended before the first of them.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                while libc::getppid() == parent {
                    libc::pause();
                }
                libc::_exit(0)
            }
        }
        child => i32::try_from(child).ok().and_then(Pid::from_raw).ok_or_else(io::Error::last_os_error),
    }
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

/// The structure of LOOP_CONFIGURE (linux/loop.h, `struct loop_config` with its `struct loop_info64`).
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// Makes a read-only loop device of `image` (loop(4), Linux 5.8); it is undone when nobody has it open any more.
pub(crate) fn loop_device(image: &Path) -> io::Result<(PathBuf, File)> {
    let image = File::open(image)?;
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    // Somebody else may take the free one first.
    for _attempt in 0..64 {
        // SAFETY: LOOP_CTL_GET_FREE has no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = File::open(&path)?;
        let config = LoopConfig {
            fd: image.as_raw_fd() as u32,
            block_size: 0,
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
            reserved: [0; 8],
        };
        // SAFETY: the structure has the layout that the kernel reads, and lives through the call.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
        match io::Error::last_os_error() {
            _ if result == 0 => return Ok((path, device)),
            error if error.raw_os_error() == Some(libc::EBUSY) => {}
            error => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}
