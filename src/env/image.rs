//! The mountable metadata of a stack: made once, kept in the store, found by the stack's id.

use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use infradev_layers::{
    DecodeError, ImageError, ReadError, StubError, Tree, merge, read_image, write_image, write_stubs,
};
use infradev_store::{LayerId, Lease, Stack, Store};
use rayon::prelude::*;

use super::mount::BackEnd;

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
    /// The stub tree cannot be written.
    #[error("cannot write the stubs of the stack")]
    Stubs(#[from] StubError),
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

/// Returns the mountable metadata of `stack` for `back_end`, making it if the store does not have it.
///
/// `lease` holds the stack; its staging directory receives what is not yet complete.
pub fn mountable(
    store: &Store,
    stack: &Stack,
    back_end: BackEnd,
    lease: &Lease,
) -> Result<PathBuf, StackError> {
    let id = stack.id();
    let path = match back_end {
        BackEnd::Erofs => store.layout().image(&id),
        BackEnd::Stub => store.layout().stubs(&id),
    };
    if path.exists() {
        return Ok(path);
    }
    let tree = merged_tree(store, stack)?;
    let temporary = lease.new_directory("mountable")?.join(id.to_hex());
    match back_end {
        BackEnd::Erofs => write_image_file(store, &tree, &temporary)?,
        BackEnd::Stub => {
            write_stubs(&tree, &store.layout().stub_pool(), &temporary)?;
        }
    }
    match store.disk().rename(&temporary, &path) {
        Ok(()) => Ok(path),
        // Another process made the same tree of stubs in the meantime.
        Err(_) if path.exists() => Ok(path),
        Err(source) => Err(StackError::Io { action: "rename", path, source }),
    }
}

fn write_image_file(store: &Store, tree: &Tree, path: &Path) -> Result<(), StackError> {
    let failed = |source| StackError::Io { action: "write", path: path.to_owned(), source };
    let mut file = BufWriter::with_capacity(1 << 20, store.disk().create(path, 0o644).map_err(failed)?);
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
