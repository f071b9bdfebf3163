//! Stub trees on disk, and their pool.

#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::*;
use crate::entry::Kind;
use crate::erofs::kernel_tests::{real_directory, write_objects};
use crate::erofs::tests::{awkward, described};
use crate::erofs::walk::{assert_same, expected, walk};
use crate::merge::merge;
use crate::testing::{file, path, tree};

/// Number and links.
fn inode(root: &Path, name: &str) -> (u64, u64) {
    let found = fs::symlink_metadata(root.join(name)).unwrap();
    (found.ino(), found.nlink())
}

#[test]
fn trees_share_stubs_and_a_tree_never_uses_one_twice() {
    let directory = real_directory();
    let (pool, one, two) =
        (directory.path().join("p"), directory.path().join("1"), directory.path().join("2"));
    let entries = [("a", file(b"same")), ("b", file(b"same")), ("d/c", file(b"same")), ("e", file(b""))];
    let first = write_stubs(&merge([&tree(entries.clone())]), &pool, &one).unwrap();
    assert_eq!(first, CheckoutStats { directories: 2, linked: 0, made: 3, others: 1, copied: 0 });
    let second = write_stubs(&merge([&tree(entries)]), &pool, &two).unwrap();
    assert_eq!(second, CheckoutStats { directories: 2, linked: 3, made: 0, others: 1, copied: 0 });
    let inodes = |root| ["a", "b", "d/c"].map(|name| inode(root, name));
    assert_eq!(inodes(&one), inodes(&two));
    assert_eq!(inodes(&one).iter().collect::<HashSet<_>>().len(), 3);
    assert!(inodes(&one).iter().all(|&(_, links)| links == 3), "two trees and the pool");
}

#[test]
fn hardlinked_files_share_a_stub_that_no_other_tree_has() {
    let directory = real_directory();
    let (pool, one, two) =
        (directory.path().join("p"), directory.path().join("1"), directory.path().join("2"));
    let linked = merge([&tree([
        ("a", file(b"same")),
        ("b", Kind::Hardlink { first: path("a") }),
        ("c", file(b"same")),
    ])]);
    for out in [&one, &two] {
        write_stubs(&linked, &pool, out).unwrap();
    }
    assert_eq!(inode(&one, "a"), inode(&one, "b"));
    assert_ne!(inode(&one, "a").0, inode(&two, "a").0);
    assert_eq!((inode(&one, "c"), inode(&one, "a").1), (inode(&two, "c"), 2));
}

#[test]
fn trees_may_be_written_to_one_pool_at_once() {
    let directory = real_directory();
    let many = awkward();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (root, many) = (directory.path(), &many);
            scope.spawn(move || write_stubs(many, &root.join("p"), &root.join(number.to_string())).unwrap());
        }
    });
    let last = write_stubs(&many, &directory.path().join("p"), &directory.path().join("last")).unwrap();
    assert_eq!(last.made, 1, "only the hardlinked file is not from the pool");
    remove(&directory);
}

/// Removes what its owner may not enter.
fn remove(directory: &tempfile::TempDir) {
    let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(directory.path()).output();
}

#[test]
fn a_stub_without_a_link_to_spare_is_replaced() {
    let directory = real_directory();
    let (pool, sub) = (directory.path().join("p"), directory.path().join("links"));
    let small = merge([&tree([("a", file(b"x"))])]);
    write_stubs(&small, &pool, &directory.path().join("0")).unwrap();
    fs::create_dir(&sub).unwrap();
    let refused =
        (0..70_000).find(|n| fs::hard_link(directory.path().join("0/a"), sub.join(n.to_string())).is_err());
    if refused.is_none() {
        eprintln!("skipped: this file system has no limit of links");
        return;
    }
    for (out, expected) in [("1", (0, 1)), ("2", (1, 0))] {
        let stats = write_stubs(&small, &pool, &directory.path().join(out)).unwrap();
        assert_eq!((stats.linked, stats.made), expected, "tree {out}");
    }
    assert_eq!(inode(directory.path(), "1/a"), inode(directory.path(), "2/a"));
    assert_eq!(fs::read_dir(&pool).unwrap().count(), 1, "no temporary name stays");
}

#[test]
fn refuses_layers_and_taken_places() {
    let directory = real_directory();
    let (pool, out) = (directory.path().join("p"), directory.path().join("o"));
    let layer = described([]);
    write_stubs(&layer, &pool, &out).unwrap();
    assert!(matches!(write_stubs(&layer, &pool, &out), Err(CheckoutError::Open { .. })));
    let layer = tree([("a", Kind::Whiteout)]);
    assert!(matches!(write_stubs(&layer, &pool, &out), Err(CheckoutError::NotMerged { .. })));
}

/// Run by the next test within a user namespace, where the mount is.
#[test]
fn walks_for_another_test() {
    if let Some(root) = std::env::var_os("INFRADEV_TEST_WALK") {
        let root = Path::new(&root);
        let lines = walk(&root.join("merged"));
        let grown = root.join("merged/plain");
        fs::write(&grown, [fs::read(&grown).unwrap(), b"!".to_vec()].concat()).unwrap();
        fs::remove_dir_all(root.join("merged/many")).unwrap();
        assert_eq!(fs::read(&grown).unwrap(), b"plain content!");
        fs::write(root.join("lines"), lines.join("\u{1}")).unwrap();
    }
}

#[test]
fn privileged_a_user_namespace_shows_the_tree() {
    let (tree, directory) = (awkward(), real_directory());
    let root = directory.path();
    write_objects(&root.join("objects"));
    for turn in ["first", "second"] {
        let stubs = root.join(turn);
        write_stubs(&tree, &root.join("pool"), &stubs).unwrap();
        for name in ["upper", "work"] {
            fs::create_dir(root.join(turn.to_owned() + name)).unwrap();
        }
    }
    for turn in ["first", "second"] {
        let script = format!(
            "cd {} && rm -rf merged lines && mkdir merged && mount -t overlay -o \
             userxattr,lowerdir={turn}::objects,upperdir={turn}upper,workdir={turn}work stubs merged || exit 9\n\
             INFRADEV_TEST_WALK={} exec {} --exact stub::tests::walks_for_another_test",
            root.display(),
            root.display(),
            std::env::current_exe().unwrap().display(),
        );
        // Nine if the mount is refused; no directory if the namespace is.
        let run = Command::new("unshare").args(["-Urm", "sh", "-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
        if run.status.code() == Some(9) || !root.join("merged").exists() {
            eprintln!("skipped: this kernel refuses the namespace or the mount: {said}");
            return;
        }
        assert!(run.status.success(), "{said}");
        let shown = fs::read_to_string(root.join("lines")).unwrap();
        let shown: Vec<String> = shown.split('\u{1}').map(str::to_owned).collect();
        // The root is the upper's own directory.
        assert_same(&shown[1..], &expected(&tree, Some(0))[1..]);
    }
    remove(&directory);
}
