//! The bytes of an object in a file of its own: shared blocks where the file system has them, else a copy.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use infradev_store::{ObjectId, object_name};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{CheckoutError, open_directory};

/// The directories in which objects are found: the store's own, then those of shared stores.
pub(crate) struct Objects {
    own: OwnedFd,
    shared: Vec<OwnedFd>,
}

impl Objects {
    /// Opens the directories, of which there is at least the first.
    pub(crate) fn open(directories: &[PathBuf]) -> Result<Self, CheckoutError> {
        let (own, shared) = directories.split_first().expect("a store has objects");
        let shared = shared.iter().map(|path| open_directory(path)).collect::<Result<_, _>>()?;
        Ok(Self { own: open_directory(own)?, shared })
    }

    /// The store's own.
    pub(crate) fn own(&self) -> &OwnedFd {
        &self.own
    }

    /// Opens an object of the store's own.
    pub(crate) fn open_own(&self, object: &ObjectId) -> Result<OwnedFd, Errno> {
        open_object(&self.own, object)
    }

    fn open_any(&self, object: &ObjectId) -> Result<OwnedFd, Errno> {
        let mut found = self.open_own(object);
        for directory in &self.shared {
            if !matches!(found, Err(Errno::NOENT)) {
                break;
            }
            found = open_object(directory, object);
        }
        found
    }
}

fn open_object(directory: &OwnedFd, object: &ObjectId) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, object_name(object), flags, Mode::empty())
}

/// Fills the empty file `to` with the `size` bytes of an object.
pub(crate) fn copy_object(objects: &Objects, object: ObjectId, size: u64, to: &OwnedFd) -> Result<(), Errno> {
    fill(&objects.open_any(&object)?, size, to)
}

/// Fills the empty file `to` with the `size` bytes of `from`.
pub(crate) fn fill(from: &OwnedFd, size: u64, to: &OwnedFd) -> Result<(), Errno> {
    let copied = match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => rustix::fs::fstat(to)?.st_size as u64,
        // The errors of file systems that share no blocks, or not between these two, differ.
        Err(_) => copy(from, to)?,
    };
    // An object of the wrong size is damaged; a file made from it would outlive its repair.
    if copied == size { Ok(()) } else { Err(Errno::IO) }
}

/// Makes the empty file `to` share the blocks of an object, or fails.
pub(crate) fn clone_object(objects: &Objects, object: ObjectId, to: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::ioctl_ficlone(to, &objects.open_any(&object)?)
}

/// Fills the empty file `to` with the `size` bytes of an object, in blocks of its own.
pub(crate) fn duplicate_object(
    objects: &Objects,
    object: ObjectId,
    size: u64,
    to: &OwnedFd,
) -> Result<(), Errno> {
    let copied = copy_bytes(&objects.open_any(&object)?, to, 0)?;
    if copied == size { Ok(()) } else { Err(Errno::IO) }
}

fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<u64, Errno> {
    let mut copied = 0;
    loop {
        match rustix::fs::copy_file_range(from, None, to, None, 1 << 30) {
            Ok(0) => return Ok(copied),
            Ok(count) => copied += count as u64,
            Err(Errno::INTR) => {}
            // Not between these file systems, or not by this kernel.
            Err(_) if copied == 0 => break,
            Err(error) => return Err(error),
        }
    }
    copy_bytes(from, to, copied)
}

/// Copies what is left of `from` by reading and writing: no file system shares blocks then.
fn copy_bytes(from: &OwnedFd, to: &OwnedFd, mut copied: u64) -> Result<u64, Errno> {
    let mut buffer = vec![0; 1 << 17];
    loop {
        let count = match rustix::io::read(from, &mut buffer) {
            Ok(0) => return Ok(copied),
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            match rustix::io::write(to, rest) {
                Err(Errno::INTR) => {}
                other => rest = &rest[other?..],
            }
        }
        copied += count as u64;
    }
}
