//! Roots: files that say which layers must stay.
//!
//! A root is a built task variant, a pin, an environment or a live lease. The first three have the same JSON
//! head, a list of layers; whatever else their owner writes beside it is not the store's business.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
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
        write_atomically(&self.root_file(kind, name), value)
    }

    /// Reads the root `name`; `None` if there is none.
    pub fn root<T: DeserializeOwned>(&self, kind: RootKind, name: &str) -> Result<Option<T>> {
        read_json(&self.root_file(kind, name))
    }

    /// Removes the root `name`; returns whether it was there.
    pub fn remove_root(&self, kind: RootKind, name: &str) -> Result<bool> {
        self.writable()?;
        let path = self.root_file(kind, name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).at("remove", &path),
        }
    }

    /// Lists the names of the roots of one kind.
    pub fn root_names(&self, kind: RootKind) -> Result<Vec<String>> {
        let names = crate::lease::names(&self.layout().directory(kind.directory()))?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json")).map(unescape).collect())
    }

    fn root_file(&self, kind: RootKind, name: &str) -> PathBuf {
        self.layout().directory(kind.directory()).join(format!("{}.json", escape(name)))
    }
}

/// Replaces the file at `path` by the JSON of `value`: readers see the old or the new one.
pub fn write_atomically(path: &Path, value: &impl Serialize) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let text = serde_json::to_vec_pretty(value).expect("plain data");
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary))).at("write", path)
}

/// Reads the JSON file at `path`; `None` if it is absent.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("read", path),
    };
    let unreadable =
        |error: serde_json::Error| Error::UnreadableRoot { path: path.to_owned(), detail: error.to_string() };
    serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
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
    for kind in [RootKind::Task, RootKind::Pin] {
        let directory = store.layout().directory(kind.directory());
        for name in crate::lease::names(&directory)? {
            if !name.starts_with('.') {
                add_root(directory.join(name), &mut roots)?;
            }
        }
    }
    let environments = store.layout().environments();
    for name in crate::lease::names(&environments)? {
        let state = environments.join(&name).join("state.json");
        // A directory without a state is an environment that was never finished or is being removed.
        add_root(state, &mut roots)?;
    }
    Ok(roots)
}

fn add_root(path: PathBuf, roots: &mut Vec<(PathBuf, Stack)>) -> Result<()> {
    if let Some(stack) = read_json::<Stack>(&path).map_err(|error| as_unreadable(&path, error))? {
        roots.push((path, stack));
    }
    Ok(())
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
