//! What transfers keep for the next one: compressed blobs, and blobs that did not arrive whole.
//!
//! Both are caches. A transfer holds their lock shared; a collection removes them when it gets it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use infradev_store::{Error, Lock, Mode, Result, Store, remove_tree};

/// The caches of transfers, in use.
#[derive(Debug)]
pub struct Transfers {
    _shared: Lock,
    /// Blobs that were made, and what is known of them.
    pub(super) made: PathBuf,
    /// Blobs on their way.
    pub(super) arriving: PathBuf,
}

impl Transfers {
    /// Uses the caches of `store`.
    pub(super) fn of(store: &Store) -> Result<Self> {
        let root = store.layout().cache("transfers");
        let (made, arriving) = (root.join("made"), root.join("arriving"));
        for path in [&made, &arriving] {
            fs::create_dir_all(path).map_err(|error| Error::io("create", path, error))?;
        }
        let shared = Lock::wait(&root.join("lock"), Mode::Shared)?;
        Ok(Self { _shared: shared, made, arriving })
    }
}

/// Removes what transfers kept, unless one runs; returns how many bytes on disk that frees, or would.
pub fn clear_transfers(store: &Store, dry_run: bool) -> Result<u64> {
    let root = store.layout().cache("transfers");
    if !root.exists() {
        return Ok(0);
    }
    let Some(_alone) = Lock::attempt(&root.join("lock"))? else { return Ok(0) };
    let mut freed = 0;
    for below in ["made", "arriving"] {
        for entry in fs::read_dir(root.join(below)).into_iter().flatten().flatten() {
            // What is known of a blob is small, and spares making it again for a place that has it.
            if entry.path().extension().is_some_and(|extension| extension == "json") {
                continue;
            }
            freed += entry.metadata().map_or(0, |found| found.blocks() * 512);
            if !dry_run {
                remove_tree(&entry.path())?;
            }
        }
    }
    Ok(freed)
}
