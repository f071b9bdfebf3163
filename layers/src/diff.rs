//! How two trees differ.

use crate::entry::{Kind, Metadata};
use crate::path::TreePath;
use crate::tree::Tree;

/// What is different at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path.
    pub path: TreePath,
    /// How.
    pub change: Change,
}

/// How a path differs between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Only the second tree has it.
    Added,
    /// Only the first tree has it.
    Removed,
    /// Both have it, and differ in these aspects (`content`, `mode`, `mtime`, ...); never empty.
    Changed(Vec<&'static str>),
}

/// Compares two trees entry by entry, as they stand: whiteouts are entries like others.
///
/// The result is in the order of paths.
pub fn diff(before: &Tree, after: &Tree) -> Vec<Difference> {
    let mut differences = vec![];
    let (mut left, mut right) = (before.entries().iter().peekable(), after.entries().iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return differences,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(left), Some(right)) => left.path.cmp(&right.path),
        };
        let (entry, change) = match order {
            std::cmp::Ordering::Less => (left.next(), Change::Removed),
            std::cmp::Ordering::Greater => (right.next(), Change::Added),
            std::cmp::Ordering::Equal => {
                let (Some(old), new @ Some(entry)) = (left.next(), right.next()) else { unreachable!() };
                let aspects = aspects(&old.kind, &entry.kind);
                if aspects.is_empty() {
                    continue;
                }
                (new, Change::Changed(aspects))
            }
        };
        let path = entry.expect("one side was peeked").path.clone();
        differences.push(Difference { path, change });
    }
}

fn aspects(before: &Kind, after: &Kind) -> Vec<&'static str> {
    let mut aspects = vec![];
    let mut note = |differs: bool, aspect: &'static str| {
        if differs {
            aspects.push(aspect);
        }
    };
    note(std::mem::discriminant(before) != std::mem::discriminant(after), "kind");
    match (before, after) {
        (Kind::File { content: before, .. }, Kind::File { content: after, .. }) => {
            note(before != after, "content");
            note(before.size() != after.size(), "size");
        }
        (Kind::Symlink { target: before, .. }, Kind::Symlink { target: after, .. }) => {
            note(before != after, "target");
        }
        (Kind::Hardlink { first: before }, Kind::Hardlink { first: after }) => note(before != after, "link"),
        (Kind::Directory { opaque: before, .. }, Kind::Directory { opaque: after, .. }) => {
            note(before != after, "opaque");
        }
        _ => {}
    }
    if let (Some(before), Some(after)) = (before.metadata(), after.metadata()) {
        let Metadata { mode, uid, gid, mtime, xattrs } = before;
        note(*mode != after.mode, "mode");
        note((*uid, *gid) != (after.uid, after.gid), "owner");
        note(*mtime != after.mtime, "mtime");
        note(*xattrs != after.xattrs, "xattrs");
    }
    aspects
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{arbitrary_tree, directory, file, tree};

    fn shown(before: &Tree, after: &Tree) -> Vec<String> {
        let line = |difference: Difference| match difference.change {
            Change::Added => format!("A {}", difference.path),
            Change::Removed => format!("D {}", difference.path),
            Change::Changed(aspects) => format!("M {} {}", difference.path, aspects.join(" ")),
        };
        diff(before, after).into_iter().map(line).collect()
    }

    #[test]
    fn each_aspect_is_named() {
        let before =
            tree([("a", file(b"one")), ("b", directory(0o755)), ("c", file(b"same")), ("d", file(b""))]);
        let after =
            tree([("a", file(b"two!")), ("b", directory(0o700)), ("c", file(b"same")), ("e", file(b""))]);
        assert_eq!(shown(&before, &after), ["M /a content size", "M /b mode", "D /d", "A /e"]);
    }

    proptest! {
        #[test]
        fn nothing_differs_exactly_if_the_trees_are_equal(left in arbitrary_tree(), right in arbitrary_tree()) {
            prop_assert!(diff(&left, &left).is_empty());
            prop_assert_eq!(diff(&left, &right).is_empty(), left == right);
        }
    }
}
