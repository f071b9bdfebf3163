//! Faults behind the store's seam: count the changes, kill the process at the n-th, tear it, or fail it.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use infradev_store::{Change, Faults};

/// What happens at a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process is killed before it.
    Kill,
    /// Half of what it writes is written, and the process is killed.
    Tear,
    /// The process stops before it, until it is told to go on.
    Stop,
    /// It fails with this error number, once.
    Fail(i32),
    /// It and all later ones that take room fail: the disk is full.
    Full,
}

pub(super) const ENOSPC: i32 = 28;
pub(super) const EIO: i32 = 5;

/// Lets `fault` happen at change number `at`, counted from 0.
#[derive(Debug)]
pub(super) struct Bench {
    at: usize,
    fault: Fault,
    count: AtomicUsize,
    /// What each change was, by its kind.
    kinds: Mutex<Vec<&'static str>>,
}

impl Bench {
    pub(super) fn new(at: usize, fault: Fault) -> Self {
        Self { at, fault, count: AtomicUsize::new(0), kinds: Mutex::default() }
    }

    /// Only counts.
    pub(super) fn counting() -> Self {
        Self::new(usize::MAX, Fault::Kill)
    }

    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.kinds.lock().expect("no panic").clone()
    }
}

fn kind(change: &Change<'_>) -> &'static str {
    match change {
        Change::Create { .. } => "create",
        Change::Write { .. } => "write",
        Change::MakeDirectory { .. } => "mkdir",
        Change::Rename { .. } => "rename",
        Change::Remove { .. } => "remove",
        Change::Sync { .. } => "sync",
        Change::SyncFileSystem { .. } => "syncfs",
        Change::Index { .. } => "index",
        _ => "other",
    }
}

/// Whether a full disk refuses it.
fn takes_room(change: &Change<'_>) -> bool {
    !matches!(change, Change::Rename { .. } | Change::Remove { .. })
}

fn send(signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::getpid(), signal).expect("the own process");
}

fn die() -> ! {
    send(rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

impl Faults for Bench {
    fn before(&self, change: &Change<'_>) -> io::Result<()> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        self.kinds.lock().expect("no panic").push(kind(change));
        match self.fault {
            Fault::Full if number >= self.at && takes_room(change) => tear(change, ENOSPC),
            Fault::Fail(error) if number == self.at => tear(change, error),
            Fault::Kill if number == self.at => die(),
            Fault::Stop if number == self.at => {
                send(rustix::process::Signal::STOP);
                Ok(())
            }
            Fault::Tear if number == self.at => {
                let _half_of_it = tear(change, 0);
                die()
            }
            _ => Ok(()),
        }
    }
}

/// Writes half of what would have been written, and fails.
fn tear(change: &Change<'_>, error: i32) -> io::Result<()> {
    if let Change::Write { file, bytes, .. } = change {
        let mut file: &File = file;
        file.write_all(&bytes[..bytes.len() / 2])?;
    }
    Err(io::Error::from_raw_os_error(error))
}
