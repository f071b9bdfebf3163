//! Jobs of a pipeline: what one has built, another need not build.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Finished, Liar, Need, Place, Reply, Shelf, TASK, User, lacks};

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

/// Runs a script of the docs where no namespace can be made and nothing mounted, as in a container.
fn in_a_container(place: &Place, script: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Finished {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ci").join(script);
    // Root of a user namespace that may have no other below it, and no capabilities.
    let confine = "echo 0 >/proc/sys/user/max_user_namespaces || exit 99; exec setpriv --inh-caps=-all --bounding-set=-all -- \"$@\"";
    let mut command = place.tool("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", confine, "sh", "sh"]).arg(script).args(arguments);
    command.env("INFRADEV", place.program()).envs(variables.iter().copied());
    place.finish(&mut command)
}

#[test]
fn the_two_jobs_of_the_guide() {
    if lacks(Need::Sandbox) || lacks(Need::UserNamespaces) {
        return;
    }
    let (first, second) = (Place::new(User::Caller), Place::new(User::Caller));
    let remote = format!("dir:{}", first.path("cache").display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ci/build.sh");
    let mut command = first.tool("sh");
    command.arg(script).env("INFRADEV", first.program()).env("TASKS", TASK).env("REMOTE", &remote);
    let built = first.finish(&mut command);
    assert!(built.status == 0 && built.stderr.contains("6 steps saved"), "{}", built.stderr);
    let python = "import demo, tinypkg; print(demo.VALUE, tinypkg.__file__)";
    let summary_path = second.path("summary.md").display().to_string();
    let variables = [("TASK", TASK), ("REMOTE", &remote), ("GITHUB_STEP_SUMMARY", &summary_path)];
    let used = in_a_container(&second, "use.sh", &variables, &["python", "-c", python]);
    if used.status == 99 {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: this machine does not let a namespace forbid others");
        }
        return;
    }
    assert_eq!(used.status, 0, "{}", used.stderr);
    assert!(used.stdout.starts_with("1 ") && used.stdout.contains("/env/"), "{}", used.stdout);
    let summary = fs::read_to_string(&summary_path).expect("a summary");
    assert!(summary.contains("6 of 6 steps restored") && summary.contains("s of building"), "{summary}");
    second.assert_whole();
    // It is such a container: no namespaces, no mounts.
    let check = "unshare --user true 2>/dev/null && echo namespaces; mount -t tmpfs x /mnt 2>/dev/null && echo mounts; true";
    let confined = in_a_container(&second, "use.sh", &variables, &["sh", "-c", check]);
    assert_eq!((confined.status, confined.stdout.as_str()), (0, ""), "{}", confined.stderr);
}

