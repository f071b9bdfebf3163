//! Image layouts in directories.

use std::fs;
use std::path::PathBuf;

use super::round::round_trip;
use crate::support::{Need, Place, TASK, User, lacks, rounds};

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

#[test]
fn a_pushed_task_comes_back_as_it_was() {
    let Some((place, remote)) = published() else { return };
    for compression in ["zstd", "gzip"] {
        round_trip(&place, &format!("{remote}-{compression}"), compression, &|user| Some(Place::new(user)));
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
    for (number, blob) in blobs(&place).into_iter().enumerate() {
        let good = fs::read(&blob).expect("a blob");
        // The beginning, the middle or the end; all of them at length.
        let places = [0, good.len() / 2, good.len() - 1];
        for at in places.into_iter().cycle().skip(number).take(rounds(1, 3)) {
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

#[test]
fn what_names_no_repository_or_tag_is_refused_before_anything_is_made() {
    let Some((place, remote)) = published() else { return };
    for to in ["localhost:5000", "registry"] {
        let refused = place.run(&["push", TASK, "--to", to]);
        assert!(refused.status == 2 && refused.stderr.contains("names no repository"), "{}", refused.stderr);
    }
    for tag in ["a b", "", "../x", "sha256:00", "-x"] {
        let refused = place.run(&["push", TASK, "--to", &remote, &format!("--tag={tag}")]);
        assert!(
            refused.status == 2 && refused.stderr.contains("cannot be a tag"),
            "{tag}: {}",
            refused.stderr
        );
    }
    assert!(!place.path("layout").exists());
}

/// What a disk does to files whose names and sizes stay: the next push mends it, and says what it found.
#[test]
fn what_is_damaged_is_published_anew() {
    let Some((place, remote)) = published() else { return };
    place.ok(&["push", TASK, "--to", &remote]);
    for blob in blobs(&place) {
        let mut bad = fs::read(&blob).expect("a blob");
        let at = bad.len() / 2;
        bad[at] ^= 1;
        fs::write(&blob, bad).expect("an own file");
    }
    let refused = Place::new(User::Caller).run(&["pull", TASK, "--from", &remote]);
    assert!(refused.status == 1 && refused.stderr.contains("publish it anew"), "{}", refused.stderr);
    let pushed = place.run(&["push", TASK, "--to", &remote]);
    assert!(pushed.status == 0 && pushed.stderr.contains("hash to something else"), "{}", pushed.stderr);
    for text in ["", "{}", "["] {
        fs::write(place.path("layout/index.json"), text).expect("an own file");
        let pushed = place.run(&["push", TASK, "--to", &remote]);
        assert!(pushed.status == 0 && pushed.stderr.contains("index.json.damaged"), "{}", pushed.stderr);
        let kept = fs::read_to_string(place.path("layout/index.json.damaged")).expect("the damaged list");
        assert_eq!(kept, text);
        let again = place.run(&["push", TASK, "--to", &remote]);
        assert!(again.stderr.contains("nothing to do"), "{}", again.stderr);
        assert!(!again.stderr.contains("damaged"), "{}", again.stderr);
    }
    let other = Place::new(User::Caller);
    other.ok(&["pull", TASK, "--from", &remote, "--trust"]);
    other.ok(&["--offline", "build", TASK, "--require-hit"]);
    other.assert_whole();
}

#[test]
fn what_killed_pushes_left_goes_when_nobody_is_writing() {
    let Some((place, remote)) = published() else { return };
    place.ok(&["push", "demo/two", "--to", &remote]);
    let left = place.path("layout/.infradev-0123456789abcdef");
    fs::write(&left, "half a blob").expect("an own file");
    // As one who writes does.
    let mut writer = place.tool("flock");
    writer.args(["--shared", "layout/writers.lock", "sh", "-c", "echo locked; read line"]);
    let mut writer = writer
        .current_dir(place.path(""))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("util-linux is there");
    let mut line = [0; 7];
    std::io::Read::read_exact(writer.stdout.as_mut().expect("piped"), &mut line).expect("it is locked");
    place.ok(&["push", TASK, "--to", &remote]);
    assert!(left.exists(), "it may be that writer's");
    drop(writer.stdin.take());
    writer.wait().expect("it ends");
    place.ok(&["push", TASK, "--to", &remote]);
    assert!(!left.exists());
}
