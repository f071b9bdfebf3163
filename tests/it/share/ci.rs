//! Jobs of a pipeline: what one has built, another need not build.

use std::fs;

use serde_json::Value;

use crate::support::{Need, Place, TASK, User, lacks};

/// A place that has built a task, and a place for its steps.
fn built() -> Option<(Place, String)> {
    if lacks(Need::Sandbox) {
        return None;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    let remote = format!("dir:{}", place.path("cache").display());
    Some((place, remote))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn a_second_job_restores_what_the_first_built() {
    let Some((first, remote)) = built() else { return };
    let saved = first.run(&["ci", "save", TASK, "--to", &remote, "--all"]);
    assert!(saved.status == 0 && saved.stderr.contains("6 steps saved"), "{}", saved.stderr);
    let again = json(&first.ok(&["--json", "ci", "save", TASK, "--to", &remote, "--all"]));
    assert!(again["present"] == 6 && again["uploaded_bytes"] == 0, "{again}");
    let second = Place::new(User::Caller);
    let summary = second.path("summary.md");
    let mut command = second.command(&["ci", "restore", TASK, "--from", &remote, "--trust", "--require-hit"]);
    let restored = second.finish(command.env("GITHUB_STEP_SUMMARY", &summary));
    assert!(restored.status == 0 && restored.stderr.contains("6 of 6 steps restored"), "{}", restored.stderr);
    assert!(fs::read_to_string(summary).expect("a summary").contains("6 of 6 steps restored"));
    let hits = second.run(&["--offline", "build", TASK, "--require-hit"]);
    assert!(hits.stderr.contains("nothing to do: 6 steps found"), "{}", hits.stderr);
    assert_eq!(second.sh("tool"), "tool ran\n");
    let nothing = json(&second.ok(&["--json", "ci", "restore", TASK, "--from", &remote, "--trust"]));
    assert!(nothing["here"] == 6 && nothing["fetched_bytes"] == 0, "{nothing}");
    second.assert_whole();
}

#[test]
fn cheap_steps_are_built_again_and_dear_ones_above_them_found() {
    let Some((first, remote)) = built() else { return };
    let saved = json(&first.ok(&["--json", "ci", "save", TASK, "--to", &remote, "--min-gain", "1e9"]));
    assert!(saved["cheap"] == 6 && saved["saved"] == 0, "{saved}");
    let second = Place::new(User::Caller);
    let restored = json(&second.ok(&["--json", "ci", "restore", TASK, "--from", &remote, "--trust"]));
    // The build step's key follows from the source tree, whose name alone is known.
    assert!(restored["restored"] == 0 && restored["cheap"].as_u64() >= Some(5), "{restored}");
    let miss = second.run(&["ci", "restore", TASK, "--from", &remote, "--trust", "--require-hit"]);
    assert_eq!(miss.status, 4, "{}", miss.stderr);
    second.ok(&["build", TASK]);
    assert_eq!(second.sh("tool"), "tool ran\n");
    // A later job with a lower bar adds the layers.
    first.ok(&["ci", "save", TASK, "--to", &remote, "--all"]);
    let third = Place::new(User::Caller);
    third.ok(&["ci", "restore", TASK, "--from", &remote, "--trust", "--require-hit"]);
    third.assert_whole();
}

#[test]
fn what_vanished_or_was_changed_is_a_miss_or_refused() {
    let Some((first, remote)) = built() else { return };
    first.ok(&["ci", "save", TASK, "--to", &remote, "--all"]);
    let blobs: Vec<_> = fs::read_dir(first.path("cache/blobs/sha256"))
        .expect("blobs")
        .flatten()
        .map(|blob| blob.path())
        .collect();
    let largest =
        blobs.iter().max_by_key(|blob| blob.metadata().map_or(0, |found| found.len())).expect("a blob");
    let good = fs::read(largest).expect("a blob");
    fs::remove_file(largest).expect("an own file");
    let second = Place::new(User::Caller);
    let restored = second.run(&["--json", "ci", "restore", TASK, "--from", &remote, "--trust"]);
    assert!(restored.status == 0 && restored.stderr.contains("left to build"), "{}", restored.stderr);
    let report = json(&restored.stdout);
    assert!(report["missing"].as_u64() >= Some(1) && report["restored"].as_u64() >= Some(1), "{report}");
    second.ok(&["build", TASK]);
    second.assert_whole();
    let mut bad = good.clone();
    let at = bad.len() - 20;
    bad[at] ^= 1;
    fs::write(largest, bad).expect("an own file");
    let third = Place::new(User::Caller);
    let refused = third.run(&["ci", "restore", TASK, "--from", &remote, "--trust"]);
    assert_eq!(refused.status, 1, "{}", refused.stderr);
    third.assert_whole();
}

#[test]
fn steps_that_no_task_needs_are_pruned() {
    let Some((place, remote)) = built() else { return };
    place.ok(&["build", "demo/two"]);
    place.ok(&["ci", "save", "all", "--to", &remote, "--all"]);
    let dry = place.ok(&["prune", TASK, "--remote", &remote, "--dry-run"]);
    assert!(dry.contains("would remove step-") && dry.contains("kept 6 steps"), "{dry}");
    assert!(place.ok(&["prune", "all", "--remote", &remote]).starts_with("kept 7 steps"));
    place.ok(&["prune", TASK, "--remote", &remote]);
    let left = json(&place.ok(&["--json", "ci", "save", "all", "--to", &remote, "--all"]));
    assert!(left["saved"] == 1 && left["present"] == 6, "{left}");
    let other = Place::new(User::Caller);
    let refused = other.run(&["prune", TASK, "--remote", &remote]);
    assert!(refused.status == 4 && refused.stderr.contains("not in the store"), "{}", refused.stderr);
}

#[test]
fn jobs_of_strangers_save_nothing_and_only_the_trusted_are_believed() {
    let Some((first, remote)) = built() else { return };
    let saved = first.run(&["ci", "save", TASK, "--to", &remote, "--read-only"]);
    assert!(
        saved.status == 0 && saved.stderr.contains("read-only: none of 6 steps saved"),
        "{}",
        saved.stderr
    );
    assert!(!first.path("cache").exists());
    let refused = first.run(&["ci", "restore", TASK, "--from", &remote]);
    assert!(refused.status == 2 && refused.stderr.contains("is not trusted"), "{}", refused.stderr);
}
