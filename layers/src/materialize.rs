//! A merged tree as plain files, from objects that are cloned, copied, or given up and moved.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use infradev_store::{GivenUp, ObjectId};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::checkout::{self, CheckoutError, CheckoutStats, Files, Made, Objects, Wanted};
use crate::scan::Owners;
use crate::tree::Tree;

/// Where the content of files comes from.
#[derive(Debug, Clone, Copy)]
pub enum Supply<'a> {
    /// Shared blocks where the file system has them, else copies.
    Any,
    /// Shared blocks, or an error.
    Clones,
    /// Copies.
    Copies,
    /// The objects themselves, moved if they are among those that have one use in all that is written; else copies.
    Given(&'a GivenUp<'a>, &'a HashSet<ObjectId>),
}

/// Writes `tree`, the result of a merge, at `out`, which must not exist, of objects that are looked for in the
/// directories `objects` in turn.
///
/// Syncs nothing. What an error leaves at `out` is for the caller to remove, but for objects that were moved: these
/// are nowhere else.
pub fn write_files(
    tree: &Tree,
    objects: &[PathBuf],
    owners: Owners,
    supply: Supply<'_>,
    out: &Path,
) -> Result<CheckoutStats, CheckoutError> {
    let files = Supplied { objects: Objects::open(objects)?, owners, supply, out };
    checkout::write(tree, &files, out)
}

struct Supplied<'a> {
    objects: Objects,
    owners: Owners,
    supply: Supply<'a>,
    out: &'a Path,
}

impl Files for Supplied<'_> {
    fn pool_name(&self, _wanted: &Wanted<'_>, _earlier: u32) -> Option<String> {
        None
    }

    fn make(&self, wanted: &Wanted<'_>, directory: &OwnedFd, name: &[u8]) -> Result<Made, Errno> {
        if let Supply::Given(given, once) = self.supply
            && once.contains(&wanted.object)
            // Attributes cannot be set on what nobody may write.
            && wanted.metadata.xattrs.is_empty()
            && given.take(&wanted.object, &self.out.join(wanted.path.as_path())).map_err(errno)?
        {
            return self.adopt(wanted, directory, name);
        }
        let file = checkout::create(directory, name)?;
        match self.supply {
            Supply::Given(given, once) => {
                let place = given.directory().join(wanted.object.to_hex());
                match rustix::fs::open(&place, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
                    Ok(from) => checkout::fill(&from, wanted.size, &file)?,
                    // It was never given: something else needs it.
                    Err(Errno::NOENT) => {
                        checkout::copy_object(&self.objects, wanted.object, wanted.size, &file)?;
                    }
                    Err(error) => return Err(error),
                }
                if once.contains(&wanted.object) {
                    given.forget(&wanted.object).map_err(errno)?;
                }
            }
            Supply::Any => checkout::copy_object(&self.objects, wanted.object, wanted.size, &file)?,
            Supply::Clones => checkout::clone_object(&self.objects, wanted.object, &file)?,
            Supply::Copies => {
                checkout::duplicate_object(&self.objects, wanted.object, wanted.size, &file)?;
            }
        }
        checkout::finish(&file, wanted.metadata, self.owners)?;
        Ok(Made::New(wanted.size))
    }

    fn owners(&self) -> Owners {
        self.owners
    }
}

impl Supplied<'_> {
    /// Gives an object that was moved here what the tree says of it.
    fn adopt(&self, wanted: &Wanted<'_>, directory: &OwnedFd, name: &[u8]) -> Result<Made, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        // A damaged object would be found out by nobody any more.
        if rustix::fs::fstat(&file)?.st_size as u64 != wanted.size {
            return Err(Errno::IO);
        }
        checkout::finish(&file, wanted.metadata, self.owners)?;
        Ok(Made::Linked)
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
