//! A merged tree as plain files that belong to nobody else: for environments without any overlay.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::checkout::{self, CheckoutError, CheckoutStats, Files, Made, Objects, Wanted};
use crate::scan::Owners;
use crate::tree::Tree;

/// Writes `tree`, the result of a merge, as a full copy at `out`, which must not exist, of objects that are looked
/// for in the directories `objects` in turn.
///
/// `owners` says whose the files become on disk: the inverse of reading it with [`scan`](crate::scan). Syncs
/// nothing. What an error leaves at `out` is for the caller to remove.
pub fn write_copy(
    tree: &Tree,
    objects: &[PathBuf],
    owners: Owners,
    out: &Path,
) -> Result<CheckoutStats, CheckoutError> {
    checkout::write(tree, &Copies { objects: Objects::open(objects)?, owners }, out)
}

struct Copies {
    objects: Objects,
    owners: Owners,
}

impl Files for Copies {
    fn pool_name(&self, _wanted: &Wanted<'_>, _earlier: u32) -> Option<String> {
        None
    }

    fn make(&self, wanted: &Wanted<'_>, directory: &OwnedFd, name: &[u8]) -> Result<Made, Errno> {
        let file = checkout::create(directory, name)?;
        checkout::copy_object(&self.objects, wanted.object, wanted.size, &file)?;
        checkout::finish(&file, wanted.metadata, self.owners)?;
        Ok(Made::New(wanted.size))
    }

    fn owners(&self) -> Owners {
        self.owners
    }
}
