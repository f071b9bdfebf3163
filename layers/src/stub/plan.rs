//! Which stub serves which file, before anything is written.

use std::collections::{HashMap, HashSet};

use super::StubError;
use super::pool::Key;
use crate::entry::{Content, Entry, Kind};
use crate::path::TreePath;
use crate::tree::Tree;

#[derive(Default)]
pub(super) struct Plan<'a> {
    /// In path order, the root first.
    pub(super) directories: Vec<Directory<'a>>,
    /// Further names, and the first.
    pub(super) hardlinks: Vec<(&'a Entry, &'a TreePath)>,
}

pub(super) struct Directory<'a> {
    pub(super) entry: &'a Entry,
    pub(super) children: Vec<Child<'a>>,
}

/// A file or symlink, with its key if its stub comes from the pool.
pub(super) struct Child<'a> {
    pub(super) entry: &'a Entry,
    pub(super) key: Option<Key>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(tree: &'a Tree) -> Result<Self, StubError> {
        let linked: HashSet<&TreePath> = tree.entries().iter().filter_map(first_name).collect();
        let mut uses: HashMap<Key, u32> = HashMap::new();
        let mut plan = Self::default();
        // The directories of the path so far: entries come in order, so the parent of each is the last.
        let mut open: Vec<usize> = vec![];
        for entry in tree.entries() {
            while open.last().is_some_and(|&last| !entry.path.starts_with(&plan.directories[last].entry.path))
            {
                open.pop();
            }
            let mut key = None;
            match &entry.kind {
                Kind::Directory { .. } => {
                    open.push(plan.directories.len());
                    plan.directories.push(Directory { entry, children: vec![] });
                    continue;
                }
                Kind::Hardlink { first } => {
                    plan.hardlinks.push((entry, first));
                    continue;
                }
                Kind::File { metadata, content: Content::Object(object, size) }
                    if !linked.contains(&entry.path) =>
                {
                    let first = Key::of(*object, *size, metadata);
                    let earlier = uses.entry(first).or_default();
                    key = Some(first.numbered(*earlier));
                    *earlier += 1;
                }
                Kind::File { .. } | Kind::Symlink { .. } => {}
                Kind::ImpliedDirectory | Kind::Whiteout => {
                    return Err(StubError::NotMerged { path: entry.path.clone(), word: entry.kind.word() });
                }
            }
            let parent = *open.last().expect("a tree has its root first, a directory");
            plan.directories[parent].children.push(Child { entry, key });
        }
        Ok(plan)
    }
}

fn first_name(entry: &Entry) -> Option<&TreePath> {
    match &entry.kind {
        Kind::Hardlink { first } => Some(first),
        _ => None,
    }
}
