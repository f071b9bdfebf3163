//! Wheel steps: download, check, unpack into objects, compile.

use std::path::PathBuf;

use infradev_layers::{Content, Kind, WheelTarget, wheel_tree};
use infradev_recipes::{Artifact, Package, PythonVersion};
use infradev_store::LayerId;

use super::bytecode::with_bytecode;
use super::{BuildError, Product, Workshop};

/// Makes the layer of `package`. `built` is the layer that holds its wheel, for one that was built here.
pub(crate) fn wheel<'a>(
    workshop: &Workshop<'a>,
    package: &Package,
    built: Option<LayerId>,
    below: &[LayerId],
    python: PythonVersion,
    log: &std::path::Path,
) -> Result<Product<'a>, BuildError> {
    let mut product = workshop.product()?;
    let (archive, file) = match (&package.artifact, built) {
        (Artifact::Wheel(_), _) => {
            let (path, size) = fetch(workshop, package)?;
            product.downloaded = size;
            (path, package.artifact.archive().name.clone())
        }
        (Artifact::Sdist { .. }, Some(layer)) => wheel_in_layer(workshop, layer)?,
        (Artifact::Sdist { .. }, None) => return Err(BuildError::Needed(format!("sdist {}", package.name))),
    };
    let target = WheelTarget { prefix: "opt/env".parse().expect("a plain path"), python: python.to_string() };
    let failed = |source| BuildError::Wheel { file, source };
    let tree = wheel_tree(&archive, &target, &product.ingest).map_err(failed)?;
    let below = infradev_layers::merge(&workshop.trees(below)?);
    product.tree = with_bytecode(workshop, tree, &below, python, &product.ingest, log)?;
    if product.downloaded > 0 {
        infradev_store::remove_tree(&archive)?;
    }
    Ok(product)
}

/// Downloads the archive of `package` and checks its hash; returns where it is and how many bytes came.
pub(crate) fn fetch(workshop: &Workshop<'_>, package: &Package) -> Result<(PathBuf, u64), BuildError> {
    let archive = package.artifact.archive();
    let (session, ui) = (workshop.session, &workshop.session.ui);
    let client = session.client()?;
    let url = match &archive.url {
        Some(url) => url.clone(),
        None => session.index().find(client, package.name.as_str(), &archive.name)?.url,
    };
    let path = workshop.lease.new_directory("download")?.join(&archive.name);
    let received = std::sync::atomic::AtomicU64::new(0);
    let progress = |count| {
        let so_far = received.fetch_add(count, std::sync::atomic::Ordering::Relaxed) + count;
        ui.moving(&archive.name, || crate::ui::bytes(so_far));
    };
    let size = client.download(&url, &archive.sha256, &path, &progress)?;
    Ok((path, size))
}

/// Finds the wheel in the layer that an sdist step made.
fn wheel_in_layer(workshop: &Workshop<'_>, layer: LayerId) -> Result<(PathBuf, String), BuildError> {
    let tree = workshop.trees(&[layer])?.remove(0);
    let found = tree.entries().iter().find_map(|entry| match &entry.kind {
        Kind::File { content: Content::Object(object, _), .. } => {
            let name = String::from_utf8_lossy(entry.path.file_name()).into_owned();
            Some((workshop.store.plain(object, workshop.lease), name))
        }
        _ => None,
    });
    let found = found.map(|(path, name)| path.map(|path| (path, name))).transpose()?;
    found.ok_or_else(|| BuildError::Needed(format!("the wheel in layer {layer}")))
}
