//! Layers against the kernel and against installers: one tree has one identity, whichever way it comes.

mod identity;
mod installers;
mod kernel;

use infradev_layers::{Content, Kind, Tree};
use infradev_store::{Access, Ingest, Store};

use crate::support::{Seen, work_directory};

/// A store of its own.
fn scratch() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in(work_directory()).expect("a directory");
    let store = Store::open(&directory.path().join("store"), Access::Write).expect("a store");
    (directory, store)
}

/// A tree in the terms of a walk; directories that nothing describes are left as they are.
fn as_walked(tree: &Tree, ingest: &Ingest<'_>) -> std::collections::BTreeMap<std::path::PathBuf, Seen> {
    let mut seen = std::collections::BTreeMap::new();
    for entry in tree.entries() {
        let first = match &entry.kind {
            Kind::Hardlink { first } => first,
            _ => &entry.path,
        };
        let kind = tree.get(first).expect("a hardlink's first name");
        let (word, metadata, content) = match kind {
            Kind::File { metadata, content } => {
                let bytes = match content {
                    Content::Empty => vec![],
                    Content::Object(object, _) => std::fs::read(ingest.content(object)).expect("an object"),
                };
                ("file", metadata.clone(), bytes)
            }
            Kind::Symlink { metadata, target } => ("symlink", metadata.clone(), target.to_vec()),
            Kind::Directory { metadata, .. } => ("directory", metadata.clone(), vec![]),
            Kind::ImpliedDirectory => ("directory", infradev_layers::Metadata::new(0o755, 0), vec![]),
            other => panic!("{} is a {}", entry.path, other.word()),
        };
        let xattrs = metadata
            .xattrs
            .iter()
            .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_vec()))
            .collect();
        let row = Seen {
            kind: word,
            mode: u32::from(metadata.mode),
            owner: (metadata.uid, metadata.gid),
            mtime: metadata.mtime,
            xattrs: if word == "symlink" { vec![] } else { xattrs },
            content,
            first: first.as_path().to_owned(),
        };
        seen.insert(entry.path.as_path().to_owned(), row);
    }
    seen
}
