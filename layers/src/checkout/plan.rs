//! Which file of a pool serves which path, before anything is written.

use std::collections::HashMap;

use infradev_store::ObjectId;

use super::{CheckoutError, Files};
use crate::entry::{Content, Entry, Kind, Metadata};
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

/// A file or symlink.
pub(super) struct Child<'a> {
    pub(super) entry: &'a Entry,
    /// For files with content.
    pub(super) wanted: Option<Wanted<'a>>,
}

/// A file with content that a tree needs.
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a TreePath,
    pub(crate) metadata: &'a Metadata,
    pub(crate) object: ObjectId,
    /// In bytes.
    pub(crate) size: u64,
    /// How many further names of it the tree has.
    pub(crate) further_names: u64,
    /// Its name in the pool, if it comes from there.
    pub(crate) pool_name: Option<String>,
    /// Whether an earlier file of the tree shows the same; two names with one inode number would be hardlinks
    /// of each other, which they are not.
    pub(crate) repeated: bool,
}

impl<'a> Plan<'a> {
    pub(super) fn new(tree: &'a Tree, files: &impl Files) -> Result<Self, CheckoutError> {
        let mut further_names: HashMap<&TreePath, u64> = HashMap::new();
        for first in tree.entries().iter().filter_map(first_name) {
            *further_names.entry(first).or_default() += 1;
        }
        let mut uses: HashMap<String, u32> = HashMap::new();
        let mut plan = Self::default();
        // The directories of the path so far: entries come in order, so the parent of each is the last.
        let mut open: Vec<usize> = vec![];
        for entry in tree.entries() {
            while open.last().is_some_and(|&last| !entry.path.starts_with(&plan.directories[last].entry.path))
            {
                open.pop();
            }
            let mut wanted = None;
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
                Kind::File { metadata, content: Content::Object(object, size) } => {
                    let mut file = Wanted {
                        path: &entry.path,
                        metadata,
                        object: *object,
                        size: *size,
                        further_names: further_names.get(&entry.path).copied().unwrap_or_default(),
                        pool_name: None,
                        repeated: false,
                    };
                    file.pool_name = files.pool_name(&file, 0);
                    if let Some(name) = &file.pool_name {
                        let earlier = uses.entry(name.clone()).or_default();
                        *earlier += 1;
                        if *earlier > 1 {
                            file.pool_name = files.pool_name(&file, *earlier - 1);
                            file.repeated = true;
                        }
                    }
                    wanted = Some(file);
                }
                Kind::File { .. } | Kind::Symlink { .. } => {}
                Kind::ImpliedDirectory | Kind::Whiteout => {
                    let word = entry.kind.word();
                    return Err(CheckoutError::NotMerged { path: entry.path.clone(), word });
                }
            }
            let parent = *open.last().expect("a tree has its root first, a directory");
            plan.directories[parent].children.push(Child { entry, wanted });
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
