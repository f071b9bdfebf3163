//! What overlayfs writes into an upper, in the terms of a tree (Documentation/filesystems/overlayfs.rst).
//!
//! Uppers are mounted so that they are self-contained where the kernel allows. Where it does not, a changed
//! mode leaves a file without data (`metacopy`) and a renamed directory leaves a pointer (`redirect`); both are
//! resolved here from the tree below, without a mount.

use std::collections::{HashMap, HashSet};

use crate::entry::{Content, Kind, Metadata};
use crate::path::TreePath;
use crate::scan::{ScanError, Xattrs, content_at};
use crate::tree::{Tree, TreeBuilder};

/// Returns the value of `trusted.overlay.<name>` or `user.overlay.<name>`.
pub(super) fn overlay_xattr<'a>(xattrs: &'a Xattrs, name: &[u8]) -> Option<&'a [u8]> {
    xattrs.iter().find_map(|(full, value)| {
        let rest = full.strip_prefix(b"trusted.overlay.").or_else(|| full.strip_prefix(b"user.overlay."))?;
        (rest == name).then_some(&**value)
    })
}

/// What lies below a directory of an upper.
#[derive(Debug)]
pub(super) struct Below {
    /// Where the lower tree has the directory that merges with it: elsewhere if it was renamed.
    origin: Option<TreePath>,
    /// Whether the lower tree shows through at the directory's own path when the layer is merged.
    in_place: bool,
}

impl Below {
    /// What lies below the root.
    pub(super) fn root() -> Self {
        Self { origin: Some(TreePath::root()), in_place: true }
    }

    /// What lies below the directory `path` in the directory that `self` describes.
    pub(super) fn directory(
        &self,
        path: &TreePath,
        xattrs: &Xattrs,
        lower: &Tree,
        moved: &mut Moved,
    ) -> Result<Self, ScanError> {
        if overlay_xattr(xattrs, b"opaque") == Some(b"y") {
            return Ok(Self { origin: None, in_place: false });
        }
        let origin = self.origin(path, xattrs)?;
        let is_directory = |origin: &TreePath| lower.get(origin).is_some_and(Kind::is_directory);
        let origin = origin.filter(is_directory);
        if overlay_xattr(xattrs, b"redirect").is_some() && !moved.is_new(origin.as_ref()) {
            return Err(no_origin(path, xattrs));
        }
        let in_place = self.in_place && origin.as_ref() == Some(path);
        Ok(Self { origin, in_place })
    }

    /// Returns where the lower tree has what the upper only points to.
    fn origin(&self, path: &TreePath, xattrs: &Xattrs) -> Result<Option<TreePath>, ScanError> {
        let name = match overlay_xattr(xattrs, b"redirect") {
            // From the root of the lower tree, or a name in the directory that lies below this one's parent.
            Some(target) if target.starts_with(b"/") => return Ok(Some(TreePath::new(&target[1..])?)),
            Some(target) => target,
            None => path.file_name(),
        };
        Ok(self.origin.as_ref().map(|parent| parent.join(name)).transpose()?)
    }

    /// Returns the content of a file of which only the metadata was copied up.
    pub(super) fn content(
        &self,
        path: &TreePath,
        xattrs: &Xattrs,
        lower: &Tree,
    ) -> Result<Content, ScanError> {
        let origin = self.origin(path, xattrs)?;
        let content = origin.and_then(|origin| content_at(lower, &origin));
        content.ok_or_else(|| no_origin(path, xattrs))
    }

    /// Returns what the layer lets show through at `path`, in the directory that `self` describes.
    pub(super) fn shows<'a>(&self, path: &TreePath, lower: &'a Tree) -> Option<&'a Kind> {
        lower.get(path).filter(|_| self.in_place)
    }

    /// Returns the origin of what the layer itself must hold, since merging it would not find it.
    pub(super) fn origin_elsewhere(&self) -> Option<&TreePath> {
        self.origin.as_ref().filter(|_| !self.in_place)
    }
}

fn no_origin(path: &TreePath, xattrs: &Xattrs) -> ScanError {
    let target = overlay_xattr(xattrs, b"redirect").unwrap_or(path.as_bytes());
    ScanError::Upper { path: path.clone(), target: String::from_utf8_lossy(target).into_owned() }
}

/// Describes a directory of an upper over what would show through at its path; one that only was copied up to
/// hold something else is implied.
pub(super) fn directory_kind(metadata: Metadata, shows: Option<&Kind>, inner: &Below) -> Kind {
    match shows {
        Some(Kind::Directory { metadata: below, .. })
            if inner.in_place && same_but_time(&metadata, below) =>
        {
            Kind::ImpliedDirectory
        }
        // Opaque only over a directory: else as in a plain directory.
        Some(kind) => Kind::Directory { metadata, opaque: kind.is_directory() && !inner.in_place },
        None => Kind::Directory { metadata, opaque: false },
    }
}

/// A directory's time changes whenever something in it does, which the layer says anyway.
fn same_but_time(upper: &Metadata, lower: &Metadata) -> bool {
    Metadata { mtime: lower.mtime, ..upper.clone() } == *lower
}

/// Directories that were renamed.
#[derive(Debug, Default)]
pub(super) struct Moved {
    directories: HashSet<TreePath>,
    /// The new path of each file that was moved along, by its first path in the lower tree.
    files: HashMap<TreePath, TreePath>,
}

impl Moved {
    /// Whether `origin` is there, and no other directory came from it: a forged upper could else be boundless.
    fn is_new(&mut self, origin: Option<&TreePath>) -> bool {
        origin.is_some_and(|origin| !origin.is_root() && self.directories.insert(origin.clone()))
    }

    /// Adds what a directory at `path` shows from `origin`, but for the names that the upper itself lists.
    pub(super) fn expand(
        &mut self,
        path: &TreePath,
        origin: &TreePath,
        listed: &HashSet<Vec<u8>>,
        lower: &Tree,
        builder: &mut TreeBuilder,
    ) -> Result<(), ScanError> {
        let start = lower.position(origin).expect("an origin is a directory of the lower tree");
        let below = lower.entries()[start + 1..].iter().take_while(|entry| entry.path.starts_with(origin));
        for entry in below {
            let rest = &entry.path.as_bytes()[origin.as_bytes().len()..];
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            let name = rest.split(|&byte| byte == b'/').next().unwrap_or(rest);
            if !listed.contains(name) {
                let at = path.join(rest)?;
                let kind = self.kind(&entry.path, &entry.kind, &at, lower);
                builder.add(at, kind)?;
            }
        }
        Ok(())
    }

    /// Returns what to put at `at` for an entry of the lower tree; names of one file stay links of each other.
    fn kind(&mut self, path: &TreePath, kind: &Kind, at: &TreePath, lower: &Tree) -> Kind {
        let (first, kind) = match kind {
            Kind::Hardlink { first } => (first, lower.get(first).expect("a tree has no dangling hardlinks")),
            Kind::File { .. } | Kind::Symlink { .. } => (path, kind),
            other => return other.clone(),
        };
        match self.files.get(first) {
            Some(first) => Kind::Hardlink { first: first.clone() },
            None => {
                self.files.insert(first.clone(), at.clone());
                kind.clone()
            }
        }
    }
}
