//! A tree on disk as a list, in the terms in which back ends must be identical: path, kind, mode, size, time,
//! extended attributes, link target, content, and which paths are hardlinked.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// One path of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: &'static str,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    /// Whole seconds; directories that nothing describes have none that means anything.
    pub(crate) mtime: i64,
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
    pub(crate) content: Vec<u8>,
    /// The first path of the same file.
    pub(crate) first: PathBuf,
}

/// Walks the tree at `root`; the root itself has the empty path.
pub(crate) fn walk(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut inodes = HashMap::new();
    visit(root, Path::new(""), &mut seen, &mut inodes);
    seen
}

fn visit(
    root: &Path,
    below: &Path,
    seen: &mut BTreeMap<PathBuf, Seen>,
    inodes: &mut HashMap<(u64, u64), PathBuf>,
) {
    let path = if below.as_os_str().is_empty() { root.to_owned() } else { root.join(below) };
    let metadata = match fs::symlink_metadata(&path) {
        Ok(metadata) => metadata,
        // overlayfs lists a whiteout that hides nothing, and then does not find it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let kind = metadata.file_type();
    let (kind, content) = if kind.is_dir() {
        ("directory", vec![])
    } else if kind.is_symlink() {
        ("symlink", fs::read_link(&path).expect("a link").as_os_str().as_bytes().to_vec())
    } else if kind.is_file() {
        ("file", fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    } else if kind.is_char_device() {
        ("device", vec![])
    } else {
        ("other", vec![])
    };
    let mut first = below.to_owned();
    if kind != "directory" && metadata.nlink() > 1 {
        first = inodes.entry((metadata.dev(), metadata.ino())).or_insert(first).clone();
    }
    let entry = Seen {
        kind,
        mode: metadata.mode() & 0o7777,
        owner: (metadata.uid(), metadata.gid()),
        mtime: metadata.mtime(),
        xattrs: if kind == "symlink" { vec![] } else { xattrs(&path) },
        content,
        first,
    };
    seen.insert(below.to_owned(), entry);
    if kind == "directory" {
        let mut names: Vec<_> = fs::read_dir(&path)
            .expect("a directory")
            .map(|entry| entry.expect("a name").file_name())
            .collect();
        names.sort();
        for name in names {
            visit(root, &below.join(name), seen, inodes);
        }
    }
}

/// The attributes that a user can set.
fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut list = vec![0; 65536];
    let Ok(length) = rustix::fs::listxattr(path, &mut list) else { return vec![] };
    let mut xattrs = vec![];
    for name in list[..length].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; 65536];
        if let Ok(length) = rustix::fs::getxattr(path, name, &mut value) {
            xattrs.push((String::from_utf8_lossy(name).into_owned(), value[..length].to_vec()));
        }
    }
    xattrs.sort();
    xattrs
}
