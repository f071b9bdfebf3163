//! What these tests stand on: a store, mounts that are attached nowhere, trees on disk, chance with a seed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use infradev_layers::{Content, Entry, Kind, Metadata, Owners, ScanOptions, Scanned, Tree, TreePath, scan};
use infradev_store::{Access, Ingest, LayerId, ObjectId, Store};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};
use tempfile::TempDir;

use crate::support::{Need, lacks, work_directory};

/// A store in a directory of its own.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) store: Store,
    root: TempDir,
}

impl Ground {
    pub(super) fn new() -> Self {
        let root = tempfile::Builder::new()
            .prefix("infradev-it.")
            .tempdir_in(work_directory())
            .expect("a directory");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("an own directory");
        let store = Store::open(&root.path().join("store"), Access::Write).expect("a new store");
        Self { store, root }
    }

    pub(super) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.path().join(below)
    }

    /// A new directory.
    pub(super) fn directory(&self, below: impl AsRef<Path>) -> PathBuf {
        let path = self.path(below);
        fs::create_dir_all(&path).expect("an own directory");
        path
    }

    /// A new directory that is removed when it is dropped.
    pub(super) fn fresh(&self) -> TempDir {
        tempfile::tempdir_in(self.root.path()).expect("an own directory")
    }

    /// Hands `fill` a batch that is thrown away: trees hold hashes, and most tests need no more.
    pub(super) fn dry<T>(&self, fill: impl FnOnce(&Ingest<'_>) -> T) -> T {
        let lease = self.store.lease("test").expect("an own store");
        fill(&self.store.ingest(&lease).expect("an own store"))
    }

    /// Hands `fill` a batch, and makes its tree a layer.
    pub(super) fn keep(&self, fill: impl FnOnce(&Ingest<'_>) -> Tree) -> (Tree, LayerId) {
        let lease = self.store.lease("test").expect("an own store");
        let ingest = self.store.ingest(&lease).expect("an own store");
        let tree = fill(&ingest);
        let layer = ingest.put_layer(&tree.encode()).expect("an own store");
        ingest.commit().expect("an own store");
        (tree, layer)
    }

    /// Scans a directory, or the upper of an overlay whose lower tree is given.
    #[track_caller]
    pub(super) fn scan(&self, directory: &Path, upper_of: Option<&Tree>) -> Scanned {
        self.dry(|ingest| read(directory, upper_of, ingest))
    }

    /// The bytes of an object that was kept.
    pub(super) fn object(&self, object: ObjectId) -> Vec<u8> {
        fs::read(self.store.layout().object(&object)).expect("an object of the store")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _left_for_the_system = infradev_store::remove_tree(self.root.path());
    }
}

#[track_caller]
pub(super) fn read(directory: &Path, upper_of: Option<&Tree>, ingest: &Ingest<'_>) -> Scanned {
    let options = ScanOptions { owners: Owners::Keep, latest: i64::MAX, upper_of, copy_of: None };
    scan(directory, options, ingest).unwrap_or_else(|error| panic!("{}: {error:?}", directory.display()))
}

/// Whether there are no mounts to be had here; says so.
pub(super) fn lacks_mounts() -> bool {
    if lacks(Need::Root) {
        return true;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let old = (numbers.next(), numbers.next()) < (Some(6), Some(8));
    if old {
        skipped(&format!("overlays of many lower directories need Linux 6.8, this is {release}"));
    }
    old
}

/// Says why a test, or its rest, is skipped.
#[expect(clippy::print_stderr, reason = "a skipped test proves nothing")]
pub(super) fn skipped(why: &str) {
    eprintln!("skipped: {}: {why}", std::thread::current().name().unwrap_or("a test"));
}

/// A mount that is attached nowhere, so that nothing is left behind.
#[derive(Debug)]
pub(super) struct Mount(OwnedFd);

impl Mount {
    /// Mounts with options as (key, value); one without a value is a flag.
    pub(super) fn new(kind: &str, options: &[(&str, &str)]) -> rustix::io::Result<Self> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for &(key, value) in options {
            match value {
                "" => fsconfig_set_flag(context.as_fd(), key)?,
                value => fsconfig_set_string(context.as_fd(), key, value)?,
            }
        }
        fsconfig_create(context.as_fd())?;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map(Self)
    }

    /// An overlay of `lowers`, the lowest first as in [`infradev_layers::merge`].
    #[track_caller]
    pub(super) fn overlay(lowers: &[PathBuf], options: &[(&str, &str)]) -> Self {
        let lowers = lowers.iter().rev().map(|lower| ("lowerdir+", text(lower)));
        let options: Vec<_> = lowers.chain(options.iter().copied()).collect();
        Self::new("overlay", &options).unwrap_or_else(|error| panic!("{options:?}: {error}"))
    }

    /// Where it can be entered, also by children of this process.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}/.", std::process::id(), self.0.as_raw_fd()))
    }
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().expect("the directories of the tests have plain names")
}

