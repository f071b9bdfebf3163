//! The Debian base.

use infradev_layers::Tree;
use infradev_recipes::BaseLock;
use infradev_store::Ingest;

use super::{BuildError, Workshop};

/// How packages become a base; raised when that changes.
pub(crate) const BASE_LAYER_VERSION: u32 = 1;

/// Unpacks the packages of `lock`.
pub(crate) fn debian_tree(_: &Workshop<'_>, _: &BaseLock, _: &Ingest<'_>) -> Result<Tree, BuildError> {
    Err(BuildError::Needed("the base".to_owned()))
}
