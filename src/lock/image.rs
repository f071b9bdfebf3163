//! Locks of image bases: what the name leads to now, and which glibc is in it.

use infradev_layers::{Content, Kind, Tree, merge};
use infradev_recipes::{ImageLayer, ImageLock, Recipe};
use infradev_store::{ActionRecord, LayerId, Lease, ObjectId, Store};

use super::{LockError, target};
use crate::build::image::{BaseImage, IMAGE_LAYER_VERSION};
use crate::build::{BuildError, io};
use crate::env::image::read_layers;
use crate::session::Session;
use crate::ui::counted;

/// Locks the image `reference`, the base of `recipe`: its layers are read into the store, where a build finds them.
pub(super) fn lock_image(
    session: &Session,
    store: &Store,
    recipe: &Recipe,
    reference: &str,
) -> Result<ImageLock, LockError> {
    let label = format!("lock {}/{}", recipe.task.project, recipe.base_lock_file());
    session.ui.started(&label);
    let locked = resolve(session, store, recipe, reference);
    let (word, remark) = match &locked {
        Ok(lock) => ("resolved", counted(lock.layers().len(), "layer")),
        Err(_) => ("failed", String::new()),
    };
    session.ui.finished(&label, word, &remark);
    Ok(locked?)
}

fn resolve(
    session: &Session,
    store: &Store,
    recipe: &Recipe,
    reference: &str,
) -> Result<ImageLock, BuildError> {
    let architecture = target::architecture();
    let base = BaseImage::open(session, &recipe.task.project, reference)?;
    let resolved = base.resolve(architecture)?;
    // In the order of the lock, which has every layer once.
    let mut lock = ImageLock::new(reference, architecture, &resolved.digest, None, resolved.layers);
    let lease = store.lease(&format!("lock {reference}"))?;
    let layers = lock.layers().iter().map(|layer| fetch(session, store, &lease, &base, layer));
    let layers = layers.collect::<Result<Vec<LayerId>, BuildError>>()?;
    let merged = merge(&read_layers(store, &layers)?);
    lock.glibc = glibc_of(store, &lease, &merged)?;
    Ok(lock)
}

/// Returns the layer of ours for a layer of an image, making it if the store does not have it.
fn fetch(
    session: &Session,
    store: &Store,
    lease: &Lease,
    base: &BaseImage,
    layer: &ImageLayer,
) -> Result<LayerId, BuildError> {
    let record = layer.record(IMAGE_LAYER_VERSION);
    if let Some(found) = store.step(&record.key())?
        && lease.hold(&found.layers)?.is_empty()
        && let [id] = found.layers.as_slice()
    {
        return Ok(*id);
    }
    let began = std::time::Instant::now();
    let ingest = store.ingest(lease)?;
    let progress = |_: u64| session.ui.moving("fetch", || layer.digest.clone());
    let read = base.read_layer(layer, &ingest, &progress)?;
    let id = ingest.put_layer(&read.tree.encode())?;
    let short = layer.diff_id.trim_start_matches("sha256:").get(..12).unwrap_or_default();
    ingest.put_step(ActionRecord {
        key: record.key(),
        kind: record.kind().to_owned(),
        label: format!("base layer {short}"),
        record: serde_json::to_value(&record).expect("plain data"),
        layers: vec![id],
        outputs: Default::default(),
        seconds: began.elapsed().as_secs_f64(),
        downloaded: layer.size,
        built: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_secs() as i64),
        nondeterministic: vec![],
    });
    ingest.commit()?;
    let _stays_until_the_lease_ends = lease.hold(&[id])?;
    Ok(id)
}

/// Finds out which glibc an image has: its library says so in a text of its own.
fn glibc_of(store: &Store, lease: &Lease, merged: &Tree) -> Result<Option<(u16, u16)>, BuildError> {
    for entry in merged.entries().iter().filter(|entry| entry.path.file_name() == b"libc.so.6") {
        let kind = match &entry.kind {
            // Before 2.34 it was a link to `libc-2.31.so` beside it.
            Kind::Symlink { target, .. } => entry
                .path
                .parent()
                .and_then(|parent| parent.join(target).ok())
                .and_then(|path| merged.get(&path)),
            kind => Some(kind),
        };
        let Some(Kind::File { content: Content::Object(object, _), .. }) = kind else { continue };
        if let Some(version) = version_in(store, lease, object)? {
            return Ok(Some(version));
        }
    }
    Ok(None)
}

fn version_in(store: &Store, lease: &Lease, object: &ObjectId) -> Result<Option<(u16, u16)>, BuildError> {
    let path = store.plain(object, lease)?;
    let bytes = std::fs::read(&path).map_err(io("read", &path))?;
    Ok(release_version(&bytes))
}

/// Reads `GNU C Library (…) stable release version 2.36.` out of a library.
fn release_version(library: &[u8]) -> Option<(u16, u16)> {
    const BEFORE: &[u8] = b" release version ";
    let at = library.windows(BEFORE.len()).position(|window| window == BEFORE)?;
    let text: Vec<u8> = library[at + BEFORE.len()..].iter().copied().take(12).collect();
    let text = String::from_utf8_lossy(&text).into_owned();
    let (major, rest) = text.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_says_its_version() {
        let text = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright";
        assert_eq!(release_version(text), Some((2, 36)));
        assert_eq!(release_version(b"musl"), None);
    }
}
