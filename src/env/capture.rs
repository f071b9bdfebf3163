//! What was written in an environment, as a layer: the same one whatever it was mounted by.

use std::path::Path;

use infradev_layers::{Owners, ScanError, ScanOptions, Scanned, Tree, delta, merge, scan};
use infradev_store::Ingest;

use super::back_end::BackEnd;
use super::plan::Mapping;

/// Reads the upper of an environment over `below`; of a copy, all of it. No process may still write there.
///
/// New content goes into `ingest`.
pub fn capture(
    upper: &Path,
    back_end: BackEnd,
    mapping: Mapping,
    below: &Tree,
    ingest: &Ingest<'_>,
) -> Result<Scanned, ScanError> {
    capture_as(upper, back_end, mapping.owners(), below, ingest)
}

/// The same, with owners of the caller's choice.
pub(crate) fn capture_as(
    upper: &Path,
    back_end: BackEnd,
    owners: Owners,
    below: &Tree,
    ingest: &Ingest<'_>,
) -> Result<Scanned, ScanError> {
    let is_copy = back_end == BackEnd::Copy;
    let options = ScanOptions {
        owners,
        latest: i64::MAX,
        seen: None,
        upper_of: (!is_copy).then_some(below),
        copy_of: is_copy.then_some(below),
    };
    let mut scanned = scan(upper, options, ingest)?;
    let after = if is_copy { merge([&scanned.tree]) } else { merge([below, &scanned.tree]) };
    // An upper holds what was opened for writing and not changed, and says in two ways that a directory is new.
    scanned.tree = delta(below, &after);
    Ok(scanned)
}
