//! Source layers: the tree of one commit, with a repository that holds exactly that commit.
//!
//! A benchmark's environment must not contain the future. So the `.git` is written by us: one pack with the
//! base commit, its trees and blobs; its parents cut off by `shallow`; a detached HEAD; no refs, reflogs,
//! remotes or hooks. The index is written too, such that `git status` finds every file unchanged by size and
//! time, without reading it. Formats: gitformat-pack(5), gitformat-index(5), gitrepository-layout(5).

mod index;
mod objects;
mod pack;

use std::collections::BTreeMap;
use std::io;

use infradev_store::Ingest;

pub use objects::{GitObject, GitObjectKind, GitSource, Oid};

use crate::entry::{Content, Kind, Metadata};
use crate::path::{PathError, TreePath};
use crate::tree::{Tree, TreeBuilder, TreeError};

/// The version of this transform; goes into every source's step key.
pub const GIT_LAYER_VERSION: u32 = 1;

/// A commit that cannot become a layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// The repository could not be read.
    #[error("cannot read the repository")]
    Read(#[source] io::Error),
    /// An object is not in the repository.
    #[error("object {object} is not in the repository{}", .path.as_ref().map(|path| format!(" ({path})")).unwrap_or_default())]
    Missing {
        /// The object.
        object: Oid,
        /// Where the commit has it.
        path: Option<TreePath>,
    },
    /// An object is not what it should be.
    #[error("object {object} {problem}")]
    Object {
        /// The object.
        object: Oid,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A name in the commit cannot stand in a layer.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The entries are no tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
}

/// What [`commit_tree`] made.
#[derive(Debug)]
pub struct CommitTree {
    /// The layer's tree, with the work tree and `.git` below the given directory.
    pub tree: Tree,
    /// The commit's time in seconds since 1970: the modification time of every file.
    pub time: i64,
}

/// Reads `commit` from `source` into a tree below `directory`; the files' bytes go to `ingest`.
///
/// Paths for which `left_out` returns true are neither in the work tree nor in the repository's pack; the index
/// marks them so that `git status` does not miss them.
pub fn commit_tree(
    source: &mut dyn GitSource,
    commit: Oid,
    directory: &TreePath,
    left_out: &dyn Fn(&TreePath) -> bool,
    ingest: &Ingest<'_>,
) -> Result<CommitTree, GitError> {
    let object = objects::read(source, commit, GitObjectKind::Commit, None)?;
    let (root, time) = objects::parse_commit(commit, &object)?;
    let mut walk = Walk { source, left_out, objects: BTreeMap::new(), files: BTreeMap::new() };
    walk.objects.insert(commit, object);
    walk.tree(root, &TreePath::root())?;
    let Walk { objects, files, .. } = walk;
    let mut layer = Layer { builder: TreeBuilder::new(), directory, time, ingest };
    for (path, file) in &files {
        layer.work_tree_file(path, file, &objects)?;
    }
    layer.repository(commit, &objects, &files)?;
    Ok(CommitTree { tree: layer.builder.finish()?, time })
}

/// A file of the commit.
struct GitFile {
    mode: u32,
    object: Oid,
    left_out: bool,
}

/// The modes that git gives to files (gitformat-index(5)).
const EXECUTABLE: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_000;
const SUBMODULE: u32 = 0o160_000;

struct Walk<'a> {
    source: &'a mut dyn GitSource,
    left_out: &'a dyn Fn(&TreePath) -> bool,
    objects: BTreeMap<Oid, GitObject>,
    files: BTreeMap<Vec<u8>, (TreePath, GitFile)>,
}

impl Walk<'_> {
    fn tree(&mut self, tree: Oid, directory: &TreePath) -> Result<(), GitError> {
        let object = objects::read(self.source, tree, GitObjectKind::Tree, Some(directory))?;
        let entries = objects::parse_tree(tree, &object)?;
        self.objects.insert(tree, object);
        for entry in entries {
            let path = directory.join(&entry.name)?;
            if entry.is_tree() {
                self.tree(entry.object, &path)?;
                continue;
            }
            let left_out = (self.left_out)(&path);
            if entry.mode != SUBMODULE && !left_out && !self.objects.contains_key(&entry.object) {
                let blob = objects::read(self.source, entry.object, GitObjectKind::Blob, Some(&path))?;
                self.objects.insert(entry.object, blob);
            }
            let file = GitFile { mode: entry.mode, object: entry.object, left_out };
            self.files.insert(path.as_bytes().to_vec(), (path, file));
        }
        Ok(())
    }
}

struct Layer<'a> {
    builder: TreeBuilder,
    directory: &'a TreePath,
    time: i64,
    ingest: &'a Ingest<'a>,
}

impl Layer<'_> {
    fn work_tree_file(
        &mut self,
        _key: &[u8],
        (path, file): &(TreePath, GitFile),
        objects: &BTreeMap<Oid, GitObject>,
    ) -> Result<(), GitError> {
        if file.left_out {
            return Ok(());
        }
        let path = self.directory.join(path.as_bytes())?;
        if file.mode == SUBMODULE {
            let metadata = Metadata::new(0o755, self.time);
            return Ok(self.builder.add(path, Kind::Directory { metadata, opaque: false })?);
        }
        let bytes = &objects[&file.object].content;
        if file.mode == SYMLINK {
            let metadata = Metadata { mode: 0o777, ..Metadata::new(0, self.time) };
            return Ok(self
                .builder
                .add(path, Kind::Symlink { metadata, target: bytes.as_slice().into() })?);
        }
        let mode = if file.mode == EXECUTABLE { 0o755 } else { 0o644 };
        self.add(path, mode, bytes, self.time)
    }

    fn repository(
        &mut self,
        commit: Oid,
        objects: &BTreeMap<Oid, GitObject>,
        files: &BTreeMap<Vec<u8>, (TreePath, GitFile)>,
    ) -> Result<(), GitError> {
        let git = self.directory.join(b".git")?;
        let packed = pack::write(objects);
        let stem = format!("objects/pack/pack-{}", packed.checksum);
        let time = self.time;
        let head = format!("{commit}\n");
        // Sizes and times in whole seconds are all that an image keeps of what git's index can hold.
        let config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\ttrustctime = false\n\tcheckStat = minimal\n[gc]\n\tauto = 0\n";
        let index = index::write(files, objects, time);
        let mut add =
            |name: &str, bytes: &[u8], mode, time| self.add(git.join(name.as_bytes())?, mode, bytes, time);
        add("HEAD", head.as_bytes(), 0o644, time)?;
        add("shallow", head.as_bytes(), 0o644, time)?;
        add("config", config.as_bytes(), 0o644, time)?;
        add(&format!("{stem}.pack"), &packed.pack, 0o444, time)?;
        add(&format!("{stem}.idx"), &packed.index, 0o444, time)?;
        // Later than every file: git re-reads files that are not older than the index (racy-git(7)).
        add("index", &index, 0o644, time + 1)?;
        for name in ["refs/heads", "refs/tags", "objects/info"] {
            let metadata = Metadata::new(0o755, time);
            self.builder.add(git.join(name.as_bytes())?, Kind::Directory { metadata, opaque: false })?;
        }
        Ok(())
    }

    fn add(&mut self, path: TreePath, mode: u32, bytes: &[u8], time: i64) -> Result<(), GitError> {
        let content = match bytes {
            [] => Content::Empty,
            bytes => Content::Object(self.ingest.put_bytes(bytes)?, bytes.len() as u64),
        };
        Ok(self.builder.add(path, Kind::File { metadata: Metadata::new(mode, time), content })?)
    }
}
