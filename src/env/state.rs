//! Environments on disk: `envs/<name>` with its state, upper and work directories.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use infradev_store::{LayerId, Lease, Lock, Mode, Stack, Store, read_json, remove_tree};
use serde::{Deserialize, Serialize};

use super::back_end::{BackEnd, Uppers};
use super::holder::Holder;
use super::image::{Mountable, StackError, merged_tree, write_upper};
use super::memory_files;
use super::mount::{Overlay, Upper};
use super::plan::Mapping;

/// What an environment is: the content of its `state.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EnvironmentState {
    /// The version of this file's form.
    pub schema: u32,
    /// The stack, lowest first; what garbage collection reads.
    pub layers: Vec<LayerId>,
    /// The task and variant it was made for, such as `verl/3567@cpu`.
    pub task: String,
    /// How it is mounted.
    pub back_end: BackEnd,
    /// How user ids are mapped, fixed at creation.
    pub mapping: Mapping,
    /// Variables of every command in it.
    pub variables: std::collections::BTreeMap<String, String>,
    /// Where commands start.
    pub directory: PathBuf,
    /// Whether the directories of the host are shown below the stack.
    pub host_base: bool,
    /// The lease of the command that discards it at its end; `None` if it is kept.
    pub discarded_with: Option<String>,
    /// Where its upper lies.
    #[serde(default)]
    pub uppers: Uppers,
    /// Seconds since 1970.
    pub created: u64,
}

impl EnvironmentState {
    /// Returns the stack.
    pub fn stack(&self) -> Stack {
        Stack::new(self.layers.clone())
    }
}

/// An environment that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The name cannot name a directory.
    #[error("`{0}` cannot name an environment: use letters, digits, `.`, `_` and `-`")]
    Name(String),
    /// There is one of this name.
    #[error("the environment `{0}` exists already")]
    Exists(String),
    /// There is none of this name.
    #[error("there is no environment `{0}`")]
    Absent(String),
    /// Another command uses it.
    #[error("the environment `{0}` is in use by another command")]
    Busy(String),
    /// Commands run in its mount.
    #[error("commands run in the environment `{0}`")]
    Entered(String),
    /// A file of it could not be written or read.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
    /// Its files could not be made.
    #[error(transparent)]
    Stack(#[from] StackError),
}

/// An environment of a store.
#[derive(Debug)]
pub struct Environment {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// What it is.
    pub state: EnvironmentState,
}

