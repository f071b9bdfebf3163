//! What the disks must hold, before anything is written.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use infradev_layers::{Content, Kind, Tree};
use infradev_store::{Store, object_name};

use crate::error::{CommandError, CommandResult, Kind as Failure};
use crate::ui::bytes;

/// What file systems give a file at least, and round its size up to.
const BLOCK: u64 = 4096;

/// What one file system must hold, and has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) needed: u64,
    pub(crate) free: u64,
}

impl Room {
    /// Asks for room for `written` bytes at `target`, a directory, and for `kept` bytes in the store.
    pub(crate) fn look(store: &Store, target: &Path, written: u64, kept: u64) -> CommandResult<Self> {
        let failed = |error: std::io::Error| CommandError::file("examine", target, &error);
        let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
        let is_one = device(target).map_err(failed)? == device(store.layout().root()).map_err(failed)?;
        let found = rustix::fs::statvfs(target).map_err(|error| failed(error.into()))?;
        let free = found.f_bavail * found.f_frsize;
        if !is_one && kept > store.free_bytes()? {
            return Err(full("the store's file system", kept, store.free_bytes()?));
        }
        Ok(Self { needed: if is_one { written + kept } else { written }, free })
    }

    /// Refuses what does not fit.
    pub(crate) fn ensure(self, target: &Path) -> CommandResult {
        match self.needed <= self.free {
            true => Ok(()),
            false => Err(full(&target.display().to_string(), self.needed, self.free)),
        }
    }
}

fn full(place: &str, needed: u64, free: u64) -> CommandError {
    let (needed, free) = (bytes(needed), bytes(free));
    CommandError::new(Failure::Infrastructure, format!("{needed} are needed, and {place} has {free} left"))
        .hint("free some space, or choose another place; nothing was written")
}

/// How many bytes a tree of files of its own takes; with `reflinks`, their content is shared with the store.
pub(crate) fn copied_bytes(tree: &Tree, reflinks: bool) -> u64 {
    let size = |kind: &Kind| match kind {
        Kind::File { content, .. } if !reflinks => content.size().next_multiple_of(BLOCK),
        Kind::Directory { .. } => BLOCK,
        _ => 0,
    };
    // An inode takes a quarter of a kilobyte; some file systems make room for them as they come.
    tree.entries().iter().map(|entry| size(&entry.kind) + 256).sum()
}

/// How many bytes of the trees' files are packed alone, and become plain when they are read.
pub(crate) fn packed_bytes<'a>(store: &Store, trees: impl IntoIterator<Item = &'a Tree>) -> u64 {
    if store.pack_names().is_ok_and(|packs| packs.is_empty()) && store.shared().is_empty() {
        return 0;
    }
    let directories = store.object_directories();
    let mut references: Vec<_> = trees.into_iter().flat_map(Tree::references).collect();
    references.sort_unstable();
    references.dedup();
    let is_packed =
        |object| !directories.iter().any(|directory| directory.join(object_name(object)).exists());
    references.iter().filter(|reference| is_packed(&reference.object)).map(|reference| reference.size).sum()
}

/// Whether a file at `target`, a directory, can share its blocks with the objects of `tree` (`FICLONE`): tried.
pub(crate) fn shares_blocks(store: &Store, tree: &Tree, target: &Path) -> bool {
    let object = tree.entries().iter().find_map(|entry| match &entry.kind {
        Kind::File { content: Content::Object(object, _), .. } => Some(object),
        _ => None,
    });
    let Some(object) = object else { return false };
    let paths: Vec<PathBuf> =
        store.object_directories().iter().map(|directory| directory.join(object_name(object))).collect();
    let Some(from) = paths.iter().find_map(|path| File::open(path).ok()) else { return false };
    let trial = target.join(format!(".infradev-trial-{}", std::process::id()));
    let shares = File::options().write(true).create_new(true).open(&trial).is_ok_and(|to| {
        // The answer depends on the two file systems alone.
        rustix::fs::ioctl_ficlone(&to, &from).is_ok()
    });
    let _there_may_be_none = std::fs::remove_file(&trial);
    shares
}
