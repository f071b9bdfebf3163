//! Shared stores: somebody else's, read in place, below a store of one's own.

use std::fs;
use std::path::Path;

use crate::support::{Finished, Need, Place, TASK, User, is_root, lacks};

/// A store of one user, and another user who works over it.
struct Cluster {
    owner: Place,
    node: Place,
}

impl Cluster {
    /// Makes the two; the owner has built both tasks. `None` if this machine cannot.
    fn new(user: User) -> Option<Self> {
        let needs: &[Need] = match user {
            User::Caller => &[Need::Sandbox],
            User::Ordinary => &[Need::Sandbox, Need::UserNamespaces],
        };
        if needs.iter().any(|need| lacks(*need)) {
            return None;
        }
        let owner = Place::new(User::Caller);
        owner.ok(&["build", "all"]);
        Some(Self { owner, node: Place::new(user) })
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let mut command = self.node.command(&["--store-ro", &self.owner.store().display().to_string()]);
        self.node.finish(command.args(arguments))
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let finished = self.run(arguments);
        assert_eq!(finished.status, 0, "{arguments:?} failed:\n{}{}", finished.stdout, finished.stderr);
        finished.stdout
    }

    /// Names, content and owners of everything in the shared store.
    fn shared(&self) -> Vec<(String, Vec<u8>)> {
        self.owner.contents()
    }
}

const USE: &str = "python -c 'import demo, tinypkg; print(demo.VALUE)' && tool && echo more >>demo/__init__.py \
    && chmod 700 native/out.so && cat native/out.so";
const USED: &str = "1\ntool ran\nnative input\nin.txt\nout.so\n";

#[test]
fn privileged_a_shared_store_is_used_in_place_and_never_written() {
    for user in [User::Caller, User::Ordinary] {
        let Some(cluster) = Cluster::new(user) else { return };
        let before = cluster.shared();
        assert!(cluster.ok(&["ls"]).contains("built"), "its tasks are known before there is an own store");
        let again = cluster.run(&["--offline", "build", "all", "--require-hit"]);
        assert!(again.stderr.contains("nothing to do"), "{}", again.stderr);
        assert_eq!(cluster.node.listing("layers"), Vec::<String>::new(), "nothing was copied");
        for back_end in ["erofs", "stub", "farm", "copy"] {
            if back_end == "erofs" && (user == User::Ordinary || !is_root()) {
                continue;
            }
            let ran = cluster.run(&["--back-end", back_end, "env", "exec", TASK, "--", "sh", "-c", USE]);
            if ran.status == 125 && ran.stderr.contains("does not work here") {
                continue;
            }
            assert_eq!((ran.status, ran.stdout.as_str()), (0, USED), "{back_end}: {}", ran.stderr);
        }
        // An environment of one's own, through collections.
        cluster.ok(&["env", "mount", TASK, "--name", "mine"]);
        cluster.ok(&["env", "exec", "mine", "--", "sh", "-c", USE]);
        let gc = cluster.run(&["gc"]);
        assert_eq!(gc.status, 0, "{}", gc.stderr);
        let kept = cluster.ok(&["env", "exec", "mine", "--", "tail", "-n", "1", "demo/__init__.py"]);
        assert_eq!(kept, "more\n");
        assert!(cluster.ok(&["env", "diff", "mine"]).contains("M /workspace/demo/demo/__init__.py"));
        assert_eq!(cluster.run(&["verify", "--read-data"]).status, 0);
        // Without the shared store nothing of it can be judged, so nothing is removed.
        let blind = cluster.node.run(&["gc", "--all"]);
        assert_refused(&blind, 3, "nor in a shared store that was named");
        cluster.ok(&["env", "rm", "mine"]);
        assert_eq!(cluster.shared(), before);
        cluster.owner.assert_whole();
    }
}

