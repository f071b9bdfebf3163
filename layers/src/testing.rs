//! Trees for the tests of this crate.

use infradev_store::ObjectId;
use proptest::prelude::*;

use crate::entry::{Content, Kind, Metadata};
use crate::path::TreePath;
use crate::tree::{Tree, TreeBuilder};

pub(crate) fn path(text: &str) -> TreePath {
    text.parse().expect("a path of a test")
}

pub(crate) fn file(content: &[u8]) -> Kind {
    let content = match content {
        [] => Content::Empty,
        bytes => Content::Object(ObjectId::of(bytes), bytes.len() as u64),
    };
    Kind::File { metadata: Metadata::new(0o644, 7), content }
}

pub(crate) fn directory(mode: u32) -> Kind {
    Kind::Directory { metadata: Metadata::new(mode, 3), opaque: false }
}

pub(crate) fn tree<'a>(entries: impl IntoIterator<Item = (&'a str, Kind)>) -> Tree {
    let mut builder = TreeBuilder::new();
    for (at, kind) in entries {
        builder.add(path(at), kind).expect("a tree of a test");
    }
    builder.finish().expect("a tree of a test")
}

/// Small random layers over few names, so that stacks of them collide in every way.
pub(crate) fn arbitrary_tree() -> impl Strategy<Value = Tree> {
    let metadata = (0u32..0o2000, 0u32..3, -5i64..5, prop::option::of(any::<u8>())).prop_map(
        |(mode, uid, mtime, value)| {
            let xattrs =
                value.map(|value| (b"user.x".as_slice().into(), vec![value].into())).into_iter().collect();
            Metadata { uid, xattrs, ..Metadata::new(mode, mtime) }
        },
    );
    let kind =
        (metadata, 0u8..8, prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(metadata, choice, bytes)| {
            match choice {
                0 | 1 => Kind::Directory { metadata, opaque: choice == 1 },
                2 => Kind::Whiteout,
                3 => Kind::Symlink {
                    metadata: Metadata { mode: 0o777, ..metadata },
                    target: b"t".as_slice().into(),
                },
                _ => match file(&bytes) {
                    Kind::File { content, .. } => Kind::File { metadata, content },
                    other => other,
                },
            }
        });
    let name = prop::sample::select(vec!["a", "b", "c.d"]);
    let place = prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
    prop::collection::vec((place, kind, any::<bool>()), 0..14).prop_map(|items| {
        let mut builder = TreeBuilder::new();
        let mut files: Vec<TreePath> = vec![];
        for (place, kind, link) in items {
            let at = path(&place);
            let kind = match files.last() {
                Some(first) if link => Kind::Hardlink { first: first.clone() },
                _ => kind,
            };
            let fits = !builder.contains(&at) && fits_below(&builder, &at);
            if fits {
                if matches!(kind, Kind::File { .. }) {
                    files.push(at.clone());
                }
                builder.add(at, kind).expect("the path is free");
            }
        }
        builder.finish().expect("built to hold the invariants")
    })
}

/// Whether every parent of `at` is absent or a directory, and `at` itself is no parent of anything.
fn fits_below(builder: &TreeBuilder, at: &TreePath) -> bool {
    let mut child = at.clone();
    while let Some(parent) = child.parent() {
        if builder.kind(&parent).is_some_and(|kind| !kind.is_directory()) {
            return false;
        }
        child = parent;
    }
    builder.paths().all(|path| !path.starts_with(at))
}
