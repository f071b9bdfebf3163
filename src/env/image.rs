//! What a stack is mounted from: made once, kept in the store, found by the stack's id.

use std::fs;
use std::io::BufWriter;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use infradev_layers::{
    CheckoutError, DecodeError, ImageError, ReadError, Tree, farm_owners, merge, read_image, write_copy,
    write_farm, write_image, write_stubs,
};
use infradev_store::{Disk, LayerId, Lease, Stack, Store};
use rayon::prelude::*;

use super::back_end::BackEnd;
use super::packs::{self, Needs};
use super::plan::Mapping;

/// A stack that cannot be made mountable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
    /// A layer cannot be decoded.
    #[error("layer {layer} is damaged")]
    Layer {
        /// The layer.
        layer: LayerId,
        /// How.
        source: DecodeError,
    },
    /// The image cannot be written.
    #[error("cannot write the image of the stack")]
    Image(#[from] ImageError),
    /// The image cannot be read.
    #[error("the image {} is damaged", .path.display())]
    DamagedImage {
        /// The image.
        path: PathBuf,
        /// How.
        source: ReadError,
    },
    /// The stub tree, farm or copy cannot be written.
    #[error("cannot write the files of the stack")]
    Files(#[from] CheckoutError),
    /// A file could not be written or read.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// Reads and decodes `layers`, in parallel, in their order.
pub fn read_layers(store: &Store, layers: &[LayerId]) -> Result<Vec<Tree>, StackError> {
    let read = |layer: &LayerId| {
        let encoding = store.layer(layer)?;
        Tree::decode(&encoding).map_err(|source| StackError::Layer { layer: *layer, source })
    };
    layers.par_iter().map(read).collect()
}

/// Merges a stack.
pub fn merged_tree(store: &Store, stack: &Stack) -> Result<Tree, StackError> {
    Ok(merge(&read_layers(store, &stack.layers)?))
}

/// What a stack is mounted from.
#[derive(Debug, Clone, Default)]
pub struct Mountable {
    /// The image, stub tree or farm; empty for a copy, which is mounted from nothing but itself.
    pub metadata: PathBuf,
    /// Where packs with content of it are mounted.
    pub packs: Vec<PathBuf>,
}

/// Returns what `stack` is mounted from with `back_end`, making it if the store does not have it.
///
/// `lease` holds the stack and its layers, since before packs were listed; its staging directory receives what is
/// not yet complete.
pub fn mountable(
    store: &Store,
    stack: &Stack,
    back_end: BackEnd,
    lease: &Lease,
) -> Result<Mountable, StackError> {
    let packs = packs::ready(store, back_end, Needs::Layers(&stack.layers), lease)?;
    let metadata = metadata_of(store, stack, back_end, lease)?;
    Ok(Mountable { metadata, packs })
}

/// Makes what `stack` is mounted from ahead of the first mount, without what only a mount needs.
pub fn prepare(store: &Store, stack: &Stack, back_end: BackEnd, lease: &Lease) -> Result<(), StackError> {
    if back_end == BackEnd::Farm {
        packs::ready(store, back_end, Needs::Layers(&stack.layers), lease)?;
    }
    metadata_of(store, stack, back_end, lease).map(drop)
}

fn metadata_of(
    store: &Store,
    stack: &Stack,
    back_end: BackEnd,
    lease: &Lease,
) -> Result<PathBuf, StackError> {
    let id = stack.id();
    let path = match back_end {
        BackEnd::Erofs => store.layout().image(&id),
        BackEnd::Stub => store.layout().stubs(&id),
        BackEnd::Farm => store.layout().farm(&id),
        BackEnd::Copy => return Ok(PathBuf::new()),
    };
    if path.exists() {
        return Ok(path);
    }
    let tree = merged_tree(store, stack)?;
    let temporary = lease.new_directory("mountable")?.join(id.to_hex());
    write_metadata(&tree, back_end, &Sources::of(store), &temporary)?;
    match store.disk().rename(&temporary, &path) {
        Ok(()) => Ok(path),
        // Another process made the same tree in the meantime.
        Err(_) if path.exists() => Ok(path),
        Err(source) => Err(StackError::Io { action: "rename", path, source }),
    }
}

/// Where the content of files comes from.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) objects: Vec<PathBuf>,
    pub(crate) stub_pool: PathBuf,
    pub(crate) farm_pool: PathBuf,
    pub(crate) disk: Disk,
}

impl Sources {
    pub(crate) fn of(store: &Store) -> Self {
        let layout = store.layout();
        Self {
            objects: store.object_directories(),
            stub_pool: layout.stub_pool(),
            farm_pool: layout.farm_pool(),
            disk: store.disk().clone(),
        }
    }
}

/// Writes what the merged `tree` is mounted from to `path`, which must not exist; nothing for a copy.
pub(crate) fn write_metadata(
    tree: &Tree,
    back_end: BackEnd,
    sources: &Sources,
    path: &Path,
) -> Result<(), StackError> {
    match back_end {
        BackEnd::Erofs => write_image_file(&sources.disk, tree, path)?,
        BackEnd::Stub => {
            write_stubs(tree, &sources.stub_pool, path)?;
        }
        BackEnd::Farm => {
            write_farm(tree, &sources.objects, &sources.farm_pool, farm_owners(), path)?;
        }
        BackEnd::Copy => {}
    }
    Ok(())
}

/// Makes the upper of an environment of the merged `tree`: empty, or all of it if it is a copy.
pub(crate) fn write_upper(
    tree: impl FnOnce() -> Result<Tree, StackError>,
    back_end: BackEnd,
    objects: &[PathBuf],
    mapping: Mapping,
    upper: &Path,
) -> Result<(), StackError> {
    let io = |action| move |source| StackError::Io { action, path: upper.to_owned(), source };
    if back_end == BackEnd::Copy {
        write_copy(&tree()?, objects, mapping.owners(), upper)?;
        return Ok(());
    }
    fs::DirBuilder::new().mode(0o755).create(upper).map_err(io("create"))?;
    match mapping {
        Mapping::Range(first) => {
            std::os::unix::fs::chown(upper, Some(first), Some(first)).map_err(io("change the owner of"))
        }
        Mapping::Host | Mapping::Caller { .. } => Ok(()),
    }
}

fn write_image_file(disk: &Disk, tree: &Tree, path: &Path) -> Result<(), StackError> {
    let failed = |source| StackError::Io { action: "write", path: path.to_owned(), source };
    let mut file = BufWriter::with_capacity(1 << 20, disk.create(path, 0o644).map_err(failed)?);
    write_image(tree, &mut file)?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    // The name promises a complete image, also after a power cut; made once per stack.
    file.sync().map_err(failed)
}

/// Reads the merged tree of `stack` from its image if there is one, else from its layers.
pub fn known_tree(store: &Store, stack: &Stack) -> Result<Tree, StackError> {
    let path = store.layout().image(&stack.id());
    match fs::read(&path) {
        Ok(image) => read_image(&image).map_err(|source| StackError::DamagedImage { path, source }),
        Err(_) => merged_tree(store, stack),
    }
}
