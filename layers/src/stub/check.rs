//! Comparing a stub tree with the tree that it was made of.

use std::fs::{self, Metadata as Found};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::entry::{Content, Kind, Metadata};
use crate::path::TreePath;
use crate::tree::Tree;

/// Returns the first path at which the stubs at `out` are not what [`super::write_stubs`] makes of `tree`.
///
/// An error means that this could not be found out.
pub fn differing_stub(tree: &Tree, out: &Path) -> io::Result<Option<TreePath>> {
    for entry in tree.entries() {
        let path = out.join(entry.path.as_path());
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(error) if is_absent(&error) => return Ok(Some(entry.path.clone())),
            Err(error) => return Err(error),
        };
        let same = match &entry.kind {
            Kind::Symlink { target, .. } => {
                found.is_symlink() && fs::read_link(&path)?.as_os_str().as_bytes() == &**target
            }
            Kind::File { metadata, content } => {
                found.is_file()
                    && found.len() == content.size()
                    && is_redirected(&path, content)?
                    && is_described(&path, metadata, &found)?
            }
            Kind::Hardlink { first } => {
                fs::symlink_metadata(out.join(first.as_path())).is_ok_and(|first| first.ino() == found.ino())
            }
            kind => match kind.metadata() {
                Some(metadata) => found.is_dir() && is_described(&path, metadata, &found)?,
                None => found.is_dir(),
            },
        };
        if !same {
            return Ok(Some(entry.path.clone()));
        }
    }
    // Every entry has its name; a further name is one too many.
    match (names(out)?, tree.entries().len()) {
        (found, entries) if found == entries => Ok(None),
        _ => Ok(Some(TreePath::root())),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_redirected(path: &Path, content: &Content) -> io::Result<bool> {
    let Content::Object(object, _) = content else { return Ok(true) };
    let redirect = attribute(path, b"user.overlay.redirect")?;
    Ok(redirect.as_deref() == Some(&crate::erofs::redirect(*object)[..])
        && attribute(path, b"user.overlay.metacopy")?.is_some())
}

fn is_described(path: &Path, metadata: &Metadata, found: &Found) -> io::Result<bool> {
    for (name, value) in &metadata.xattrs {
        if attribute(path, name)?.as_deref() != Some(&**value) {
            return Ok(false);
        }
    }
    Ok(found.mode() & 0o7777 == u32::from(metadata.mode) && found.mtime() == metadata.mtime)
}

/// Reads an attribute; `None` if there is none of this name.
fn attribute(path: &Path, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 1 << 16];
    match rustix::fs::lgetxattr(path, name, &mut value) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(rustix::io::Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Counts the names in a tree, its root among them.
fn names(path: &Path) -> io::Result<usize> {
    let mut count = 1;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { names(&entry.path())? } else { 1 };
    }
    Ok(count)
}
