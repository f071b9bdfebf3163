//! Roots: files that say which layers must stay.
//!
//! A root is a built task variant, a pin, an environment or a live lease. The first three have the same JSON
//! head, a list of layers; whatever else their owner writes beside it is not the store's business.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::error::{Context, Error, Result};
use crate::layout::Layout;
use crate::seal::{sealed, unsealed};
use crate::{LayerId, StackId, Store};

/// The part of every root file that garbage collection reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stack {
    /// The layers, lowest first.
    pub layers: Vec<LayerId>,
    /// Further layers to keep, which are not part of the stack: what built it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<LayerId>,
}

impl Stack {
    /// Makes a stack of `layers`, lowest first.
    pub fn new(layers: Vec<LayerId>) -> Self {
        Self { layers, also: vec![] }
    }

    /// Names the stack, and with it its image.
    pub fn id(&self) -> StackId {
        StackId::of_layers(&self.layers)
    }
}

/// The directories of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootKind {
    /// Built task variants.
    Task,
    /// Pins.
    Pin,
}

impl RootKind {
    fn directory(self) -> &'static str {
        match self {
            RootKind::Task => "roots/tasks",
            RootKind::Pin => "roots/pins",
        }
    }
}

impl Store {
    /// Writes the root `name`; `value` must have a `layers` list beside whatever else it holds.
    ///
    /// The caller holds a lease on these layers, so nothing can go between the check and the write.
    pub fn set_root(&self, kind: RootKind, name: &str, value: &impl Serialize) -> Result<()> {
        self.writable()?;
        self.write_atomically(&self.root_file(kind, name), value)
    }

    /// Reads the root `name`; `None` if there is none. A task may also be one of a shared store.
    pub fn root<T: DeserializeOwned>(&self, kind: RootKind, name: &str) -> Result<Option<T>> {
        for store in self.searched_for(kind) {
            if let Some(root) = read_json(&store.root_file(kind, name))? {
                return Ok(Some(root));
            }
        }
        Ok(None)
    }

    /// Removes the root `name`; returns whether it was there.
    pub fn remove_root(&self, kind: RootKind, name: &str) -> Result<bool> {
        self.writable()?;
        let path = self.root_file(kind, name);
        let is_there = fs::symlink_metadata(&path).is_ok();
        // Whatever a failing disk made of the file.
        self.disk().remove_tree(&path)?;
        Ok(is_there)
    }

    /// Returns which root is in the file at `path`; none if it is not that of a task or pin.
    pub fn root_at(&self, path: &Path) -> Option<(RootKind, String)> {
        let name = unescape(path.file_name()?.to_str()?.strip_suffix(".json")?);
        [RootKind::Task, RootKind::Pin]
            .into_iter()
            .find(|kind| self.root_file(*kind, &name) == path)
            .map(|kind| (kind, name))
    }

    /// Lists the names of the roots of one kind, each once; the tasks of shared stores too.
    pub fn root_names(&self, kind: RootKind) -> Result<Vec<String>> {
        let mut all = BTreeSet::new();
        for store in self.searched_for(kind) {
            let names = crate::lease::names(&store.layout().directory(kind.directory()))?;
            all.extend(names.iter().filter_map(|name| name.strip_suffix(".json")).map(unescape));
        }
        Ok(all.into_iter().collect())
    }

    /// Pins keep layers of their own store; what a task was built from is worth knowing wherever it is.
    fn searched_for(&self, kind: RootKind) -> impl Iterator<Item = &Store> {
        let shared = if kind == RootKind::Task { self.shared.as_slice() } else { &[] };
        std::iter::once(self).chain(shared)
    }

    /// Writes a new JSON file of the store with its seal, complete before anything that it is in gets a name.
    pub fn write_new(&self, path: &Path, value: &impl Serialize) -> Result<()> {
        self.disk().create_with(path, &sealed(value)).map(drop).at("write", path)
    }

    /// Replaces the file at `path` by the JSON of `value`, durably: readers see the old or the new one.
    pub(crate) fn write_atomically(&self, path: &Path, value: &impl Serialize) -> Result<()> {
        replace_durably(self.layout(), self.disk(), path, &sealed(value))
    }

    /// The file of a root.
    pub(crate) fn root_file(&self, kind: RootKind, name: &str) -> PathBuf {
        self.layout().directory(kind.directory()).join(format!("{}.json", escape(name)))
    }
}

/// Reads the JSON file at `path`; `None` if it is absent.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("read", path),
    };
    unsealed(&bytes)
        .map(Some)
        .map_err(|error| Error::UnreadableRoot { path: path.to_owned(), detail: error.to_string() })
}

/// Gives the file at `path` this content, on the disk when it returns.
///
/// What is not yet complete lies among the leases, hidden and locked, so that the next sweep removes it if this
/// process dies.
pub(crate) fn replace_durably(layout: &Layout, disk: &Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = layout.lease(&format!(".file-{}-{number}", std::process::id()));
        let write = || -> io::Result<bool> {
            let file = match disk.create(&temporary, 0o644) {
                // A dead process had the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
                other => other?,
            };
            if flock(file.file(), FlockOperation::NonBlockingLockExclusive).is_err() {
                return Ok(false);
            }
            file.append(bytes)?;
            file.sync()?;
            if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
                // What a failing disk made of the file.
                disk.remove_tree(path).map_err(io::Error::other)?;
            }
            match disk.rename(&temporary, path) {
                // Swept in the moment before it was locked.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !temporary.exists() => {
                    return Ok(false);
                }
                other => other?,
            }
            disk.sync(path.parent().unwrap_or(path))?;
            Ok(true)
        };
        match write() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                let _swept_later = disk.remove_file(&temporary);
                return Err(error).at("write", path);
            }
        }
    }
}

/// File names for roots: a task's name has a slash.
fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

fn unescape(name: &str) -> String {
    name.replace("%2F", "/").replace("%25", "%")
}

/// Every stack that some file of the store keeps alive, with the file's path.
pub(crate) fn file_roots(store: &Store) -> Result<Vec<(PathBuf, Stack)>> {
    let mut roots = vec![];
    for path in root_files(store)? {
        if let Some(stack) = read_json::<Stack>(&path).map_err(|error| as_unreadable(&path, error))? {
            roots.push((path, stack));
        }
    }
    Ok(roots)
}

/// Every file that may be a root.
pub(crate) fn root_files(store: &Store) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    for kind in [RootKind::Task, RootKind::Pin] {
        let directory = store.layout().directory(kind.directory());
        for name in crate::lease::names(&directory)? {
            if !name.starts_with('.') {
                files.push(directory.join(name));
            }
        }
    }
    let environments = store.layout().environments();
    for name in crate::lease::names(&environments)? {
        // A directory without a state is an environment that was never finished or is being removed.
        files.push(environments.join(&name).join("state.json"));
    }
    Ok(files)
}

fn as_unreadable(path: &Path, error: Error) -> Error {
    match error {
        Error::UnreadableRoot { .. } => error,
        other => {
            let cause =
                std::error::Error::source(&other).map(|source| format!(": {source}")).unwrap_or_default();
            Error::UnreadableRoot { path: path.to_owned(), detail: format!("{other}{cause}") }
        }
    }
}
