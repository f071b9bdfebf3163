//! A tree: the entries of a layer, complete and in canonical order.

use std::collections::BTreeMap;

use infradev_store::references::Reference;

use crate::entry::{Content, Entry, Kind};
use crate::path::TreePath;

/// A set of entries that is not a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// Two different things at one path.
    #[error("{path} is given twice, as {first} and as {second}")]
    Twice {
        /// The path.
        path: TreePath,
        /// What stood there.
        first: &'static str,
        /// What came later.
        second: &'static str,
    },
    /// Something lies below a path that is not a directory.
    #[error("{path} lies below {parent}, which is a {word}")]
    NotADirectory {
        /// The path that lies below.
        path: TreePath,
        /// The path that should be a directory.
        parent: TreePath,
        /// What it is.
        word: &'static str,
    },
    /// A hardlink names something that is not a file or symlink at an earlier path of the layer.
    #[error("hardlink {path} names {first}, which is not an earlier file of this layer")]
    Dangling {
        /// The hardlink.
        path: TreePath,
        /// What it names.
        first: TreePath,
    },
}

/// The entries of a layer, sorted component-wise.
///
/// Invariants: the root is present; every parent is a directory that comes before its children; a hardlink
/// names a file or symlink that comes before it; no path occurs twice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    entries: Vec<Entry>,
}

impl Tree {
    /// Returns the entries, the root first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns what stands at `path`.
    pub fn get(&self, path: &TreePath) -> Option<&Kind> {
        let at = self.entries.binary_search_by(|entry| entry.path.cmp(path)).ok()?;
        Some(&self.entries[at].kind)
    }

    /// Returns the position of `path` among the entries.
    pub fn position(&self, path: &TreePath) -> Option<usize> {
        self.entries.binary_search_by(|entry| entry.path.cmp(path)).ok()
    }

    /// Returns the distinct objects of the files, sorted.
    pub fn references(&self) -> Vec<Reference> {
        let mut references: Vec<Reference> = self
            .entries
            .iter()
            .filter_map(|entry| match &entry.kind {
                Kind::File { content: Content::Object(object, size), .. } => {
                    Some(Reference { object: *object, size: *size })
                }
                _ => None,
            })
            .collect();
        references.sort_unstable();
        references.dedup();
        references
    }

    /// Returns the sum of the sizes of all files in bytes, hardlinks counted once.
    pub fn apparent_bytes(&self) -> u64 {
        let size = |entry: &Entry| match &entry.kind {
            Kind::File { content, .. } => content.size(),
            _ => 0,
        };
        self.entries.iter().map(size).sum()
    }

    /// Returns the entries for which `keep` is true, with the directories that they lie in.
    ///
    /// A hardlink whose file is not kept becomes the file.
    pub fn filter(&self, keep: impl Fn(&TreePath) -> bool) -> Result<Self, TreeError> {
        let mut builder = TreeBuilder::new();
        let mut carriers: BTreeMap<&TreePath, TreePath> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| keep(&entry.path)) {
            let kind = match &entry.kind {
                Kind::Hardlink { first } => match carriers.get(first) {
                    Some(carrier) => Kind::Hardlink { first: carrier.clone() },
                    None => {
                        carriers.insert(first, entry.path.clone());
                        self.get(first).expect("a tree has no dangling hardlinks").clone()
                    }
                },
                kind => {
                    carriers.insert(&entry.path, entry.path.clone());
                    kind.clone()
                }
            };
            builder.add(entry.path.clone(), kind)?;
        }
        for entry in self.entries.iter().filter(|entry| entry.kind.is_directory()) {
            if builder.holds_something_below(&entry.path) && !builder.contains(&entry.path) {
                builder.add(entry.path.clone(), entry.kind.clone())?;
            }
        }
        builder.finish()
    }

    /// Returns the tree with every modification time replaced.
    #[must_use]
    pub fn with_mtime(mut self, mtime: i64) -> Self {
        for entry in &mut self.entries {
            match &mut entry.kind {
                Kind::Directory { metadata, .. }
                | Kind::File { metadata, .. }
                | Kind::Symlink { metadata, .. } => {
                    metadata.mtime = mtime;
                }
                Kind::ImpliedDirectory | Kind::Hardlink { .. } | Kind::Whiteout => {}
            }
        }
        self
    }

    /// Takes entries that are known to hold the invariants, as a merge or a decoder produces them.
    pub(crate) fn from_sorted(entries: Vec<Entry>) -> Self {
        debug_assert!(entries.windows(2).all(|pair| pair[0].path < pair[1].path));
        Self { entries }
    }
}

/// Collects entries in any order and makes a [`Tree`] of them.
#[derive(Debug, Default)]
pub struct TreeBuilder {
    entries: BTreeMap<TreePath, Kind>,
}

impl TreeBuilder {
    /// Returns a builder without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry. A described directory replaces an implied one; anything else at a taken path is an error.
    pub fn add(&mut self, path: TreePath, kind: Kind) -> Result<(), TreeError> {
        use std::collections::btree_map::Entry::{Occupied, Vacant};
        match self.entries.entry(path) {
            Vacant(vacant) => {
                vacant.insert(kind);
            }
            Occupied(mut taken) => match (taken.get(), &kind) {
                (Kind::ImpliedDirectory, Kind::Directory { .. }) => {
                    taken.insert(kind);
                }
                (Kind::Directory { .. } | Kind::ImpliedDirectory, Kind::ImpliedDirectory) => {}
                (first, second) => {
                    let (first, second) = (first.word(), second.word());
                    return Err(TreeError::Twice { path: taken.key().clone(), first, second });
                }
            },
        }
        Ok(())
    }

