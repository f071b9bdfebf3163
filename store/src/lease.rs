//! Leases: which layers live processes need, and which leftovers belong to dead ones.
//!
//! A lease is a file that its process holds locked. A lease whose lock is free is dead, whatever it says: no
//! process ids, no times, no refreshing. The order of events makes the sweep of dead ones safe:
//! a lease is visible before its staging directory exists and goes after it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskFile};
use crate::error::{Context, Error, Result};
use crate::layer::is_present;
use crate::layout::Layout;
use crate::lock::{Lock, Mode};
use crate::{LayerId, StackId, Store};

/// The first line of a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseHeader {
    /// For people only; liveness is the lock.
    pub pid: u32,
    /// What the process does, such as `build verl/3567`.
    pub purpose: String,
    /// When it began, in nanoseconds since 1970.
    pub started: u128,
}

/// A further line of a lease.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Need {
    Layers(Vec<LayerId>),
    Stack(StackId),
}

/// A live process's claim on layers, and its private staging directory.
#[derive(Debug)]
pub struct Lease {
    id: String,
    layout: Layout,
    /// Where else layers may be.
    shared: Vec<Layout>,
    disk: Disk,
    file: DiskFile,
}

static COUNTER: AtomicU64 = AtomicU64::new(0);

fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos())
}

impl Store {
    /// Takes a lease for `purpose`. Must come before the first byte that depends on it.
    pub fn lease(&self, purpose: &str) -> Result<Lease> {
        self.writable()?;
        let layout = self.layout().clone();
        let started = nanoseconds();
        let pid = std::process::id();
        let header = LeaseHeader { pid, purpose: purpose.to_owned(), started };
        loop {
            let id = format!("{started:x}-{pid}-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
            // Locked under a hidden name first: a visible lease with a free lock would be swept. So is a hidden
            // one, in the moment before it is locked; then this begins again.
            let hidden = layout.lease(&format!(".{id}"));
            let disk = self.disk().clone();
            let file = disk.create(&hidden, 0o644).at("create", &hidden)?;
            match flock(file.file(), FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => continue,
                other => other.at("lock", &hidden)?,
            }
            let path = layout.lease(&id);
            let named = file.append(&line(&header)).at("write", &hidden).and_then(|()| {
                match disk.rename(&hidden, &path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
                    other => other.map(|()| true).at("rename", &path),
                }
            });
            match named {
                Ok(true) => {
                    let shared = self.shared.iter().map(|store| store.layout().clone()).collect();
                    return Ok(Lease { id, layout, shared, disk, file });
                }
                Ok(false) => {}
                Err(error) => {
                    let _swept_later = disk.remove_file(&hidden);
                    return Err(error);
                }
            }
        }
    }

    /// Removes what dead processes left behind: their staging directories, then their leases.
    ///
    /// Runs at every opening for writing; costs two directory listings when there is nothing to do.
    pub(crate) fn sweep(&self) -> Result<()> {
        let staging = self.layout().directory("tmp");
        for name in names(&staging)? {
            if !self.layout().lease(&name).exists() {
                self.disk().remove_tree(&staging.join(&name))?;
            }
        }
        let leases = self.layout().directory("leases");
        for name in names(&leases)? {
            let path = leases.join(&name);
            let Ok(file) = File::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                self.disk().remove_tree(&self.layout().staging(&name))?;
                let _gone_already_is_fine = self.disk().remove_file(&path);
            }
        }
        Ok(())
    }
}

/// Lists the names in a directory; an absent one has none.
pub(crate) fn names(directory: &std::path::Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error).at("list", directory),
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry.at("list", directory)?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("plain data");
    line.push(b'\n');
    line
}

