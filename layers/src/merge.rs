//! A stack of layers, merged in memory into the one tree that kernel overlayfs would show.
//!
//! Every environment mounts one merged image instead of one lower directory per layer: the first lookup of an
//! absent name costs overlayfs one lookup per lower directory, and Python's imports are mostly such lookups.

use std::collections::BTreeMap;

use crate::entry::{Entry, Kind, Metadata};
use crate::path::TreePath;
use crate::tree::Tree;

/// Merges `layers`, lowest first. The result has no whiteouts, no opaque and no implied directories.
///
/// Follows the kernel's rules (Documentation/filesystems/overlayfs.rst): directories of one path merge unless
/// the upper one is opaque, anything else hides what lies below, a whiteout hides and is not shown itself.
/// Hardlinks stay links among the names of their own layer that survive.
pub fn merge<'a>(layers: impl IntoIterator<Item = &'a Tree>) -> Tree {
    let mut merged = Merged::default();
    for (number, layer) in layers.into_iter().enumerate() {
        merged.apply(number as u32, layer);
    }
    merged.into_tree()
}

/// A node of the merged tree; children are numbers of other nodes, by name.
struct Node<'a> {
    what: What<'a>,
    children: BTreeMap<&'a [u8], usize>,
}

enum What<'a> {
    Implied,
    Described(&'a Kind),
    /// One of the names of a file: its layer, the position of the first name there, and the file.
    Name {
        layer: u32,
        first: usize,
        file: &'a Kind,
    },
}

struct Merged<'a> {
    nodes: Vec<Node<'a>>,
}

impl Default for Merged<'_> {
    fn default() -> Self {
        Self { nodes: vec![Node { what: What::Implied, children: BTreeMap::new() }] }
    }
}

impl<'a> Merged<'a> {
    fn apply(&mut self, number: u32, layer: &'a Tree) {
        let linked = names_of_hardlinked_files(layer);
        // The nodes of the path so far, with the length of each directory's path: entries come in order, so
        // the parent of each is on this stack.
        let mut open: Vec<(&TreePath, usize)> = vec![];
        for (position, entry) in layer.entries().iter().enumerate() {
            while open.last().is_some_and(|(path, _)| !entry.path.starts_with(path)) {
                open.pop();
            }
            let Some(&(_, parent)) = open.last() else {
                self.describe_directory(0, &entry.kind);
                open.push((&entry.path, 0));
                continue;
            };
            let name = entry.path.file_name();
            match &entry.kind {
                Kind::Whiteout => {
                    self.nodes[parent].children.remove(name);
                }
                kind if kind.is_directory() => {
                    let node = self.directory(parent, name);
                    self.describe_directory(node, kind);
                    open.push((&entry.path, node));
                }
                Kind::Hardlink { first } => {
                    let first = layer.position(first).expect("a tree has no dangling hardlinks");
                    let what = What::Name { layer: number, first, file: &layer.entries()[first].kind };
                    self.replace(parent, name, what);
                }
                file if linked.binary_search(&position).is_ok() => {
                    self.replace(parent, name, What::Name { layer: number, first: position, file });
                }
                other => self.replace(parent, name, What::Described(other)),
            }
        }
    }

    fn directory(&mut self, parent: usize, name: &'a [u8]) -> usize {
        if let Some(&node) = self.nodes[parent].children.get(name) {
            let is_directory = match self.nodes[node].what {
                What::Implied => true,
                What::Described(kind) => kind.is_directory(),
                What::Name { .. } => false,
            };
            if is_directory {
                return node;
            }
        }
        self.insert(parent, name, What::Implied)
    }

    fn describe_directory(&mut self, node: usize, kind: &'a Kind) {
        if let Kind::Directory { opaque, .. } = kind {
            self.nodes[node].what = What::Described(kind);
            if *opaque {
                self.nodes[node].children.clear();
            }
        }
    }

    fn replace(&mut self, parent: usize, name: &'a [u8], what: What<'a>) {
        self.insert(parent, name, what);
    }

