//! Sharing built tasks by container registries and image layouts: who has which bytes, and moving only what is missing.
//!
//! A task is an image: its blobs are layers that every engine understands, and its configuration carries what a
//! store needs to know besides. [`remote`] says what a place must be able to do; [`dir`] is an image layout in a
//! directory; registries are spoken to by [`crate::net`].

mod digest;
pub mod dir;
pub mod docker;
mod fetch;
pub mod grading;
mod group;
mod image;
pub mod manifest;
pub mod prune;
pub mod pull;
pub mod push;
pub mod remote;
pub mod steps;
mod transfers;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

pub use digest::{Digest, DigestError};
pub use remote::{RawManifest, Remote, RemoteError};
pub use transfers::{Transfers, clear_transfers};

use crate::build::root::root_name;
use crate::env::image::StackError;
use crate::net::NetError;
use crate::ui::Ui;

/// A task that could not be published or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The other side failed.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
    /// A stack cannot be read.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A layer cannot become a blob.
    #[error(transparent)]
    Blob(#[from] infradev_layers::BlobError),
    /// An image is not what this program publishes.
    #[error("{reference} cannot be pulled: {detail}")]
    Image {
        /// The image.
        reference: String,
        /// Why.
        detail: String,
    },
    /// The disk cannot hold it.
    #[error("{needed} bytes are missing here, and the disk has {free} left")]
    Room {
        /// Bytes that would be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
}

impl ShareError {
    /// Whether something that should be there is not, or is damaged.
    pub fn is_loss(&self) -> bool {
        matches!(self, ShareError::Remote(RemoteError::Absent { .. } | RemoteError::Corrupt { .. }))
    }

    /// Whether the place forbids what was asked of it.
    pub fn is_denied(&self) -> bool {
        matches!(self, ShareError::Remote(error) if error.is_denied())
    }
}

/// Names what `reference`, a tag or a digest, is in a place.
fn named(remote: &dyn Remote, reference: &str) -> String {
    let sign = if reference.parse::<Digest>().is_ok() { '@' } else { ':' };
    format!("{}{sign}{reference}", remote.name())
}

/// Returns the tag of a task variant: its name, as tags may be written.
pub fn tag_of(task: &str, variant: &str) -> String {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() || ".-_".contains(character) { character } else { '-' }
    };
    root_name(task, variant).chars().map(plain).collect()
}

/// Returns the manifest of `reference` for those who need not have it: one that is damaged counts as absent, with a
/// warning.
fn sound_manifest(remote: &dyn Remote, reference: &str, ui: &Ui) -> Result<Option<RawManifest>, RemoteError> {
    match remote.manifest(reference) {
        Err(error @ RemoteError::Corrupt { .. }) => {
            ui.warn_once(&error);
            Ok(None)
        }
        read => read,
    }
}

/// Does `work` for every item, several at once; stops at the first failure. The results are in no order.
fn in_parallel<T: Send, R: Send>(
    workers: usize,
    items: Vec<T>,
    work: impl Fn(T) -> Result<R, ShareError> + Sync,
) -> Result<Vec<R>, ShareError> {
    let workers = workers.min(items.len());
    let (queue, results, failure) = (Mutex::new(items.into_iter()), Mutex::new(vec![]), Mutex::new(None));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(item) = unpoisoned(&queue).next() else { return };
                    match work(item) {
                        Ok(result) => unpoisoned(&results).push(result),
                        Err(error) => {
                            stop.store(true, Ordering::Relaxed);
                            unpoisoned(&failure).get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)),
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// An error that a transfer hid in one of reading.
fn transfer_error(remote: &dyn Remote, digest: &Digest, error: std::io::Error) -> ShareError {
    match error.downcast::<NetError>() {
        Ok(error) => RemoteError::from(error).into(),
        Err(error) => RemoteError::Corrupt {
            place: remote.name(),
            what: format!("blob {digest}"),
            detail: format!("cannot be read: {error}"),
        }
        .into(),
    }
}
