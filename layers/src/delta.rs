//! What changed between two merged trees, as the one layer that says so in the fewest entries.

use std::collections::{HashMap, HashSet};

use crate::entry::{Entry, Kind, Metadata};
use crate::path::TreePath;
use crate::tree::{Tree, TreeBuilder};

/// Returns the layer that makes `after` of `before`, both the results of a merge.
///
/// It depends on nothing but the two, so captures of one change are equal however they were mounted. The time of
/// a directory does not count by itself, since it changes whenever something in it does. Of a hardlinked file all
/// names are listed, if content, metadata or one of the names is new. The roots are not compared.
pub fn delta(before: &Tree, after: &Tree) -> Tree {
    let mut builder = TreeBuilder::new();
    let (old, new) = (Names::of(before), Names::of(after));
    // Files that were names of one and are no longer: the first in order is still the old file.
    let mut taken: HashMap<&TreePath, &TreePath> = HashMap::new();
    for entry in after.entries().iter().filter(|entry| !entry.path.is_root()) {
        let below = before.get(&entry.path);
        let kind = match (&entry.kind, below) {
            (Kind::Directory { metadata, .. }, Some(Kind::Directory { metadata: earlier, .. }))
                if same_but_time(metadata, earlier) =>
            {
                continue;
            }
            (Kind::Directory { metadata, .. }, _) => {
                Kind::Directory { metadata: metadata.clone(), opaque: false }
            }
            (kind, Some(_)) if !kind.is_directory() && new.is_part_of(&old, &entry.path, &mut taken) => {
                continue;
            }
            (kind, _) => kind.clone(),
        };
        builder.add(entry.path.clone(), kind).expect("a tree has each path once");
    }
    let mut gone: Option<&TreePath> = None;
    for entry in before.entries() {
        if gone.is_some_and(|gone| entry.path.starts_with(gone)) {
            continue;
        }
        match after.get(&entry.path) {
            Some(kind) if kind.is_directory() => {}
            // What replaces a directory hides what was in it.
            Some(_) => gone = Some(&entry.path),
            None => {
                gone = Some(&entry.path);
                builder.add(entry.path.clone(), Kind::Whiteout).expect("the path is not in the other tree");
            }
        }
    }
    builder.finish().expect("a part of a tree, and whiteouts beside it, are a tree")
}

fn same_but_time(one: &Metadata, other: &Metadata) -> bool {
    Metadata { mtime: other.mtime, ..one.clone() } == *other
}

/// The files of a tree by any of their names.
struct Names<'a> {
    tree: &'a Tree,
    /// All names of the files that have several, by the first.
    groups: HashMap<&'a TreePath, HashSet<&'a TreePath>>,
}

impl<'a> Names<'a> {
    fn of(tree: &'a Tree) -> Self {
        let mut groups: HashMap<&TreePath, HashSet<&TreePath>> = HashMap::new();
        for Entry { path, kind } in tree.entries() {
            if let Kind::Hardlink { first } = kind {
                groups.entry(first).or_insert_with(|| HashSet::from([first])).insert(path);
            }
        }
        Self { tree, groups }
    }

    /// Returns the first name of the file at `path`, and the file.
    fn file(&self, path: &TreePath) -> Option<(&'a TreePath, &'a Kind)> {
        let entry = &self.tree.entries()[self.tree.position(path)?];
        match &entry.kind {
            Kind::Hardlink { first } => Some((first, self.tree.get(first)?)),
            kind => Some((&entry.path, kind)),
        }
    }

    /// Whether the file at `path` is in `earlier` under all of its names, as one file.
    fn is_part_of<'b>(
        &self,
        earlier: &Names<'b>,
        path: &'a TreePath,
        taken: &mut HashMap<&'b TreePath, &'a TreePath>,
    ) -> bool {
        let (Some((first, kind)), Some((old_first, old_kind))) = (self.file(path), earlier.file(path)) else {
            return false;
        };
        let names = self.groups.get(first);
        kind == old_kind
            && names.is_none_or(|names| earlier.groups.get(old_first).is_some_and(|old| names.is_subset(old)))
            && *taken.entry(old_first).or_insert(first) == first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::merge;
    use crate::testing::{file, path, tree};

    fn directory(mtime: i64) -> Kind {
        Kind::Directory { metadata: Metadata::new(0o755, mtime), opaque: false }
    }

    fn link(first: &str) -> Kind {
        Kind::Hardlink { first: path(first) }
    }

    /// Checks that the layer says these things, as words and paths, and leads from one tree to the other.
    fn check<const A: usize, const B: usize>(
        before: [(&str, Kind); A],
        after: [(&str, Kind); B],
        expected: &[&str],
    ) {
        let (before, after) = (merge([&tree(before)]), merge([&tree(after)]));
        let layer = delta(&before, &after);
        let said: Vec<String> = layer
            .entries()
            .iter()
            .filter(|entry| entry.kind != Kind::ImpliedDirectory)
            .map(|entry| format!("{} {}", entry.kind.word(), entry.path))
            .collect();
        assert_eq!(said, expected);
        assert_eq!(delta(&merge([&before, &layer]), &after).entries().len(), 1, "only the root");
    }

    #[test]
    fn says_what_changed_and_no_more() {
        check([("a", file(b"1")), ("d/x", file(b"2"))], [("a", file(b"1")), ("d/x", file(b"2"))], &[]);
        check(
            [("a", file(b"1")), ("d/x", file(b"2")), ("e/f/g", file(b"3"))],
            [("a", file(b"9")), ("d/x", file(b"2")), ("d/y", file(b"4"))],
            &["file /a", "file /d/y", "whiteout /e"],
        );
        check([("d", directory(1)), ("d/x", file(b"2"))], [("d", directory(7)), ("d/x", file(b"2"))], &[]);
        check([("d/x", file(b"2"))], [("d", file(b"2"))], &["file /d"]);
        check([("d", file(b"2"))], [("d/x", file(b"2"))], &["directory /d", "file /d/x"]);
    }

    #[test]
    fn names_of_one_file_stay_together() {
        let both = || [("a", file(b"1")), ("b", link("a"))];
        check(both(), both(), &[]);
        check(both(), [("a", file(b"1"))], &["whiteout /b"]);
        check(both(), [("b", file(b"1"))], &["whiteout /a"]);
        check(both(), [("a", file(b"2")), ("b", link("a"))], &["file /a", "hardlink /b"]);
        check(
            both(),
            [("a", file(b"1")), ("b", link("a")), ("c", link("a"))],
            &["file /a", "hardlink /b", "hardlink /c"],
        );
        check(both(), [("a", file(b"1")), ("b", file(b"1"))], &["file /b"]);
    }
}
