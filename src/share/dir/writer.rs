//! The writers of an image layout: as long as there are some, nothing that they rely on is removed.
//!
//! A writer holds a shared lock from its first look at a blob to its end. Whoever gets the lock alone may remove
//! what killed writers have left, and blobs that no image names: nobody has seen them and means to name them.

use std::fs;
use std::path::{Path, PathBuf};

use infradev_store::{Lock, Mode};
use rustix::fs::{FlockOperation, flock};

use super::failed;
use crate::hex::unique;
use crate::share::RemoteError;

/// The lock's file.
const LOCK: &str = "writers.lock";
/// What the names of unfinished files begin with.
const UNFINISHED: &str = ".infradev-";

/// One of the writers.
#[derive(Debug)]
pub(super) struct Writer(Lock);

impl Writer {
    /// Joins the writers of the layout at `root`; the first one removes what is unfinished.
    pub(super) fn join(root: &Path) -> Result<Self, RemoteError> {
        let writer = Self(Lock::wait(&root.join(LOCK), Mode::Shared).map_err(cannot_lock(root))?);
        writer.if_alone(root, || remove_unfinished(root))?;
        Ok(writer)
    }

    /// Does `work` if there is no other writer.
    pub(super) fn if_alone<T>(
        &self,
        root: &Path,
        work: impl FnOnce() -> Result<T, RemoteError>,
    ) -> Result<Option<T>, RemoteError> {
        // A failed change of a lock may lose it (flock(2)), so it is taken again in both cases.
        let done = match flock(self.0.file(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => work().map(Some),
            Err(_) => Ok(None),
        };
        let again = rustix::io::retry_on_intr(|| flock(self.0.file(), FlockOperation::LockShared));
        again.map_err(|error| failed("lock", root)(error.into()))?;
        done
    }
}

/// Names a file that is not finished.
pub(super) fn unfinished(root: &Path) -> PathBuf {
    root.join(format!("{UNFINISHED}{}", unique()))
}

fn remove_unfinished(root: &Path) -> Result<(), RemoteError> {
    for entry in fs::read_dir(root).map_err(failed("read", root))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let _tried_by_the_next_one = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Lays out why a lock of the layout at `root` was not got.
pub(super) fn cannot_lock(root: &Path) -> impl FnOnce(infradev_store::Error) -> RemoteError + use<> {
    let path = root.to_owned();
    move |error| failed("lock", &path)(error.into_io())
}