#[test]
fn steps_that_are_all_cheap_are_built_again() {
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
fn what_vanished_or_is_damaged_is_a_miss_and_is_saved_again() {
    let Some((first, remote)) = built() else { return };
    first.ok(&["ci", "save", TASK, "--to", &remote, "--all"]);
    let blobs: Vec<_> = fs::read_dir(first.path("cache/blobs/sha256"))
        .expect("blobs")
        .flatten()
        .map(|blob| blob.path())
        .collect();
    let largest =
        blobs.iter().max_by_key(|blob| blob.metadata().map_or(0, |found| found.len())).expect("a blob");
    fs::remove_file(largest).expect("an own file");
    let second = Place::new(User::Caller);
    let restored = second.run(&["--json", "ci", "restore", TASK, "--from", &remote, "--trust"]);
    assert!(restored.status == 0 && restored.stderr.contains("left to build"), "{}", restored.stderr);
    let report = json(&restored.stdout);
    assert!(report["missing"].as_u64() >= Some(1) && report["restored"].as_u64() >= Some(1), "{report}");
    second.ok(&["build", TASK]);
    second.assert_whole();
    // The next job that saves brings it back.
    let again = json(&first.ok(&["--json", "ci", "save", TASK, "--to", &remote, "--all"]));
    assert!(again["saved"] == 1 && again["present"] == 5, "{again}");
    let healed = Place::new(User::Caller);
    healed.ok(&["ci", "restore", TASK, "--from", &remote, "--trust", "--require-hit"]);
    // Bits that flip are no more believed than what is gone, in the file of a layer or of a record.
    let mut smallest_first = blobs.clone();
    smallest_first.sort_by_key(|blob| blob.metadata().map_or(0, |found| found.len()));
    let record = smallest_first
        .iter()
        .find(|blob| fs::read_to_string(blob).is_ok_and(|text| text.contains("vnd.infradev.step")));
    for damaged in [largest, record.expect("a manifest")] {
        let mut bad = fs::read(damaged).expect("a blob");
        let at = bad.len() - 20;
        bad[at] ^= 1;
        fs::write(damaged, bad).expect("an own file");
        let third = Place::new(User::Caller);
        let restored = third.run(&["--json", "ci", "restore", TASK, "--from", &remote, "--trust"]);
        let report = json(&restored.stdout);
        assert!(restored.status == 0 && restored.stderr.contains("warning: "), "{}", restored.stderr);
        assert!(report["missing"].as_u64() >= Some(1) && report["restored"].as_u64() >= Some(1), "{report}");
        third.assert_whole();
        let again = json(&first.ok(&["--json", "ci", "save", TASK, "--to", &remote, "--all"]));
        assert!(again["saved"] == 1 && again["present"] == 5, "{again}");
    }
    fs::write(first.path("cache/index.json"), "").expect("an own file");
    let third = Place::new(User::Caller);
    let restored = third.run(&["ci", "restore", TASK, "--from", &remote, "--trust"]);
    assert!(restored.status == 0 && restored.stderr.contains("0 of"), "{}", restored.stderr);
    let saved = first.run(&["ci", "save", TASK, "--to", &remote, "--all"]);
    assert_eq!(saved.stderr.matches("index.json that is wrong").count(), 1, "{}", saved.stderr);
    third.ok(&["ci", "restore", TASK, "--from", &remote, "--trust", "--require-hit"]);
    third.assert_whole();
}

/// Like a token that may only read.
#[test]
fn a_place_that_is_mounted_for_reading_is_no_failure() {
    let Some((first, remote)) = built() else { return };
    if lacks(Need::UserNamespaces) {
        return;
    }
    first.ok(&["ci", "save", TASK, "--to", &remote, "--all"]);
    first.ok(&["build", "demo/two"]);
    let mut command = first.tool("unshare");
    let script = "mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro \"$1\"; shift; exec \"$@\"";
    command.args(["--mount", "--user", "--map-root-user", "sh", "-ec", script, "sh"]);
    command.arg(first.path("cache")).arg(first.program());
    command.args(["ci", "save", "all", "--to", &remote, "--all"]);
    let saved = first.finish(&mut command);
    assert!(saved.status == 0 && saved.stderr.contains("nothing saved"), "{}", saved.stderr);
}

#[test]
fn steps_that_no_task_needs_are_pruned() {
    let Some((place, remote)) = built() else { return };
    place.ok(&["build", "demo/two"]);
    place.ok(&["ci", "save", "all", "--to", &remote, "--all"]);
    let dry = place.ok(&["prune", TASK, "--remote", &remote, "--dry-run"]);
    assert!(dry.contains("would remove step-") && dry.contains("kept 6 steps"), "{dry}");
    assert!(place.ok(&["prune", "all", "--remote", &remote]).starts_with("kept 7 steps"));
    // An image whose tag begins alike is no step.
    place.ok(&["push", TASK, "--to", &remote, "--tag", "step-one"]);
    let count = || fs::read_dir(place.path("cache/blobs/sha256")).expect("blobs").count();
    let before = count();
    let pruned = json(&place.ok(&["--json", "prune", TASK, "--remote", &remote]));
    assert!(pruned["removed"].as_array().is_some_and(|removed| removed.len() == 1), "{pruned}");
    assert!(pruned["freed_bytes"].as_u64() > Some(0) && count() < before, "{pruned}");
    let kept = Place::new(User::Caller);
    kept.ok(&["ci", "restore", TASK, "--from", &remote, "--trust", "--require-hit"]);
    let index = fs::read_to_string(place.path("cache/index.json")).expect("an index");
    assert!(index.contains("\"step-one\""), "{index}");
    let left = json(&place.ok(&["--json", "ci", "save", "all", "--to", &remote, "--all"]));
    assert!(left["saved"] == 1 && left["present"] == 6, "{left}");
    let other = Place::new(User::Caller);
    let refused = other.run(&["prune", TASK, "--remote", &remote]);
    assert!(refused.status == 4 && refused.stderr.contains("lacks 6 steps"), "{}", refused.stderr);
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

/// A token that may only read is found out by the first write, and is no failure.
#[test]
fn a_token_that_may_not_write_saves_nothing_and_says_so() {
    let Some((first, _)) = built() else { return };
    let registry = Liar::honest(Shelf::default());
    first.ok(&["ci", "save", TASK, "--to", &registry.name(), "--all"]);
    registry.twist(|asked, _| {
        let writes = ["POST", "PUT", "PATCH", "DELETE"].contains(&asked.method.as_str());
        let denied = r#"{"errors":[{"code":"DENIED","message":"this token may only read"}]}"#;
        writes.then(|| Reply::new(403).body(denied))
    });
    let second = Place::new(User::Caller);
    second.ok(&["ci", "restore", TASK, "--from", &registry.name(), "--trust", "--require-hit"]);
    second.ok(&["build", "demo/two"]);
    let before = registry.shelf().clone();
    let summary = second.path("summary.md");
    let mut command = second.command(&["--json", "ci", "save", "all", "--to", &registry.name(), "--all"]);
    let saved = second.finish(command.env("GITHUB_STEP_SUMMARY", &summary));
    assert!(
        saved.status == 0 && saved.stderr.contains("may not be written: nothing saved"),
        "{}",
        saved.stderr
    );
    let report = json(&saved.stdout);
    assert!(report["saved"] == 0 && report["uploaded_bytes"] == 0, "{report}");
    assert!(fs::read_to_string(summary).expect("a summary").contains("0 steps saved"));
    let after = registry.shelf().clone();
    assert_eq!((before.blobs, before.manifests), (after.blobs, after.manifests));
    // What is no question of rights is a failure.
    registry.twist(|asked, _| (asked.method == "POST").then(|| Reply::new(400)));
    let failed = second.run(&["ci", "save", "all", "--to", &registry.name(), "--all"]);
    assert_ne!(failed.status, 0, "{}", failed.stderr);
}

#[test]
fn a_dear_build_step_is_found_above_a_cheap_source() {
    if lacks(Need::Sandbox) {
        return;
    }
    let slow = |place: &Place| place.edit("demo/project.toml", "\"cat native", "\"sleep 2; cat native");
    let (first, second) = (Place::new(User::Caller), Place::new(User::Caller));
    slow(&first);
    slow(&second);
    first.ok(&["build", TASK]);
    let remote = format!("dir:{}", first.path("cache").display());
    let saved = json(&first.ok(&["--json", "ci", "save", TASK, "--to", &remote, "--min-gain", "1"]));
    assert!(saved["saved"] == 2 && saved["cheap"] == 4, "the build step and its source: {saved}");
    let restored = json(&second.ok(&["--json", "ci", "restore", TASK, "--from", &remote, "--trust"]));
    assert!(restored["restored"] == 2 && restored["cheap"] == 4 && restored["missing"] == 0, "{restored}");
    let built = second.run(&["build", TASK]);
    assert!(built.status == 0 && built.stderr.contains("4 steps built"), "{}", built.stderr);
    assert!(!built.stderr.contains("build native"), "{}", built.stderr);
    second.assert_whole();
}