impl Lease {
    /// Names this lease in the store's `leases` and `tmp`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns this lease's directory below `tmp`, making it if needed; removed with the lease.
    pub fn staging(&self) -> Result<PathBuf> {
        let path = self.layout.staging(&self.id);
        match self.disk.create_directory(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error).at("create", &path),
            _ => Ok(path),
        }
    }

    /// Makes a new directory in the staging directory, named after what it is for.
    pub fn new_directory(&self, purpose: &str) -> Result<PathBuf> {
        let path = self.staging()?.join(format!("{purpose}-{}", COUNTER.fetch_add(1, Ordering::Relaxed)));
        self.disk.create_directory(&path).at("create", &path)?;
        Ok(path)
    }

    /// Claims `layers`, and returns those that are neither in the store (any more) nor in a shared one.
    ///
    /// After this, garbage collection keeps those of the store as long as the lease lives.
    pub fn hold(&self, layers: &[LayerId]) -> Result<Vec<LayerId>> {
        let _commit = Lock::wait(&self.layout.commit_lock(), Mode::Shared)?;
        self.note(layers)?;
        let layouts = std::iter::once(&self.layout).chain(&self.shared);
        let is_there = |layer: &LayerId| layouts.clone().any(|layout| is_present(layout, layer));
        Ok(layers.iter().filter(|layer| !is_there(layer)).copied().collect())
    }

    /// Claims the image and the stub tree of `stack`.
    pub fn hold_stack(&self, stack: StackId) -> Result<()> {
        let _commit = Lock::wait(&self.layout.commit_lock(), Mode::Shared)?;
        self.write(&Need::Stack(stack))
    }

    /// Writes `layers` into the lease. The caller holds the commit lock.
    pub(crate) fn note(&self, layers: &[LayerId]) -> Result<()> {
        if layers.is_empty() { Ok(()) } else { self.write(&Need::Layers(layers.to_vec())) }
    }

    fn write(&self, need: &Need) -> Result<()> {
        let path = self.layout.lease(&self.id);
        self.file.append(&line(need)).at("write", &path)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // What cannot be removed now is swept by the next command, since the lock goes with the file.
        let _swept_later = self.disk.remove_tree(&self.layout.staging(&self.id));
        let _swept_later = self.disk.remove_file(&self.layout.lease(&self.id));
    }
}

/// What one live lease needs.
#[derive(Debug)]
pub struct LiveLease {
    /// Its name.
    pub id: String,
    /// Who holds it.
    pub header: LeaseHeader,
    /// The layers that it claims.
    pub layers: Vec<LayerId>,
    /// The stacks whose images it claims.
    pub stacks: Vec<StackId>,
}

/// Reads every live lease but `own`. A live lease that cannot be read is an error: nothing may be removed then.
pub(crate) fn live_leases(layout: &Layout, own: &str) -> Result<Vec<LiveLease>> {
    let directory = layout.directory("leases");
    let mut live = vec![];
    for name in names(&directory)? {
        let path = directory.join(&name);
        if name == own {
            continue;
        }
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::UnreadableRoot { path, detail: error.to_string() }),
        };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            continue;
        }
        match read(&name, &file) {
            Ok(lease) => live.push(lease),
            // Not yet a lease: it has claimed nothing, and what it commits will be seen with its name.
            Err(_) if name.starts_with('.') => {}
            Err(detail) => return Err(Error::UnreadableRoot { path, detail }),
        }
    }
    Ok(live)
}

fn read(id: &str, file: &File) -> Result<LiveLease, String> {
    let mut lines = BufReader::new(file).lines();
    let first = lines.next().ok_or("it is empty")?.map_err(|error| error.to_string())?;
    let header = serde_json::from_str(&first).map_err(|error| error.to_string())?;
    let mut lease = LiveLease { id: id.to_owned(), header, layers: vec![], stacks: vec![] };
    for line in lines {
        let line = line.map_err(|error| error.to_string())?;
        match serde_json::from_str(&line).map_err(|error| error.to_string())? {
            Need::Layers(layers) => lease.layers.extend(layers),
            Need::Stack(stack) => lease.stacks.push(stack),
        }
    }
    Ok(lease)
}

impl Store {
    /// Whether the lease of this id is held by a live process.
    pub fn is_lease_alive(&self, id: &str) -> Result<bool> {
        let path = self.layout().lease(id);
        match File::open(&path) {
            Ok(file) => Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_err()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).at("open", &path),
        }
    }
}
