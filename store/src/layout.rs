//! Where everything lies. The only place that joins a path under the store's root.
//!
//! ```text
//! format                  "infradev store 1"
//! objects/<2 hex>/<62>    bytes of regular files, 0444
//! packs/<id>.sqfs .table  cold objects, compressed; packs/<id> is where root mounts it
//! layers/<id>             layer encodings, zstd
//! steps/<key>             action records, JSON: which step made which layers
//! images/<stack>.erofs    merged metadata images           (derived, may be rebuilt)
//! stubs/<stack>/  stubs/pool/   the same for users without privileges   (derived)
//! farm/<stack>/   farm/pool/    the same as hardlinks, for older kernels (derived)
//! envs/<name>/            environments: state.json, upper, work, merged
//! roots/pins/  roots/tasks/     what keeps layers alive, JSON
//! leases/<id>             locked by a live process; lists the layers that it needs
//! tmp/<lease>/            what that process is writing
//! trash/<batch>/          what gc took away and has not yet deleted
//! caches/                 downloads, compile caches, logs; safe to delete
//! commit.lock  index.db
//! ```

use std::path::{Path, PathBuf};

use crate::{LayerId, ObjectId, PackId, StackId, StepKey};

/// The format that this program reads and writes.
pub(crate) const FORMAT: u32 = 1;
/// The text before the number in the `format` file.
pub(crate) const FORMAT_PREFIX: &str = "infradev store ";

/// The directories of a store, in the order in which they are made.
pub(crate) const DIRECTORIES: [&str; 17] = [
    "objects",
    "packs",
    "layers",
    "steps",
    "images",
    "stubs",
    "stubs/pool",
    "farm",
    "farm/pool",
    "envs",
    "roots",
    "roots/pins",
    "roots/tasks",
    "leases",
    "tmp",
    "trash",
    "caches",
];

/// Paths of one store.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The store's root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory that overlayfs takes as its data-only layer.
    pub fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    /// One object.
    pub fn object(&self, object: &ObjectId) -> PathBuf {
        self.root.join("objects").join(object_name(object))
    }

    /// The directory of all packs.
    pub fn packs(&self) -> PathBuf {
        self.root.join("packs")
    }

    /// A pack's file system image.
    pub fn pack(&self, pack: &PackId) -> PathBuf {
        self.root.join("packs").join(format!("{pack}.sqfs"))
    }

    /// A pack's table, with which the pack exists.
    pub fn pack_table(&self, pack: &PackId) -> PathBuf {
        self.root.join("packs").join(format!("{pack}.table"))
    }

    /// Where a pack is mounted.
    pub fn pack_mount(&self, pack: &PackId) -> PathBuf {
        self.root.join("packs").join(pack.to_hex())
    }

    /// One layer's encoding.
    pub fn layer(&self, layer: &LayerId) -> PathBuf {
        self.root.join("layers").join(layer.to_hex())
    }

    /// One action record.
    pub fn step(&self, step: &StepKey) -> PathBuf {
        self.root.join("steps").join(step.to_hex())
    }

    /// The merged metadata image of a stack.
    pub fn image(&self, stack: &StackId) -> PathBuf {
        self.root.join("images").join(format!("{stack}.erofs"))
    }

    /// The stub tree of a stack.
    pub fn stubs(&self, stack: &StackId) -> PathBuf {
        self.root.join("stubs").join(stack.to_hex())
    }

    /// The pool that stub trees link from.
    pub fn stub_pool(&self) -> PathBuf {
        self.root.join("stubs/pool")
    }

    /// The farm of a stack: its tree of hardlinks.
    pub fn farm(&self, stack: &StackId) -> PathBuf {
        self.root.join("farm").join(stack.to_hex())
    }

    /// Lists the farms that there are.
    pub fn all_farms(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.root.join("farm")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| *path != self.farm_pool()).collect()
    }

    /// The pool of copies that farms link from.
    pub fn farm_pool(&self) -> PathBuf {
        self.root.join("farm/pool")
    }

    /// The directory of all environments.
    pub fn environments(&self) -> PathBuf {
        self.root.join("envs")
    }

    /// A directory for things that may be deleted at any time, such as downloads.
    pub fn cache(&self, name: &str) -> PathBuf {
        self.root.join("caches").join(name)
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn format(&self) -> PathBuf {
        self.root.join("format")
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.root.join("index.db")
    }

    pub(crate) fn commit_lock(&self) -> PathBuf {
        self.root.join("commit.lock")
    }

    pub(crate) fn lease(&self, id: &str) -> PathBuf {
        self.root.join("leases").join(id)
    }

    pub(crate) fn staging(&self, lease: &str) -> PathBuf {
        self.root.join("tmp").join(lease)
    }
}

/// Returns `<2 hex>/<62 hex>`, the path of an object below `objects`.
pub fn object_name(object: &ObjectId) -> String {
    let mut name = object.to_hex();
    name.insert(2, '/');
    name
}
