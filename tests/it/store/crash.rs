//! Killed anywhere, the next command works without help, and nothing is ever served from what was left.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::report::{Tally, note};
use crate::support::{Need, PROJECT, Place, TASK, User, lacks, rounds, wait_until};

/// Moments from 0 to `longest`, spread evenly in an order that jumps about.
fn moments(count: usize, longest: Duration) -> impl Iterator<Item = Duration> {
    (0..count).map(move |round| longest.mul_f64(((round as f64 + 0.5) * 0.618_033_988_75).fract()))
}

/// Starts the program and kills it after `moment`; returns whether it was still running.
fn kill_after(place: &Place, arguments: &[&str], moment: Duration) -> bool {
    let mut command = place.command(arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(moment);
    let running = child.try_wait().expect("a child").is_none();
    child.kill().expect("a child");
    child.wait().expect("a child");
    wait_until("what it had started is gone", || place.processes().is_empty());
    running
}

fn time_of(place: &Place, arguments: &[&str]) -> Duration {
    let began = Instant::now();
    place.ok(arguments);
    began.elapsed()
}

#[test]
fn a_killed_build_is_completed_by_the_next() {
    for user in [User::Caller, User::Ordinary] {
        if lacks(if user == User::Caller { Need::Sandbox } else { Need::UserNamespaces }) {
            continue;
        }
        let place = Place::new(user);
        let whole = time_of(&place, &["build", PROJECT]);
        let mut killed = 0;
        let mut tally = Tally::new(format!("kill -9 at a random moment: build ({user:?})"));
        for moment in moments(rounds(10, 100), whole) {
            infradev_store::remove_tree(&place.store()).expect("an own store");
            killed += usize::from(kill_after(&place, &["build", PROJECT], moment));
            tally.add();
            let built = place.run(&["build", PROJECT]);
            assert_eq!(built.status, 0, "after {moment:?}: {}", built.stderr);
            place.assert_whole();
            assert_eq!(
                place.sh("cat native/out.so demo/__init__.py; tool"),
                "native input\nin.txt\nout.so\nVALUE = 1\ntool ran\n"
            );
        }
        assert!(killed > 2, "only {killed} builds were killed in the middle");
        note(tally);
    }
}

#[test]
fn a_killed_mount_is_completed_by_the_next() {
    for user in [User::Caller, User::Ordinary] {
        if lacks(if user == User::Caller { Need::Sandbox } else { Need::UserNamespaces }) {
            continue;
        }
        let place = Place::new(user);
        place.ok(&["build", TASK]);
        let mount = &["env", "mount", TASK, "--name", "mine"];
        let whole = time_of(&place, mount);
        place.ok(&["env", "rm", "mine"]);
        let mut tally = Tally::new(format!("kill -9 at a random moment: env mount ({user:?})"));
        for moment in moments(rounds(12, 200), whole.mul_f64(1.2)) {
            tally.add();
            // From nothing, the image too, in every other round.
            for name in place.listing("images") {
                std::fs::remove_file(place.store().join("images").join(name)).expect("an own file");
            }
            let mut child =
                place.command(mount).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
            std::thread::sleep(moment);
            child.kill().expect("a child");
            child.wait().expect("a child");
            let mounted = place.run(mount);
            assert_eq!(mounted.status, 0, "after {moment:?}: {}", mounted.stderr);
            let shown =
                place.ok(&["env", "exec", "mine", "--", "sh", "-c", "cat demo/__init__.py && echo x >made"]);
            assert_eq!(shown, "VALUE = 1\n");
            place.ok(&["env", "rm", "mine"]);
            assert_eq!(place.mounts(), Vec::<std::path::PathBuf>::new());
            wait_until("every holder is gone", || place.processes().is_empty());
            place.assert_whole();
        }
        note(tally);
    }
}

#[test]
fn a_killed_run_is_swept() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    let exec = &["env", "exec", TASK, "--", "sh", "-c", "echo x >made; sleep 0.05"];
    let whole = time_of(&place, exec);
    let mut tally = Tally::new("kill -9 at a random moment: env exec");
    for moment in moments(rounds(12, 200), whole) {
        kill_after(&place, exec, moment);
        tally.add();
        place.ok(exec);
        assert_eq!(place.listing("envs"), Vec::<String>::new(), "after {moment:?}");
        place.assert_whole();
    }
    note(tally);
}

#[test]
fn a_killed_collection_is_completed_by_the_next() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    place.ok(&["build", "demo/two"]);
    place.ok(&["rm", "demo/two"]);
    let whole = time_of(&place, &["gc"]);
    let mut tally = Tally::new("kill -9 at a random moment: gc");
    for moment in moments(rounds(10, 200), whole) {
        tally.add();
        place.ok(&["build", "demo/two"]);
        place.ok(&["rm", "demo/two"]);
        kill_after(&place, &["gc"], moment);
        // Either order of repair: building what was half collected, or collecting on.
        place.assert_whole();
        place.ok(&["build", "demo/two"]);
        place.assert_whole();
        place.ok(&[
            "env",
            "exec",
            "demo/two",
            "--",
            "sh",
            "-c",
            "cat $(find /workspace /opt/env -type f) >/dev/null",
        ]);
        place.ok(&["rm", "demo/two"]);
        place.ok(&["gc"]);
        assert_eq!(place.listing("trash"), Vec::<String>::new());
        place.assert_whole();
    }
    note(tally);
}

#[test]
fn two_builds_at_once_run_each_step_once() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    // Slow enough that the other one comes while it runs; it leaves a trace of each run outside.
    place.edit(
        "demo/project.toml",
        "&& ls native >>native/out.so",
        "&& sleep 0.5 && date +%N >>native/out.so",
    );
    let start = || {
        let mut command = place.command(&["build", TASK]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let children = [start(), start(), start()];
    let talks = children.map(|child| {
        let output = child.wait_with_output().expect("it ends");
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{talk}");
        talk
    });
    let built: usize = talks
        .iter()
        .map(|talk| talk.lines().filter(|line| line.trim_start().starts_with("built ")).count())
        .sum();
    assert_eq!(built, 6, "each of six steps once:\n{}", talks.join("\n"));
    assert_eq!(place.listing("layers").len(), 6, "one layer a step");
    place.assert_whole();
}
