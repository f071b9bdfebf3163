//! The packages of a base lock, downloaded and checked.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use infradev_recipes::{BaseLock, DebianPackage};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::apt::debian_mirror;
use crate::build::{BuildError, Workshop, io};
use crate::hex::hex;
use crate::net::NetError;

/// Puts every package of `lock` into `directory`, under its file name there; returns how many bytes were downloaded.
///
/// Packages are kept in the store's caches, since bases of one release have most of them in common.
pub(super) fn fetch(workshop: &Workshop<'_>, lock: &BaseLock, directory: &Path) -> Result<u64, BuildError> {
    let cache = workshop.store.layout().cache("debian");
    fs::create_dir_all(&cache).map_err(io("create", &cache))?;
    let (here, missing): (Vec<&DebianPackage>, Vec<_>) =
        lock.packages().iter().partition(|package| is_whole(&cache.join(file_name(package)), package));
    for package in here {
        take(&cache, directory, package)?;
    }
    if missing.is_empty() {
        return Ok(0);
    }
    let session = workshop.session;
    let mirror = debian_mirror(session, &lock.suite)?;
    let client = session.client()?;
    let (received, total) = (AtomicU64::new(0), missing.iter().map(|package| package.size).sum());
    let ui = &session.ui;
    let progress = |count| {
        let so_far = received.fetch_add(count, Ordering::Relaxed) + count;
        ui.moving("Debian packages", || {
            format!("{} of {}", crate::ui::bytes(so_far), crate::ui::bytes(total))
        });
    };
    missing.par_iter().try_for_each(|package| {
        let file = file_name(package);
        let staged = directory.join(&file);
        let url = format!("{mirror}/{}", package.file.replace('+', "%2B").replace('~', "%7E"));
        match client.download(&url, &package.sha256, &staged, &progress) {
            Ok(_) => {}
            Err(NetError::Status { status, .. }) if status.is_client_error() => {
                return Err(vanished(package));
            }
            Err(error) => return Err(error.into()),
        }
        // Complete before it has its name in the cache; a link costs no second copy.
        let cached = cache.join(&file);
        let _a_twin_was_faster = fs::remove_file(&cached);
        let _cached_or_not = fs::hard_link(&staged, &cached);
        Ok(())
    })?;
    Ok(total)
}

/// Whether the cache has the package, unharmed.
fn is_whole(path: &Path, package: &DebianPackage) -> bool {
    let Ok(mut file) = fs::File::open(path) else { return false };
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher).is_ok() && hex(&hasher.finalize()) == package.sha256
}

fn take(cache: &Path, directory: &Path, package: &DebianPackage) -> Result<(), BuildError> {
    let file = file_name(package);
    let (from, to) = (cache.join(&file), directory.join(&file));
    fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).map_err(io("link", &to))
}

/// Returns the name of a package's file in the repository and in the cache: nothing in it needs quoting.
pub(super) fn file_name(package: &DebianPackage) -> String {
    format!("{}.deb", package.sha256)
}

fn vanished(package: &DebianPackage) -> BuildError {
    BuildError::VanishedPackage {
        name: package.name.clone(),
        version: package.version.clone(),
        file: package.file.clone(),
    }
}