impl Environment {
    /// Makes an environment: complete under the lease first, then visible at once.
    ///
    /// The lease holds the layers until then, and the environment from then on.
    pub fn create(
        store: &Store,
        lease: &Lease,
        name: &str,
        state: EnvironmentState,
    ) -> Result<Self, EnvironmentError> {
        check_name(name)?;
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| EnvironmentError::Io { action, path, source }
        };
        let staged = lease.new_directory("environment")?;
        for below in ["work", "merged"] {
            let below = staged.join(below);
            DirBuilder::new().mode(0o755).create(&below).map_err(io("create", &below))?;
        }
        if let Mapping::Range(first) = state.mapping {
            let work = staged.join("work");
            std::os::unix::fs::chown(&work, Some(first), Some(first))
                .map_err(io("change the owner of", &work))?;
        }
        let tree = || merged_tree(store, &state.stack());
        let objects = store.object_directories();
        let upper = staged.join("upper");
        match state.uppers {
            Uppers::Disk => write_upper(tree, state.back_end, &objects, state.mapping, &upper)?,
            Uppers::Memory => fs::create_dir(&upper).map_err(io("create", &upper))?,
        }
        // Not synced, but written before the name: a power cut takes an environment of the last seconds, whole.
        store.write_new(&staged.join("state.json"), &state)?;
        let path = store.layout().environments().join(name);
        match store.disk().rename_new(&staged, &path) {
            Ok(()) => Ok(Self { name: name.to_owned(), path, state }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(EnvironmentError::Exists(name.to_owned()))
            }
            Err(error) => Err(io("rename", &path)(error)),
        }
    }

    /// Finds an environment by name.
    pub fn open(store: &Store, name: &str) -> Result<Self, EnvironmentError> {
        let path = store.layout().environments().join(name);
        let state = check_name(name).ok().and_then(|()| read_json(&path.join("state.json")).transpose());
        match state.transpose()? {
            Some(state) => Ok(Self { name: name.to_owned(), path, state }),
            None => Err(EnvironmentError::Absent(name.to_owned())),
        }
    }

    /// Finds an environment to remove it: its state may be damaged.
    pub fn open_to_remove(store: &Store, name: &str) -> Result<Self, EnvironmentError> {
        match Self::open(store, name) {
            Err(EnvironmentError::Store(_)) => {
                let state = EnvironmentState {
                    schema: 1,
                    layers: vec![],
                    task: "unknown".to_owned(),
                    back_end: BackEnd::Stub,
                    mapping: Mapping::Host,
                    variables: Default::default(),
                    directory: PathBuf::from("/"),
                    host_base: false,
                    discarded_with: None,
                    uppers: Uppers::Disk,
                    created: 0,
                };
                let path = store.layout().environments().join(name);
                Ok(Self { name: name.to_owned(), path, state })
            }
            other => other,
        }
    }

    /// Lists all environments by name.
    pub fn all(store: &Store) -> Result<Vec<Self>, EnvironmentError> {
        let directory = store.layout().environments();
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(source) => return Err(EnvironmentError::Io { action: "list", path: directory, source }),
        };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        let mut all = vec![];
        for name in names {
            match Self::open(store, &name) {
                Ok(environment) => all.push(environment),
                Err(EnvironmentError::Absent(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Reads the environments that can be read.
    pub fn readable(store: &Store) -> Vec<Self> {
        let entries = fs::read_dir(store.layout().environments()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| Self::open(store, &name).ok()).collect()
    }

    /// Takes the environment for one mount at a time: two mounts of one upper are undefined in overlayfs.
    pub fn lock(&self) -> Result<Lock, EnvironmentError> {
        Lock::attempt(&self.path.join("lock"))?.ok_or_else(|| EnvironmentError::Busy(self.name.clone()))
    }

    /// Says that a command runs in the mounted environment, for as long as the lock is held: namespaces of
    /// their own hide it from an unmount.
    pub fn enter(&self) -> Result<Lock, EnvironmentError> {
        Ok(Lock::wait(&self.path.join("commands"), Mode::Shared)?)
    }

    /// Makes sure that no command runs in the mounted environment, and that none begins while the lock is held.
    pub fn keep_out(&self) -> Result<Lock, EnvironmentError> {
        Lock::attempt(&self.path.join("commands"))?
            .ok_or_else(|| EnvironmentError::Entered(self.name.clone()))
    }

    /// Where it is mounted on the host.
    pub fn merged(&self) -> PathBuf {
        self.path.join("merged")
    }

    /// What was written in it; of a copy, everything. Empty if that is in memory.
    pub fn upper(&self) -> PathBuf {
        self.path.join("upper")
    }

    /// Describes its mount; `mountable` is of its stack.
    pub fn overlay(&self, store: &Store, mountable: Mountable) -> Overlay {
        Overlay {
            back_end: self.state.back_end,
            metadata: mountable.metadata,
            objects: store.object_directories(),
            packs: mountable.packs,
            upper: match self.state.uppers {
                Uppers::Disk => Upper::on_disk(self.upper(), self.path.join("work")),
                Uppers::Memory => Upper::in_memory(self.upper(), memory_files(), self.state.mapping),
            },
        }
    }

    /// Whether it is mounted for the host.
    pub fn is_mounted(&self) -> bool {
        // Not by its device: a copy is mounted from the file system that it lies on.
        let mount = |path: &Path| {
            let flags = rustix::fs::AtFlags::empty();
            rustix::fs::statx(rustix::fs::CWD, path, flags, rustix::fs::StatxFlags::MNT_ID)
                .map(|found| found.stx_mnt_id)
                .ok()
        };
        mount(&self.merged()) != mount(&self.path)
    }

    /// Deletes it. The caller has unmounted it and holds its lock.
    pub fn remove(self) -> Result<(), EnvironmentError> {
        // The state last: a removal that was killed can be repeated, and the layers stay until the upper is gone.
        for below in ["upper", "work", "merged", "state.json", "lock"] {
            remove_tree(&self.path.join(below))?;
        }
        Ok(remove_tree(&self.path)?)
    }
}

fn check_name(name: &str) -> Result<(), EnvironmentError> {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-');
    if name.is_empty() || name.len() > 100 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(EnvironmentError::Name(name.to_owned()));
    }
    Ok(())
}

/// Lists the layers of environments that are mounted although no lease holds them: for the host, or by a holder.
///
/// An environment that cannot be read is an error: it may be mounted.
pub fn mounted_layers(store: &Store) -> Result<Vec<LayerId>, infradev_store::Error> {
    let all = Environment::all(store).map_err(|error| match error {
        EnvironmentError::Store(error) => error,
        EnvironmentError::Io { action, path, source } => infradev_store::Error::io(action, &path, source),
        error => infradev_store::Error::UnreadableRoot {
            path: store.layout().environments(),
            detail: error.to_string(),
        },
    })?;
    let mounted =
        all.into_iter().filter(|environment| environment.is_mounted() || Holder::of(environment).is_some());
    Ok(mounted.flat_map(|environment| environment.state.layers).collect())
}

/// Removes the environments of commands that died before they could, and what a killed removal left.
pub fn sweep(store: &Store) -> Result<(), EnvironmentError> {
    // One that cannot be read is kept, stops collections, and is named by a verification.
    for environment in Environment::readable(store) {
        if let Some(lease) = &environment.state.discarded_with
            && !store.is_lease_alive(lease)?
            && let Ok(_lock) = environment.lock()
        {
            environment.remove()?;
        }
    }
    // An environment has its state from its first moment to its last but one.
    for entry in fs::read_dir(store.layout().environments()).into_iter().flatten().flatten() {
        if !entry.path().join("state.json").exists() {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Names an environment that is discarded with `lease`.
pub fn discarded_name(lease: &Lease) -> String {
    format!("run-{}", lease.id())
}
