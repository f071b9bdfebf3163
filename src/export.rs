//! Environments for other tools: as an image layout, a docker archive, plain files, one squashfs, or a runtime bundle.
//!
//! What is written is known before anything is, and nothing has its final name before it is whole.

mod bundle;
mod place;
mod room;
mod squashfs;
mod write;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use infradev_layers::{Tree, merge};
use infradev_store::{LayerId, Lease, ObjectId, Store};
use serde::Serialize;

pub(crate) use place::{Place, check};
pub(crate) use room::{Room, copied_bytes, packed_bytes, shares_blocks};
pub(crate) use write::{Options, write};

use crate::build::root::BuiltTask;
use crate::error::CommandResult;
use crate::share::docker::DockerArchive;
use crate::ui::bytes;

/// What an environment is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// An OCI image layout.
    Oci,
    /// A docker archive, for `podman load`, `docker load` and skopeo
    DockerArchive,
    /// A directory with the whole tree.
    Rootfs,
    /// A squashfs image of the whole tree, for enroot and Apptainer.
    Squashfs,
    /// An OCI runtime bundle, for crun and runc.
    Bundle,
}

impl Format {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Format::Oci => "oci",
            Format::DockerArchive => "docker-archive",
            Format::Rootfs => "rootfs",
            Format::Squashfs => "squashfs",
            Format::Bundle => "bundle",
        }
    }

    /// A path that everything of this format has, relative to it; `None` if it is a file.
    fn mark(self) -> Option<&'static str> {
        match self {
            Format::Oci => Some("oci-layout"),
            Format::Rootfs => Some("opt/env/pyvenv.cfg"),
            Format::Bundle => Some("config.json"),
            Format::DockerArchive | Format::Squashfs => None,
        }
    }
}

/// An environment that is ready to be written: its stack, read and merged.
#[derive(Debug)]
pub(crate) struct Exported {
    /// What it is, in the terms of a built task; the last layer is what was written in a named environment.
    pub(crate) built: BuiltTask,
    /// The tree of each layer.
    pub(crate) trees: HashMap<LayerId, Tree>,
    /// All of them together.
    pub(crate) merged: Tree,
}

/// What an export is going to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ExportPlan {
    /// The task and variant.
    pub(crate) task: String,
    /// The format.
    pub(crate) format: Format,
    /// Entries of the tree.
    pub(crate) entries: usize,
    /// Bytes of its files.
    pub(crate) content: u64,
    /// Bytes that will be written where it goes.
    pub(crate) written: u64,
    /// Whether that is an estimate, as of everything that is compressed.
    pub(crate) estimated: bool,
    /// Bytes that the store grows by, until the next collection.
    pub(crate) store: u64,
}

impl Exported {
    /// Takes the trees of the layers of `built`, in their order.
    pub(crate) fn new(built: BuiltTask, trees: Vec<Tree>) -> Self {
        let merged = merge(&trees);
        let trees = built.layers.iter().copied().zip(trees).collect();
        Self { built, trees, merged }
    }

    /// Computes what an export is going to do. `reflinks` says whether files can share their blocks with the store.
    pub(crate) fn plan(&self, store: &Store, format: Format, reflinks: bool) -> CommandResult<ExportPlan> {
        let content = self.merged.apparent_bytes();
        let packed = packed_bytes(store, self.trees.values());
        // Measured on verl/3567, which is mostly native libraries: zstd leaves 52 %.
        let compressed = |content: u64| content / 5 * 3 + (1 << 20);
        let of_layers: u64 = self.trees.values().map(Tree::apparent_bytes).sum();
        let (written, estimated, kept) = match format {
            // The store keeps the compressed blobs for the next push.
            Format::Oci => (compressed(of_layers), true, compressed(of_layers)),
            Format::DockerArchive => (DockerArchive::new(&self.built, &self.trees)?.size(), false, 0),
            Format::Rootfs | Format::Bundle => (copied_bytes(&self.merged, reflinks), false, 0),
            Format::Squashfs => (compressed(content), true, 0),
        };
        Ok(ExportPlan {
            task: self.built.name(),
            format,
            entries: self.merged.entries().len() - 1,
            content,
            written,
            estimated,
            store: packed + kept,
        })
    }
}

impl ExportPlan {
    /// Says what is going to happen.
    pub(crate) fn sentence(&self, to: &Path, room: &Room) -> String {
        let Self { task, format, entries, content, written, estimated, store } = self;
        let about = if *estimated { "about " } else { "" };
        let in_store =
            if *store > 0 { format!(", up to {} in the store", bytes(*store)) } else { String::new() };
        format!(
            "{task} as {} to {}: {entries} entries with {}; {about}{} to write{in_store}; peak disk {about}{}, {} free",
            format.word(),
            to.display(),
            bytes(*content),
            bytes(*written),
            bytes(room.needed),
            bytes(room.free)
        )
    }
}

/// Finds the bytes of objects, unpacking what is packed.
pub(crate) fn opener<'a>(store: &'a Store, lease: &'a Lease) -> impl Fn(&ObjectId) -> io::Result<File> + 'a {
    |object| File::open(store.plain(object, lease).map_err(io::Error::other)?)
}
