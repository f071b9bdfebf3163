//! Farms on disk: which inode serves which file.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use infradev_store::ObjectId;

use super::*;
use crate::entry::{Content, Kind};
use crate::erofs::kernel_tests::{real_directory, write_objects};
use crate::erofs::tests::awkward;
use crate::erofs::walk::{assert_same, expected, walk};
use crate::merge::merge;
use crate::testing::{path, tree};

/// A store of one object, `content`, and farms of it.
struct Ground {
    directory: tempfile::TempDir,
}

impl Ground {
    fn new() -> Self {
        let ground = Self { directory: real_directory() };
        let object = ground.object();
        fs::create_dir_all(object.parent().unwrap()).unwrap();
        fs::write(&object, "content").unwrap();
        fs::set_permissions(&object, fs::Permissions::from_mode(0o444)).unwrap();
        ground
    }

    fn object(&self) -> PathBuf {
        self.directory.path().join("objects").join(object_name(&ObjectId::of(b"content")))
    }

    fn farm(&self, name: &str, entries: &[(&str, Kind)]) -> CheckoutStats {
        self.farm_within(MOST_LINKS, name, entries)
    }

    /// Where a file may have so many links.
    fn farm_within(&self, most_links: u64, name: &str, entries: &[(&str, Kind)]) -> CheckoutStats {
        let tree = merge([&tree(entries.iter().cloned())]);
        let [objects, pool, out] = ["objects", "pool", name].map(|below| self.directory.path().join(below));
        let links = Links::new(std::slice::from_ref(&objects), &pool, farm_owners(), most_links).unwrap();
        checkout::write(&tree, &links, &out).unwrap()
    }

    /// Number, mode and time.
    fn look(&self, below: &str) -> (u64, u32, i64) {
        let found = fs::symlink_metadata(self.directory.path().join(below)).unwrap();
        (found.ino(), found.mode() & 0o7777, found.mtime())
    }

    fn object_inode(&self) -> u64 {
        fs::metadata(self.object()).unwrap().ino()
    }

    fn findings(&self) -> Vec<String> {
        let (_, findings) = check_farm_pool(&self.directory.path().join("pool")).unwrap();
        findings.into_iter().map(|finding| finding.detail).collect()
    }
}

fn file(mode: u32, mtime: i64) -> Kind {
    let content = Content::Object(ObjectId::of(b"content"), 7);
    Kind::File { metadata: Metadata::new(mode, mtime), content }
}

fn counts(stats: CheckoutStats) -> (u64, u64) {
    (stats.linked, stats.made)
}

#[test]
fn an_object_is_lent_to_one_use_and_copied_for_others() {
    let ground = Ground::new();
    assert_eq!(counts(ground.farm("1", &[("a", file(0o644, 5)), ("b", file(0o755, 5))])), (1, 1));
    let (a, b) = (ground.look("1/a"), ground.look("1/b"));
    assert_eq!([(a.1, a.2), (b.1, b.2)], [(0o644, 5), (0o755, 5)]);
    assert!(a.0 == ground.object_inode() || b.0 == ground.object_inode());
    assert_eq!(counts(ground.farm("2", &[("a", file(0o644, 5)), ("b", file(0o755, 5))])), (2, 0));
    assert_eq!((ground.look("2/a"), ground.look("2/b")), (a, b));
    // Nobody has it any more, so it can be lent anew.
    fs::remove_dir_all(ground.directory.path().join("1")).unwrap();
    fs::remove_dir_all(ground.directory.path().join("2")).unwrap();
    assert_eq!(counts(ground.farm("3", &[("c", file(0o555, 9))])), (1, 0));
    assert_eq!(ground.look("3/c"), (ground.object_inode(), 0o555, 9));
    assert_eq!(ground.findings(), Vec::<String>::new());
}

#[test]
fn an_object_never_becomes_secret_or_writable_by_others() {
    let ground = Ground::new();
    for (number, mode) in [0o600, 0o666, 0o000, 0o664, 0o1755].into_iter().enumerate() {
        let name = number.to_string();
        assert_eq!(counts(ground.farm(&name, &[("a", file(mode, 1))])), (0, 1), "{mode:o}");
        assert_eq!(ground.look(&format!("{name}/a")).1, mode);
    }
    assert_eq!(fs::metadata(ground.object()).unwrap().mode() & 0o7777, 0o444);
}

#[test]
fn one_tree_uses_one_inode_once_but_for_hardlinks() {
    let ground = Ground::new();
    let entries = [("a", file(0o644, 5)), ("b", file(0o644, 5)), ("c", Kind::Hardlink { first: path("b") })];
    assert_eq!(counts(ground.farm("1", &entries)), (1, 1));
    assert_eq!(counts(ground.farm("2", &entries)), (2, 0));
    assert_ne!(ground.look("1/a"), ground.look("1/b"));
    assert_eq!(ground.look("1/b"), ground.look("1/c"));
    assert_eq!(["1/a", "1/b"].map(|name| ground.look(name)), ["2/a", "2/b"].map(|name| ground.look(name)));
}

