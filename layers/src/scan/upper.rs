//! What overlayfs writes into an upper, in the terms of a tree (Documentation/filesystems/overlayfs.rst).
//!
//! Uppers are mounted so that they are self-contained where the kernel allows. Where it does not, a changed
//! mode leaves a file without data (`metacopy`) and a renamed directory leaves a pointer (`redirect`); both are
//! resolved here from the tree below, without a mount.

use crate::entry::{Content, Kind, Metadata};
use crate::path::TreePath;
use crate::scan::{ScanError, Xattrs};
use crate::tree::{Tree, TreeBuilder};

/// Returns the value of `trusted.overlay.<name>` or `user.overlay.<name>`.
pub(super) fn overlay_xattr<'a>(xattrs: &'a Xattrs, name: &[u8]) -> Option<&'a [u8]> {
    xattrs.iter().find_map(|(full, value)| {
        let rest = full.strip_prefix(b"trusted.overlay.").or_else(|| full.strip_prefix(b"user.overlay."))?;
        (rest == name).then_some(&**value)
    })
}

/// Describes a directory of an upper over what `lower` shows at its path; one that only was copied up to hold
/// something else is implied.
pub(super) fn directory_kind(metadata: Metadata, xattrs: &Xattrs, lower: Option<&Kind>) -> Kind {
    let opaque =
        overlay_xattr(xattrs, b"opaque") == Some(b"y") || overlay_xattr(xattrs, b"redirect").is_some();
    match lower {
        Some(Kind::Directory { metadata: below, .. }) if !opaque && same_but_time(&metadata, below) => {
            Kind::ImpliedDirectory
        }
        // Nothing below that it could hide: as in a plain directory.
        None => Kind::Directory { metadata, opaque: false },
        Some(_) => Kind::Directory { metadata, opaque },
    }
}

/// A directory's time changes whenever something in it does, which the layer says anyway.
fn same_but_time(upper: &Metadata, lower: &Metadata) -> bool {
    Metadata { mtime: lower.mtime, ..upper.clone() } == *lower
}

/// Returns the content of a file of which only the metadata was copied up.
pub(super) fn content_below(path: &TreePath, xattrs: &Xattrs, lower: &Tree) -> Result<Content, ScanError> {
    let origin = match overlay_xattr(xattrs, b"redirect") {
        Some(target) => resolve(path, target)?,
        None => path.clone(),
    };
    let mut kind = lower.get(&origin);
    if let Some(Kind::Hardlink { first }) = kind {
        kind = lower.get(first);
    }
    match kind {
        Some(Kind::File { content, .. }) => Ok(*content),
        _ => Err(ScanError::Upper { path: path.clone(), target: origin.to_string() }),
    }
}

/// Adds what a renamed directory shows from below.
pub(super) fn expand_redirect(
    path: &TreePath,
    target: &[u8],
    lower: &Tree,
    builder: &mut TreeBuilder,
) -> Result<(), ScanError> {
    let origin = resolve(path, target)?;
    let start = lower
        .position(&origin)
        .ok_or_else(|| ScanError::Upper { path: path.clone(), target: origin.to_string() })?;
    let below = lower.entries()[start + 1..].iter().take_while(|entry| entry.path.starts_with(&origin));
    for entry in below {
        let rest = &entry.path.as_bytes()[origin.as_bytes().len()..];
        let at = path.join(rest.strip_prefix(b"/").unwrap_or(rest))?;
        let kind = match &entry.kind {
            Kind::Hardlink { first } => lower.get(first).expect("a tree has no dangling hardlinks").clone(),
            kind => kind.clone(),
        };
        builder.add_below(at, kind)?;
    }
    Ok(())
}

/// A redirect is absolute from the root of the overlay, or a name beside the directory itself.
fn resolve(path: &TreePath, target: &[u8]) -> Result<TreePath, ScanError> {
    Ok(match target.strip_prefix(b"/") {
        Some(absolute) => TreePath::new(absolute)?,
        None => path.parent().unwrap_or_default().join(target)?,
    })
}
