//! Image layouts in directories.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Need, Place, TASK, User, lacks};

/// A place that has built both tasks, and an image layout beside it.
fn published() -> Option<(Place, String)> {
    if lacks(Need::Sandbox) {
        return None;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", "all"]);
    let remote = format!("dir:{}", place.path("layout").display());
    Some((place, remote))
}

/// The blobs of a layout.
fn blobs(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.path("layout/blobs/sha256")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn a_pushed_task_comes_back_as_it_was() {
    let Some((place, remote)) = published() else { return };
    for compression in ["zstd", "gzip"] {
        let remote = format!("{remote}-{compression}");
        let pushed = place.run(&["push", "all", "--to", &remote, "--compression", compression]);
        assert_eq!(pushed.status, 0, "{}", pushed.stderr);
        let again = place.run(&["push", "all", "--to", &remote, "--compression", compression]);
        assert!(again.stderr.contains("demo/one@cpu: nothing to do"), "{}", again.stderr);
        for user in [User::Caller, User::Ordinary] {
            if user == User::Ordinary && lacks(Need::UserNamespaces) {
                continue;
            }
            let other = Place::new(user);
            let pulled = other.run(&["pull", TASK, "--from", &remote, "--trust"]);
            assert_eq!(pulled.status, 0, "{}", pulled.stderr);
            let hits = other.run(&["--offline", "build", TASK, "--require-hit"]);
            assert!(hits.stderr.contains("nothing to do: 6 steps found"), "{}", hits.stderr);
            let run =
                ["env", "exec", TASK, "--", "sh", "-c", "tool; cat native/out.so /opt/env/share/demo/note"];
            assert_eq!(other.ok(&run), place.ok(&run));
            let root = "roots/tasks/demo%2Fone@cpu.json";
            assert_eq!(fs::read(other.store().join(root)).ok(), fs::read(place.store().join(root)).ok());
            other.assert_whole();
            // The second task differs in its source alone.
            let second = json(&other.ok(&["--json", "pull", "demo/two", "--from", &remote, "--trust"]));
            let second = &second["pulled"][0];
            assert_eq!(second["layers"], 1, "{second}");
            assert!(second["fetched_bytes"].as_u64() < Some(40_000), "{second}");
            let nothing = json(&other.ok(&["--json", "pull", "all", "--from", &remote]));
            assert_eq!(nothing["pulled"][0]["layers"], 0, "{nothing}");
            assert_eq!(nothing["pulled"][1]["layers"], 0, "{nothing}");
        }
    }
}

#[test]
fn records_are_taken_from_the_trusted_alone() {
    let Some((place, remote)) = published() else { return };
    place.ok(&["push", TASK, "--to", &remote]);
    let other = Place::new(User::Caller);
    let pulled = other.run(&["pull", TASK, "--from", &remote]);
    assert!(pulled.status == 0 && pulled.stderr.contains("6 action records not taken"), "{}", pulled.stderr);
    assert_eq!(other.sh("tool"), "tool ran\n", "the environment is there");
    let miss = other.run(&["--offline", "build", TASK, "--require-hit"]);
    assert_eq!(miss.status, 4, "{}", miss.stderr);
    fs::write(other.path("infradev.toml"), format!("trust = [\"{remote}\"]\n")).expect("an own file");
    let pulled = other.run(&["pull", TASK, "--from", &remote]);
    assert!(pulled.stderr.contains("6 action records"), "{}", pulled.stderr);
    other.ok(&["--offline", "build", TASK, "--require-hit"]);
    other.assert_whole();
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_nothing_is_kept() {
    let Some((place, remote)) = published() else { return };
    place.ok(&["push", TASK, "--to", &remote]);
    for blob in blobs(&place) {
        let good = fs::read(&blob).expect("a blob");
        for at in [0, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&blob, bad).expect("an own file");
            let other = Place::new(User::Caller);
            let pulled = other.run(&["pull", TASK, "--from", &remote, "--trust"]);
            // Headers between files are not fetched where parts suffice; then the task is right all the same.
            if pulled.status == 0 {
                other.ok(&["--offline", "build", TASK, "--require-hit"]);
            } else {
                assert_eq!(pulled.status, 1, "{}: {}", blob.display(), pulled.stderr);
                assert_eq!(other.listing("roots/tasks"), Vec::<String>::new());
            }
            other.assert_whole();
        }
        fs::write(&blob, good).expect("an own file");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let Some((place, remote)) = published() else { return };
    let absent = place.run(&["pull", TASK, "--from", &remote]);
    assert!(absent.status == 4 && absent.stderr.contains("does not have the image"), "{}", absent.stderr);
    place.ok(&["push", TASK, "--to", &remote]);
    let other = place.run(&["pull", "demo/two", "--from", &remote]);
    assert!(other.status == 4 && other.stderr.contains("`demo-two-cpu`"), "{}", other.stderr);
    let unbuilt = place.run(&["push", "demo/three", "--to", &remote]);
    assert_eq!(unbuilt.status, 4, "{}", unbuilt.stderr);
    let nowhere = place.run(&["push", TASK, "--to", "dir:"]);
    assert_eq!(nowhere.status, 2, "{}", nowhere.stderr);
}
