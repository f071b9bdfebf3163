//! Building: plans become layers, each step once.
//!
//! [`driver`] walks the plans of all tasks at once and asks the action cache before anything runs; each kind of
//! step has a file, and makes exactly one layer under a lease. [`scratch`] runs the commands of steps.

pub mod base;
mod bytecode;
mod driver;
mod error;
mod files;
pub mod host;
pub(crate) mod image;
pub mod root;
pub(crate) mod scratch;
mod sdist;
mod skeleton;
pub(crate) mod source;
mod step;
pub mod survey;
pub(crate) mod unconfined;
mod wheel;

pub use driver::{Again, BuildOptions, BuildSummary, Prepared, Sandbox, build, current_digest, prepare};
pub use error::BuildError;
pub(crate) use source::Repository;

use infradev_layers::{Tree, WHEEL_MTIME};
use infradev_store::{Ingest, LayerId, Lease, Store};

use crate::session::Session;

/// The time that reaches commands (`SOURCE_DATE_EPOCH`) and the layers that they make: a constant, since no
/// date is in the key of a build step.
pub(crate) const BUILD_MTIME: i64 = WHEEL_MTIME;

/// What the steps of a build share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workshop<'a> {
    pub(crate) session: &'a Session,
    pub(crate) store: &'a Store,
    pub(crate) lease: &'a Lease,
    pub(crate) host: &'a host::Host,
    /// How commands of steps get their files.
    pub(crate) back_end: crate::env::back_end::BackEnd,
    /// Where commands of steps run without a sandbox; `None` if they have one.
    pub(crate) places: Option<&'a unconfined::WhenNeeded>,
}

/// What a step made, before it is committed.
pub(crate) struct Product<'a> {
    pub(crate) ingest: Ingest<'a>,
    pub(crate) tree: Tree,
    /// Facts that later steps need.
    pub(crate) outputs: std::collections::BTreeMap<String, String>,
    /// Bytes that were downloaded.
    pub(crate) downloaded: u64,
}

impl<'a> Workshop<'a> {
    /// Begins a product without any entry.
    pub(crate) fn product(&self) -> Result<Product<'a>, BuildError> {
        let ingest = self.store.ingest(self.lease)?;
        Ok(Product { ingest, tree: Tree::default(), outputs: Default::default(), downloaded: 0 })
    }

    /// Reads and decodes layers of the store.
    pub(crate) fn trees(&self, layers: &[LayerId]) -> Result<Vec<Tree>, BuildError> {
        Ok(crate::env::image::read_layers(self.store, layers)?)
    }
}

/// Adds the action and the path to a failed system call.
pub(crate) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::Io { action, path, source }
}

impl Workshop<'_> {
    /// Returns the binds that a run over `below` needs: the host's directories, if no layer has any programs.
    pub(crate) fn host_binds(&self, below: &Tree) -> Vec<crate::env::plan::Bind> {
        let programs = "usr/bin".parse().expect("a plain path");
        if below.get(&programs).is_some() { vec![] } else { host::Host::binds() }
    }
}

/// Returns the skeleton over the host, for trying whether an environment can be made at all.
pub(crate) fn trial_tree(ingest: &Ingest<'_>) -> Result<Tree, BuildError> {
    let version = "3.0".parse().expect("a version");
    let tree = skeleton::skeleton_tree("/usr/bin/python3", version, true, ingest)?;
    // Its one file is not yet visible, and the trial needs none.
    Ok(tree.filter(|path| {
        tree.get(path).is_some_and(|kind| !matches!(kind, infradev_layers::Kind::File { .. }))
    })?)
}
