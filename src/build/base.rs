//! Debian bases: exactly the packages of a lock, unpacked and configured without the network.
//!
//! The packages are fetched one by one by their hashes; mmdebstrap then sees nothing but a repository that
//! holds these, and its archive is read into a tree. For root and for ordinary users it is the same archive.

pub(crate) mod apt;
mod archive;
mod bootstrap;
mod packages;
mod repository;

use std::path::Path;

use infradev_layers::WHEEL_MTIME;
use infradev_recipes::BaseLock;

use super::{BuildError, Product, Workshop};

/// How packages become a base; raised when that changes.
pub(crate) const BASE_LAYER_VERSION: u32 = 1;

/// The time of everything in a base (`SOURCE_DATE_EPOCH`): a constant, as for wheels, since no date is in its key.
const BASE_MTIME: i64 = WHEEL_MTIME;

/// Makes the base of `lock`; what mmdebstrap says goes to `log`.
pub(crate) fn debian_base<'a>(
    workshop: &Workshop<'a>,
    lock: &BaseLock,
    log: &Path,
) -> Result<Product<'a>, BuildError> {
    let mut product = workshop.product()?;
    let repository = workshop.lease.new_directory("debian")?;
    let scratch = workshop.lease.new_directory("mmdebstrap")?;
    product.downloaded = packages::fetch(workshop, lock, &repository)?;
    repository::write_indexes(lock, &repository)?;
    product.tree = bootstrap::bootstrap(lock, &repository, &scratch, log, |archive| {
        archive::base_tree(archive, &product.ingest)
    })?;
    infradev_store::remove_tree(&repository)?;
    Ok(product)
}