#[test]
fn what_is_built_over_a_shared_store_is_ones_own() {
    let Some(cluster) = Cluster::new(User::Ordinary) else { return };
    cluster.node.edit("demo/project.toml", "a note", "another note");
    let built = cluster.run(&["build", TASK]);
    assert!(built.stderr.contains("1 step built"), "{}", built.stderr);
    assert_eq!(cluster.node.listing("layers").len(), 1);
    let note = ["env", "exec", TASK, "--", "cat", "/opt/env/share/demo/note"];
    assert_eq!(cluster.ok(&note), "another note\n");
    assert_eq!(cluster.owner.ok(&note), "a note\n");
    // The own layer, and what it is a layer of, survive a collection; removed, the shared task is seen again.
    cluster.ok(&["gc"]);
    assert_eq!(cluster.ok(&note), "another note\n");
    assert_eq!(cluster.run(&["verify", "--read-data"]).status, 0);
    cluster.ok(&["rm", TASK]);
    cluster.ok(&["gc", "--all"]);
    assert_eq!(cluster.node.listing("layers"), Vec::<String>::new());
    cluster.node.edit("demo/project.toml", "another note", "a note");
    assert_eq!(cluster.ok(&note), "a note\n");
}

#[test]
fn privileged_packed_content_of_a_shared_store_becomes_plain_here() {
    for user in [User::Caller, User::Ordinary] {
        let Some(cluster) = Cluster::new(user) else { return };
        let large = cluster.owner.path("large");
        fs::create_dir(&large).expect("an own directory");
        fs::write(large.join("file"), vec![7; 1 << 20]).expect("an own file");
        cluster.owner.ok(&["layer", "import", &large.display().to_string(), "--pin", "large"]);
        cluster.owner.edit(
            "demo/project.toml",
            "cat native/*.txt >",
            "head -c 300000 /dev/zero | cat native/*.txt - >",
        );
        cluster.node.edit(
            "demo/project.toml",
            "cat native/*.txt >",
            "head -c 300000 /dev/zero | cat native/*.txt - >",
        );
        cluster.owner.ok(&["build", TASK]);
        cluster.owner.ok(&["gc", "--compress"]);
        assert_ne!(cluster.owner.listing("packs").len(), 0);
        let before = cluster.shared();
        for back_end in ["erofs", "stub", "farm", "copy"] {
            if back_end == "erofs" && (user == User::Ordinary || !is_root()) {
                continue;
            }
            let count =
                ["--back-end", back_end, "env", "exec", TASK, "--", "sh", "-c", "wc -c <native/out.so"];
            assert_eq!(cluster.ok(&count), "300027\n", "{back_end}");
        }
        cluster.ok(&["env", "mount", TASK, "--name", "mine"]);
        cluster.ok(&["gc", "--all"]);
        let count = ["env", "exec", "mine", "--", "sh", "-c", "wc -c <native/out.so"];
        assert_eq!(cluster.ok(&count), "300027\n", "a collection keeps what was copied for an environment");
        cluster.ok(&["env", "rm", "mine"]);
        assert_eq!(cluster.shared(), before);
    }
}

#[test]
fn a_shared_store_that_cannot_be_used_is_named() {
    let place = Place::new(User::Caller);
    let with = |path: &Path| place.run(&["--store-ro", &path.display().to_string(), "ls"]);
    assert_refused(&with(&place.path("absent")), 2, "the shared store cannot be used");
    fs::create_dir(place.path("other")).expect("an own directory");
    assert_refused(&with(&place.path("other")), 2, "the shared store cannot be used");
    fs::write(place.path("other/format"), "infradev store 99\n").expect("an own file");
    assert_refused(&with(&place.path("other")), 2, "99");
    place.ok(&["gc", "--all"]);
    assert_refused(&with(&place.store()), 2, "is the store itself");
}

#[track_caller]
fn assert_refused(finished: &Finished, status: i32, said: &str) {
    assert!(finished.status == status && finished.stderr.contains(said), "{finished:?}");
}

/// Locks over a host base belong to a machine; the nodes of a cluster are alike.
#[test]
fn locks_of_the_machine_are_shared_too() {
    let Some(cluster) = Cluster::new(User::Caller) else { return };
    fs::remove_dir_all(cluster.node.path("catalog/demo/locks")).expect("an own directory");
    let miss = cluster.run(&["--offline", "build", TASK, "--require-hit"]);
    assert_ne!(miss.status, 0, "nobody has a lock");
    let machine = cluster.owner.store().join("caches/catalog/demo");
    fs::create_dir_all(&machine).expect("an own directory");
    fs::rename(cluster.owner.path("catalog/demo/locks"), machine.join("locks")).expect("one file system");
    let found = cluster.run(&["--offline", "build", TASK, "--require-hit"]);
    assert!(found.status == 0 && found.stderr.contains("nothing to do"), "{}", found.stderr);
}