    /// Returns a builder that begins with the entries of `tree`.
    pub fn from_tree(tree: Tree) -> Self {
        Self { entries: tree.entries.into_iter().map(|entry| (entry.path, entry.kind)).collect() }
    }

    /// Whether something was added below `path`.
    fn holds_something_below(&self, path: &TreePath) -> bool {
        use std::ops::Bound::{Excluded, Unbounded};
        let mut after = self.entries.range((Excluded(path.clone()), Unbounded));
        after.next().is_some_and(|(next, _)| next.starts_with(path))
    }

    /// Whether something was added at `path`.
    pub fn contains(&self, path: &TreePath) -> bool {
        self.entries.contains_key(path)
    }

    #[cfg(test)]
    pub(crate) fn kind(&self, path: &TreePath) -> Option<&Kind> {
        self.entries.get(path)
    }

    #[cfg(test)]
    pub(crate) fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.entries.keys()
    }

    /// Adds the parents that are missing, checks the invariants and returns the tree.
    ///
    /// A hardlink may have been added before or after the file that it names; the names of one file are
    /// put in order here, so the first one in path order carries the content.
    pub fn finish(mut self) -> Result<Tree, TreeError> {
        self.add_parents()?;
        self.order_hardlinks()?;
        let entries = self.entries.into_iter().map(|(path, kind)| Entry { path, kind }).collect();
        Ok(Tree { entries })
    }

    fn add_parents(&mut self) -> Result<(), TreeError> {
        let mut missing = vec![];
        if !self.entries.contains_key(&TreePath::root()) {
            missing.push(TreePath::root());
        }
        for path in self.entries.keys() {
            let mut child = path.clone();
            while let Some(parent) = child.parent() {
                match self.entries.get(&parent) {
                    Some(kind) if kind.is_directory() => break,
                    Some(kind) => {
                        let word = kind.word();
                        return Err(TreeError::NotADirectory { path: path.clone(), parent, word });
                    }
                    None => missing.push(parent.clone()),
                }
                child = parent;
            }
        }
        for path in missing {
            self.entries.entry(path).or_insert(Kind::ImpliedDirectory);
        }
        Ok(())
    }

    fn order_hardlinks(&mut self) -> Result<(), TreeError> {
        let mut names: BTreeMap<TreePath, Vec<TreePath>> = BTreeMap::new();
        for (path, kind) in &self.entries {
            if let Kind::Hardlink { first } = kind {
                match self.entries.get(first) {
                    Some(Kind::File { .. } | Kind::Symlink { .. }) => {}
                    _ => return Err(TreeError::Dangling { path: path.clone(), first: first.clone() }),
                }
                names.entry(first.clone()).or_default().push(path.clone());
            }
        }
        for (holder, mut links) in names {
            if holder < links[0] {
                continue;
            }
            let first = links[0].clone();
            let content = self.entries.insert(holder.clone(), Kind::Hardlink { first: first.clone() });
            let content = content.expect("checked to be a file or symlink above");
            self.entries.insert(first.clone(), content);
            for link in links.drain(1..) {
                self.entries.insert(link, Kind::Hardlink { first: first.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Metadata;

    fn path(text: &str) -> TreePath {
        text.parse().unwrap()
    }

    fn file() -> Kind {
        Kind::File { metadata: Metadata::new(0o644, 7), content: Content::Empty }
    }

    fn build(entries: &[(&str, Kind)]) -> Result<Tree, TreeError> {
        let mut builder = TreeBuilder::new();
        for (at, kind) in entries {
            builder.add(path(at), kind.clone())?;
        }
        builder.finish()
    }

    #[test]
    fn parents_appear_and_order_does_not_matter() {
        let one = build(&[("a/b/c", file()), ("a.x", file())]).unwrap();
        let two = build(&[("a.x", file()), ("a/b/c", file())]).unwrap();
        assert_eq!(one, two);
        let words: Vec<_> = one.entries().iter().map(|e| (e.path.to_string(), e.kind.word())).collect();
        let expected = [
            ("/", "directory"),
            ("/a", "directory"),
            ("/a/b", "directory"),
            ("/a/b/c", "file"),
            ("/a.x", "file"),
        ];
        assert_eq!(words, expected.map(|(p, w)| (p.to_owned(), w)));
    }

    #[test]
    fn the_first_name_in_order_carries_the_content() {
        let tree = build(&[
            ("z", file()),
            ("m", Kind::Hardlink { first: path("z") }),
            ("a", Kind::Hardlink { first: path("z") }),
        ])
        .unwrap();
        assert_eq!(tree.get(&path("a")), Some(&file()));
        assert_eq!(tree.get(&path("m")), Some(&Kind::Hardlink { first: path("a") }));
        assert_eq!(tree.get(&path("z")), Some(&Kind::Hardlink { first: path("a") }));
    }

    #[test]
    fn refuses_what_is_no_tree() {
        assert!(matches!(build(&[("a", file()), ("a", file())]), Err(TreeError::Twice { .. })));
        assert!(matches!(build(&[("a", file()), ("a/b", file())]), Err(TreeError::NotADirectory { .. })));
        let dangling = Kind::Hardlink { first: path("nowhere") };
        assert!(matches!(build(&[("a", dangling)]), Err(TreeError::Dangling { .. })));
    }
}