#[test]
fn a_copy_without_a_link_to_spare_is_replaced() {
    let ground = Ground::new();
    ground.farm("0", &[("a", file(0o600, 5))]);
    let links = ground.directory.path().join("links");
    fs::create_dir(&links).unwrap();
    let first = ground.directory.path().join("0/a");
    let refused = (0..70_000).find(|number| fs::hard_link(&first, links.join(number.to_string())).is_err());
    if refused.is_none() {
        return;
    }
    assert_eq!(counts(ground.farm("1", &[("a", file(0o600, 5))])), (0, 1));
    assert_eq!(counts(ground.farm("2", &[("a", file(0o600, 5))])), (1, 0));
    assert_ne!(ground.look("0/a").0, ground.look("1/a").0);
    assert_eq!(ground.look("1/a"), ground.look("2/a"));
    assert_eq!(ground.findings(), Vec::<String>::new());
}

#[test]
fn an_object_without_a_link_to_spare_is_copied() {
    let ground = Ground::new();
    let farm = |name: &str| counts(ground.farm_within(4, name, &[("a", file(0o644, 5))]));
    // Its own name and three.
    assert_eq!(["1", "2", "3", "4", "5"].map(farm), [(1, 0), (1, 0), (1, 0), (0, 1), (1, 0)]);
    assert_eq!(["1/a", "2/a", "3/a"].map(|name| ground.look(name).0), [ground.object_inode(); 3]);
    assert_eq!(ground.look("4/a"), ground.look("5/a"));
    // Forgotten by its farms, it is lent again.
    fs::remove_dir_all(ground.directory.path().join("2")).unwrap();
    assert_eq!(farm("6"), (1, 0));
    assert_eq!(ground.look("6/a").0, ground.object_inode());
    assert_eq!(ground.findings(), Vec::<String>::new());
}

#[test]
fn every_name_of_a_file_finds_a_link_to_spare() {
    let ground = Ground::new();
    for (mode, number) in [(0o644, 0), (0o600, 10)] {
        let further = Kind::Hardlink { first: path("a") };
        let entries = [("a", file(mode, 5)), ("b", further.clone()), ("c", further)];
        for turn in number..number + 4 {
            let name = turn.to_string();
            ground.farm_within(6, &name, &entries);
            let looks = ["a", "b", "c"].map(|below| ground.look(&format!("{name}/{below}")));
            assert_eq!(looks, [(looks[0].0, mode, 5); 3]);
            let links = fs::metadata(ground.directory.path().join(&name).join("a")).unwrap().nlink();
            assert!(links <= 6, "{links} links of {name}");
        }
    }
    assert_eq!(ground.findings(), Vec::<String>::new());
}

#[test]
fn a_wrong_copy_is_found() {
    let ground = Ground::new();
    ground.farm("1", &[("a", file(0o600, 5))]);
    let copy = ground.directory.path().join("1/a");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(ground.findings(), ["its mode, owner, time or attributes are not those of its name"]);
    fs::write(&copy, "c0ntent").unwrap();
    assert!(ground.findings()[0].starts_with("its bytes hash to "));
}

#[test]
fn a_damaged_object_is_not_multiplied() {
    let ground = Ground::new();
    fs::remove_file(ground.object()).unwrap();
    fs::write(ground.object(), "short").unwrap();
    let tree = merge([&tree([("a", file(0o644, 5))])]);
    let [objects, pool, out] = ["objects", "pool", "1"].map(|below| ground.directory.path().join(below));
    assert!(write_farm(&tree, std::slice::from_ref(&objects), &pool, farm_owners(), &out).is_err());
}

#[test]
fn a_farm_is_the_tree() {
    let (tree, directory) = (awkward(), real_directory());
    let root = directory.path();
    write_objects(&root.join("objects"));
    let mut inodes = vec![];
    for turn in ["first", "second"] {
        let out = root.join(turn);
        write_farm(&tree, &[root.join("objects")], &root.join("pool"), farm_owners(), &out).unwrap();
        let owner = Some(rustix::process::geteuid().as_raw()).filter(|&uid| uid != 0);
        assert_same(&walk(&out), &expected(&tree, owner));
        inodes.push(fs::metadata(out.join("plain")).unwrap().ino());
    }
    assert_eq!(inodes[0], inodes[1]);
    let (copies, findings) = check_farm_pool(&root.join("pool")).unwrap();
    assert!(copies > 0 && findings.is_empty(), "{copies} {findings:?}");
    let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(root).output();
}