    fn insert(&mut self, parent: usize, name: &'a [u8], what: What<'a>) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node { what, children: BTreeMap::new() });
        self.nodes[parent].children.insert(name, node);
        node
    }

    fn into_tree(self) -> Tree {
        let mut entries = Vec::with_capacity(self.nodes.len());
        let mut firsts: BTreeMap<(u32, usize), TreePath> = BTreeMap::new();
        let mut pending: Vec<(TreePath, usize)> = vec![(TreePath::root(), 0)];
        while let Some((path, node)) = pending.pop() {
            let Node { what, children } = &self.nodes[node];
            let kind = match what {
                What::Implied => Kind::Directory { metadata: Metadata::implied(), opaque: false },
                What::Described(Kind::Directory { metadata, .. }) => {
                    Kind::Directory { metadata: metadata.clone(), opaque: false }
                }
                What::Described(kind) => (*kind).clone(),
                What::Name { layer, first, file } => match firsts.get(&(*layer, *first)) {
                    Some(first) => Kind::Hardlink { first: first.clone() },
                    None => {
                        firsts.insert((*layer, *first), path.clone());
                        (*file).clone()
                    }
                },
            };
            for (name, child) in children.iter().rev() {
                let below = path.join(name).expect("a path of a layer joined with a name of a layer");
                pending.push((below, *child));
            }
            entries.push(Entry { path, kind });
        }
        Tree::from_sorted(entries)
    }
}

/// Returns the positions of the files that have further names in `layer`, sorted.
fn names_of_hardlinked_files(layer: &Tree) -> Vec<usize> {
    let mut positions: Vec<usize> = layer
        .entries()
        .iter()
        .filter_map(|entry| match &entry.kind {
            Kind::Hardlink { first } => layer.position(first),
            _ => None,
        })
        .collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{arbitrary_tree, directory, file, path, tree};

    fn check(layers: &[Tree], expected: &[(&str, Kind)]) {
        let merged = merge(layers);
        let shown: Vec<_> = merged.entries().iter().skip(1).map(|e| (e.path.to_string(), &e.kind)).collect();
        let expected: Vec<_> = expected.iter().map(|(path, kind)| (format!("/{path}"), kind)).collect();
        assert_eq!(shown, expected);
    }

    fn opaque() -> Kind {
        Kind::Directory { metadata: Metadata::new(0o700, 3), opaque: true }
    }

    #[test]
    fn an_implied_directory_never_changes_a_described_one() {
        let layers = [tree([("a", directory(0o700))]), tree([("a/x", file(b"1"))])];
        check(&layers, &[("a", directory(0o700)), ("a/x", file(b"1"))]);
    }

    #[test]
    fn whiteouts_hide_and_do_not_show() {
        let layers = [tree([("a/x", file(b"1")), ("a/y", file(b"2"))]), tree([("a/x", Kind::Whiteout)])];
        let shown = Kind::Directory { metadata: Metadata::implied(), opaque: false };
        check(&layers, &[("a", shown), ("a/y", file(b"2"))]);
    }

    #[test]
    fn an_opaque_directory_hides_what_is_below_but_not_its_own() {
        let layers = [tree([("a/x", file(b"1"))]), tree([("a", opaque()), ("a/z", file(b"3"))])];
        check(&layers, &[("a", directory(0o700)), ("a/z", file(b"3"))]);
    }

    #[test]
    fn a_file_over_a_directory_cuts_it_off_for_good() {
        let layers =
            [tree([("a/x", file(b"1"))]), tree([("a", file(b"f"))]), tree([("a", directory(0o711))])];
        check(&layers, &[("a", directory(0o711))]);
    }

    #[test]
    fn hardlinks_survive_the_loss_of_their_first_name() {
        let lower = tree([
            ("a", file(b"1")),
            ("b", Kind::Hardlink { first: path("a") }),
            ("c", Kind::Hardlink { first: path("a") }),
        ]);
        let layers = [lower, tree([("a", file(b"2"))])];
        check(&layers, &[("a", file(b"2")), ("b", file(b"1")), ("c", Kind::Hardlink { first: path("b") })]);
    }

    proptest! {
        #[test]
        fn a_merge_is_a_tree_that_merges_to_itself(layers in prop::collection::vec(arbitrary_tree(), 0..5)) {
            let merged = merge(&layers);
            prop_assert_eq!(Tree::decode(&merged.encode()), Ok(merged.clone()));
            prop_assert_eq!(merge([&merged]), merged);
        }

        #[test]
        fn merging_step_by_step_gives_the_same(layers in prop::collection::vec(arbitrary_tree(), 1..5)) {
            // The lower part of a stack may be merged first; the upper part may not, since whiteouts would go.
            let whole = merge(&layers);
            let lower = merge(&layers[..layers.len() - 1]);
            let stepped = merge([&lower, &layers[layers.len() - 1]]);
            prop_assert_eq!(whole, stepped);
        }
    }
}
