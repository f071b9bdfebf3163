//! What a mounted tree shows, as lines, for tests that compare back ends with trees and with each other.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use infradev_store::ObjectId;

use super::xattr::Pair;
use crate::entry::{Kind, Metadata};
use crate::path::TreePath;
use crate::tree::Tree;

/// Describes every entry below `root`, the root first, in path order.
pub(crate) fn walk(root: &Path) -> Vec<String> {
    let mut lines = vec![];
    let mut firsts = BTreeMap::new();
    let mut pending = vec![TreePath::root()];
    while let Some(path) = pending.pop() {
        let at = if path.is_root() { root.to_owned() } else { root.join(path.as_path()) };
        let found = fs::symlink_metadata(&at).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (rest, size) = if found.is_dir() {
            let mut names: Vec<_> =
                fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect();
            names.sort();
            pending.extend(names.iter().rev().map(|name| path.join(name).unwrap()));
            ("directory".to_owned(), 0)
        } else if found.is_symlink() {
            (link_line(fs::read_link(&at).unwrap().as_os_str().as_bytes()), found.len())
        } else {
            (
                ObjectId::of(&fs::read(&at).unwrap_or_else(|error| panic!("{path}: {error}"))).short(),
                found.len(),
            )
        };
        let names = firsts.entry((found.dev(), found.ino())).or_insert_with(|| path.clone());
        let metadata = Metadata {
            mode: (found.permissions().mode() & 0o7777) as u16,
            uid: found.uid(),
            gid: found.gid(),
            mtime: found.mtime(),
            xattrs: xattrs(&at),
        };
        lines.push(line(&path, &metadata, size, &rest, names));
    }
    lines
}

/// Describes what a mount of `tree` must show, everything owned by `owner` if that is given.
pub(crate) fn expected(tree: &Tree, owner: Option<u32>) -> Vec<String> {
    let describe = |entry: &crate::entry::Entry| {
        let (first, kind) = match &entry.kind {
            Kind::Hardlink { first } => (first, tree.get(first).unwrap()),
            kind => (&entry.path, kind),
        };
        let (rest, size) = match kind {
            Kind::File { content, .. } => {
                (content.object().unwrap_or_else(|| ObjectId::of(b"")).short(), content.size())
            }
            Kind::Symlink { target, .. } => (link_line(target), target.len() as u64),
            _ => ("directory".to_owned(), 0),
        };
        let mut metadata = kind.metadata().unwrap().clone();
        if let Some(owner) = owner {
            (metadata.uid, metadata.gid) = (owner, owner);
        }
        line(&entry.path, &metadata, size, &rest, first)
    };
    tree.entries().iter().map(describe).collect()
}

/// Compares line by line, and names the first that differs.
pub(crate) fn assert_same(shown: &[String], expected: &[String]) {
    for (shown, expected) in shown.iter().zip(expected) {
        assert_eq!(shown, expected);
    }
    assert_eq!(shown.len(), expected.len());
}

fn link_line(target: &[u8]) -> String {
    format!("-> {}", String::from_utf8_lossy(target))
}

fn line(path: &TreePath, metadata: &Metadata, size: u64, rest: &str, first: &TreePath) -> String {
    format!("{path} {rest} {size} as {first} {metadata:?}")
}

fn xattrs(at: &Path) -> Vec<Pair> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(at, &mut names).unwrap();
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let length = rustix::fs::lgetxattr(at, name, &mut value).unwrap();
        value[..length].into()
    };
    let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let mut xattrs: Vec<Pair> = names.map(|name| (name.into(), value(name))).collect();
    xattrs.sort();
    xattrs
}
