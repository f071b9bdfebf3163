//! Locks: `flock` on open file descriptions, which the kernel frees when their holder dies.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::error::{Context, Error, Result};

/// How a lock is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Many holders at once.
    Shared,
    /// One holder.
    Exclusive,
}

/// A held lock; dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Waits for the lock at `path`, creating the file if it is absent.
    pub fn wait(path: &Path, mode: Mode) -> Result<Self> {
        let file = open(path)?;
        let operation = match mode {
            Mode::Shared => FlockOperation::LockShared,
            Mode::Exclusive => FlockOperation::LockExclusive,
        };
        rustix::io::retry_on_intr(|| flock(&file, operation)).at("lock", path)?;
        Ok(Self { file })
    }

    /// Waits for the exclusive lock at `path`, but not longer than `limit`.
    pub(crate) fn wait_at_most(path: &Path, limit: Duration) -> Result<Self> {
        Self::within(path, limit, Self::attempt)
    }

    /// The same for a directory.
    pub(crate) fn wait_directory_at_most(path: &Path, limit: Duration) -> Result<Self> {
        Self::within(path, limit, Self::attempt_directory)
    }

    fn within(path: &Path, limit: Duration, attempt: impl Fn(&Path) -> Result<Option<Self>>) -> Result<Self> {
        let began = Instant::now();
        loop {
            match attempt(path)? {
                Some(lock) => return Ok(lock),
                None if began.elapsed() > limit => return Err(Error::Busy { path: path.to_owned() }),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Takes the exclusive lock at `path` if nobody holds it.
    pub fn attempt(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).at("lock", path),
        }
    }

    /// Takes the exclusive lock on a directory if nobody holds it.
    pub(crate) fn attempt_directory(path: &Path) -> Result<Option<Self>> {
        let file = File::open(path).at("open", path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).at("lock", path),
        }
    }

    /// Waits for the exclusive lock on a directory.
    pub(crate) fn wait_directory(path: &Path) -> Result<Self> {
        let file = File::open(path).at("open", path)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).at("lock", path)?;
        Ok(Self { file })
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).at("open", path)
}