/// Runs a shell line in `directory`, which must succeed.
#[track_caller]
pub(super) fn sh(directory: &Path, line: &str) -> String {
    let output =
        Command::new("sh").args(["-euc", line]).current_dir(directory).output().expect("a shell runs");
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a comparison of trees leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum But {
    Nothing,
    /// The times of directories.
    DirectoryTimes,
    /// Those, and which names are links of each other.
    DirectoryTimesAndLinks,
}

/// What a merged tree shows below its root.
pub(super) fn shown(tree: &Tree, but: But) -> BTreeMap<TreePath, Kind> {
    let show = |entry: &Entry| {
        let kind = match &entry.kind {
            Kind::Directory { metadata, opaque: false } => {
                let mtime = if but == But::Nothing { metadata.mtime } else { 0 };
                Kind::Directory { metadata: Metadata { mtime, ..metadata.clone() }, opaque: false }
            }
            Kind::Hardlink { first } if but == But::DirectoryTimesAndLinks => {
                tree.get(first).expect("a tree has no dangling hardlinks").clone()
            }
            other => other.clone(),
        };
        (entry.path.clone(), kind)
    };
    tree.entries().iter().skip(1).map(show).collect()
}

/// Asserts that two listings are equal; shows only where they are not.
#[track_caller]
pub(super) fn assert_same<K: Ord + Debug, V: PartialEq + Debug>(
    what: &str,
    found: &BTreeMap<K, V>,
    expected: &BTreeMap<K, V>,
) {
    let mut differences = String::new();
    for key in found.keys().chain(expected.keys().filter(|key| !found.contains_key(key))) {
        let (found, expected) = (found.get(key), expected.get(key));
        if found != expected {
            differences += &format!("{key:?}\n  found    {found:?}\n  expected {expected:?}\n");
        }
    }
    assert!(differences.is_empty(), "{what}:\n{differences}");
}

/// Writes a tree into the empty directory `out`: a merged one as plain files, a layer as overlayfs has it.
pub(super) fn write(tree: &Tree, out: &Path, content: impl Fn(ObjectId) -> Vec<u8>) {
    let at = |path: &TreePath| out.join(path.as_path());
    for entry in tree.entries() {
        let path = at(&entry.path);
        match &entry.kind {
            _ if entry.path.is_root() => {}
            Kind::Directory { opaque, .. } => {
                fs::create_dir(&path).expect("an own directory");
                if *opaque {
                    set_xattr(&path, b"trusted.overlay.opaque", b"y");
                }
            }
            Kind::ImpliedDirectory => fs::create_dir(&path).expect("an own directory"),
            Kind::File { content: Content::Empty, .. } => fs::write(&path, "").expect("an own file"),
            Kind::File { content: Content::Object(object, _), .. } => {
                fs::write(&path, content(*object)).expect("an own file");
            }
            Kind::Symlink { target, .. } => {
                rustix::fs::symlink(&**target, &path).expect("an own link");
            }
            Kind::Hardlink { first } => fs::hard_link(at(first), &path).expect("an own link"),
            Kind::Whiteout => {
                rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0)
                    .expect("a whiteout");
            }
        }
    }
    for entry in tree.entries().iter().rev().filter(|entry| !entry.path.is_root()) {
        if let Some(metadata) = entry.kind.metadata() {
            describe(&at(&entry.path), &entry.kind, metadata);
        }
    }
}

fn describe(path: &Path, kind: &Kind, metadata: &Metadata) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(metadata.uid), Some(metadata.gid)).expect("an own file");
    }
    if !matches!(kind, Kind::Symlink { .. }) {
        metadata.xattrs.iter().for_each(|(name, value)| set_xattr(path, name, value));
        let permissions = fs::Permissions::from_mode(metadata.mode.into());
        fs::set_permissions(path, permissions).expect("an own file");
    }
    let time = Timespec { tv_sec: metadata.mtime, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("an own file");
}

pub(super) fn set_xattr(path: &Path, name: &[u8], value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).expect("an own file");
}

/// Numbers that look like chance and are the same in every run (splitmix64).
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: usize) -> Self {
        Self(seed as u64)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    pub(super) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// Fills a directory with one of everything that a layer can hold, all with old times.
pub(super) fn fill(directory: &Path) {
    sh(
        directory,
        r#"umask 022
        mkdir -p bare closed/deep wide sticky listed
        echo plain >plain; : >empty; printf 'no newline' >closed/deep/file
        cp plain wide/same; cp plain sticky/same
        head -c 3000000 /dev/zero | tr '\0' x >large; truncate -s 70000 sparse
        printf '#!/bin/sh\n' >script
        ln -s plain link; ln -s ../nowhere closed/dangling; ln -s "$(printf '%01000d' 7)" far
        ln plain wide/linked; ln plain 'a name'; ln empty also-empty
        for n in $(seq 300); do echo $n >listed/$n; done
        echo odd >"$(printf 'caf\351')"; mkdir "$(printf '\377\376')"; echo odd >"$(printf '\377\376/new\nline')"
        echo long >"$(printf '%0255d' 7)"
        touch -- -dash '..two' ' '
        chmod 755 script; chmod 600 closed/deep/file; chmod 000 sparse; chmod 444 large
        "#,
    );
    for (path, name, value) in [
        ("plain", "user.one", &b"1"[..]),
        ("plain", "user.empty", b""),
        ("wide", "user.bytes", b"\0\xff"),
        ("closed/deep/file", "user.long.name.of.an.attribute", &[7; 300]),
    ] {
        set_xattr(&directory.join(path), name.as_bytes(), value);
    }
    sh(
        directory,
        r#"chmod 700 closed; chmod 555 closed/deep; chmod 1777 sticky
        find . -mindepth 1 -depth -exec touch -h -d @1234567890 {} +
        touch -h -d @86400 link plain closed; touch -d @1700000001 large wide
        "#,
    );
}
