//! Removing the blobs of an image layout that no manifest of it names.

use std::collections::HashSet;
use std::fs;
use std::io;

use serde_json::Value;

use super::{DirRemote, failed, sound};
use crate::share::manifest::Descriptor;
use crate::share::{Digest, Remote, RemoteError};

/// Removes the blobs that cannot be reached from the manifests `listed`; returns their bytes. There must be no
/// other writer.
pub(super) fn sweep(remote: &DirRemote, listed: &[Descriptor]) -> Result<u64, RemoteError> {
    let named = named(remote, listed)?;
    let blobs = remote.root.join("blobs/sha256");
    let mut freed = 0;
    for entry in fs::read_dir(&blobs).map_err(failed("read", &blobs))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // A name that is no digest is not of this program.
        let Ok(digest) = format!("sha256:{name}").parse::<Digest>() else { continue };
        if named.contains(&digest) {
            continue;
        }
        let size = entry.metadata().map_or(0, |found| found.len());
        match fs::remove_file(entry.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &entry.path())(error));
            }
            _ => freed += size,
        }
    }
    Ok(freed)
}

/// Returns what can be reached. What is damaged leads nowhere, for readers either.
///
/// Manifests may be of kinds that this program does not know, so whatever looks like a digest in one is kept.
fn named(remote: &DirRemote, listed: &[Descriptor]) -> Result<HashSet<Digest>, RemoteError> {
    let mut named = HashSet::new();
    let mut manifests: Vec<Digest> = listed.iter().map(|descriptor| descriptor.digest).collect();
    while let Some(digest) = manifests.pop() {
        if !named.insert(digest) {
            continue;
        }
        let Some(raw) = sound(remote.manifest(&digest.to_string()))? else { continue };
        let Ok(document) = serde_json::from_slice::<Value>(&raw.bytes) else { continue };
        let mut inner = HashSet::new();
        document.get("manifests").into_iter().for_each(|list| digests(list, &mut inner));
        manifests.extend(inner.difference(&named));
        let mut all = HashSet::new();
        digests(&document, &mut all);
        named.extend(all.difference(&inner));
    }
    Ok(named)
}

fn digests(value: &Value, found: &mut HashSet<Digest>) {
    match value {
        Value::String(text) => found.extend(text.parse::<Digest>()),
        Value::Array(values) => values.iter().for_each(|value| digests(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| digests(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
