//! Named environments: mount, exec, diff, patch, umount, rm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use super::for_each_user;
use crate::support::{Need, Place, TASK, User, assert_failed, lacks, wait_until};

#[test]
fn an_environment_lives_until_it_is_removed() {
    for_each_user(|place| {
        let mounted = place.ok(&["env", "mount", TASK, "--name", "mine"]);
        let root = std::path::PathBuf::from(
            mounted.trim().replace("[PLACE]", &place.path("").display().to_string()),
        );
        assert!(root.join("workspace/demo/demo/__init__.py").exists(), "{}", root.display());
        let exec = |script: &str| place.run(&["env", "exec", "mine", "--", "sh", "-c", script]);
        assert_eq!(
            exec("echo kept >kept; mkdir new; echo VALUE = 3 >demo/__init__.py; rm run.sh; exit 5").status,
            5
        );
        let listed = place.ok(&["env", "ls"]);
        assert!(
            listed.contains("mine") && (listed.contains(" mounted ") || listed.contains(" held ")),
            "{listed}"
        );
        let diff = place.ok(&["env", "diff", "mine"]);
        let expected = "M /workspace/demo/demo/__init__.py\nA /workspace/demo/kept\nA /workspace/demo/new\nD /workspace/demo/run.sh\n";
        assert_eq!(diff, expected);
        place.ok(&["env", "umount", "mine"]);
        assert_eq!(place.mounts(), Vec::<std::path::PathBuf>::new());
        wait_until("the holder is gone", || place.processes().is_empty());
        assert!(place.ok(&["env", "ls"]).contains("unmounted"));
        // Unmounted, it can still be used, and keeps what was written.
        assert_eq!(exec("cat kept").stdout, "kept\n");
        place.ok(&["env", "mount", "mine"]);
        assert_eq!(exec("cat kept; python -c 'import demo; print(demo.VALUE)'").stdout, "kept\n3\n");
        let dry = place.run(&["env", "rm", "--dry-run", "mine"]);
        assert!(dry.stderr.contains("would delete `mine`"), "{}", dry.stderr);
        assert_eq!(
            place.run(&["env", "rm", "mine", "nonesuch"]).status,
            2,
            "a mistyped name removes nothing"
        );
        assert_eq!(exec("cat kept").stdout, "kept\n");
        place.ok(&["env", "rm", "mine"]);
        assert_eq!(place.listing("envs"), Vec::<String>::new());
        assert_eq!(place.mounts(), Vec::<std::path::PathBuf>::new());
        wait_until("the holder is gone", || place.processes().is_empty());
        place.assert_whole();
    });
}

#[test]
fn a_run_can_be_kept() {
    for_each_user(|place| {
        place.ok(&["env", "exec", "--keep", "kept", TASK, "--", "sh", "-c", "echo x >made"]);
        assert_eq!(place.ok(&["env", "exec", "kept", "--", "cat", "made"]), "x\n");
        assert_eq!(place.ok(&["env", "diff", "kept"]), "A /workspace/demo/made\n");
        let again = place.run(&["env", "exec", "--keep", "kept", TASK, "--", "true"]);
        assert_failed(
            &again,
            125,
            "error: the environment `kept` exists already\nhint: choose another name, or remove it with `infradev env rm`",
        );
        assert_eq!(place.run(&["env", "exec", "--keep", "../x", TASK, "--", "true"]).status, 125);
        place.ok(&["env", "rm", "kept"]);
    });
}

#[test]
fn patches_are_applied_inside() {
    for_each_user(|place| {
        place.ok(&["env", "exec", "--keep", "patched", TASK, "--", "true"]);
        let patch = place.path("change.patch");
        let text = "--- a/demo/__init__.py\n+++ b/demo/__init__.py\n@@ -1 +1,2 @@\n-VALUE = 1\n+VALUE = 7\n+MORE = True\n";
        fs::write(&patch, text).expect("an own file");
        fs::set_permissions(&patch, fs::Permissions::from_mode(0o644)).expect("an own file");
        let patch = patch.display().to_string();
        place.ok(&["env", "patch", "patched", &patch]);
        assert_eq!(
            place.ok(&["env", "exec", "patched", "--", "python", "-c", "import demo; print(demo.VALUE)"]),
            "7\n"
        );
        let again = place.run(&["env", "patch", "patched", &patch]);
        assert_eq!(again.status, 1, "{}", again.stderr);
        assert!(again.stderr.contains("does not apply in `patched`"), "{}", again.stderr);
        assert_eq!(place.run(&["env", "patch", "patched", "/nowhere.patch"]).status, 2);
        place.ok(&["env", "rm", "patched"]);
    });
}

#[test]
fn privileged_a_busy_environment_names_its_users() {
    if lacks(Need::Root) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    place.ok(&["env", "mount", TASK, "--name", "busy"]);
    let inside = place.store().join("envs/busy/merged/workspace");
    let mut user = place.tool("sleep").arg("4712").current_dir(&inside).spawn().expect("it starts");
    for command in ["umount", "rm"] {
        let finished = place.run(&["env", command, "busy"]);
        assert_eq!(finished.status, 3, "{}", finished.stderr);
        assert!(finished.stderr.contains("error: the environment `busy` is busy"), "{}", finished.stderr);
        assert!(finished.stderr.contains(&format!("process {} (sleep)", user.id())), "{}", finished.stderr);
        assert!(inside.is_dir(), "nothing was taken away");
    }
    // Somebody who only has a file open is a user too.
    user.kill().expect("it lives");
    user.wait().expect("it ends");
    let open = fs::File::open(inside.join("demo/run.sh")).expect("a file");
    let finished = place.run(&["env", "umount", "busy"]);
    assert_eq!(finished.status, 3);
    assert!(finished.stderr.contains(&format!("process {} ", std::process::id())), "{}", finished.stderr);
    drop(open);
    // Children that other tests are just starting may still have it, for a moment.
    wait_until("nobody uses it", || place.run(&["env", "rm", "busy"]).status == 0);
}

#[test]
fn a_command_in_a_mount_keeps_it() {
    for_each_user(|place| {
        place.ok(&["build", TASK]);
        place.ok(&["env", "mount", TASK, "--name", "used"]);
        let line = "touch began; until test -e end; do sleep 0.02; done; echo whole >later";
        let mut command = place.command(&["env", "exec", "used", "--", "sh", "-c", line]);
        let mut running = command.spawn().expect("it starts");
        wait_until("it runs", || {
            place.run(&["env", "exec", "used", "--", "test", "-e", "began"]).status == 0
        });
        for command in ["umount", "rm"] {
            let refused = place.run(&["env", command, "used"]);
            assert_eq!(refused.status, 3, "{}", refused.stderr);
            let expected = "error: commands run in the environment `used`\nhint: end them, then try again";
            assert!(refused.stderr.contains(expected), "{}", refused.stderr);
        }
        place.ok(&["env", "exec", "used", "--", "touch", "end"]);
        assert!(running.wait().expect("it ends").success());
        assert_eq!(place.ok(&["env", "exec", "used", "--", "cat", "later"]), "whole\n");
        place.ok(&["env", "umount", "used"]);
        place.ok(&["env", "rm", "used"]);
    });
}

#[test]
fn one_mount_at_a_time() {
    for_each_user(|place| {
        place.ok(&["env", "exec", "--keep", "one", TASK, "--", "true"]);
        let mut command = place.command(&["env", "exec", "one", "--", "sh", "-c", "echo ready; cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
        let talk = "error: the environment `one` is in use by another command\nhint: wait for the other command to end";
        assert_failed(&place.run(&["env", "exec", "one", "--", "true"]), 125, talk);
        assert_failed(&place.run(&["env", "mount", "one"]), 3, talk);
        assert_failed(&place.run(&["env", "rm", "one"]), 3, talk);
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
        place.ok(&["env", "rm", "one"]);
    });
}

#[test]
fn a_patch_applies_whole_or_not_at_all() {
    for_each_user(|place| {
        place.ok(&["env", "mount", TASK, "--name", "mine"]);
        let patch = place.path("half.patch");
        let half = "--- a/demo/__init__.py\n+++ b/demo/__init__.py\n@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 5\n\
                    --- a/run.sh\n+++ b/run.sh\n@@ -1,2 +1,2 @@\n-#!/bin/bash\n+#!/bin/zsh\n-nothing like it\n+at all\n";
        fs::write(&patch, half).expect("an own file");
        place.give_to_user();
        let refused = place.run(&["env", "patch", "mine", &patch.display().to_string()]);
        assert!(refused.status == 1 && refused.stderr.contains("does not apply"), "{refused:?}");
        assert_eq!(place.ok(&["env", "diff", "mine"]), "");
        fs::write(&patch, "").expect("an own file");
        let empty = place.run(&["env", "patch", "mine", &patch.display().to_string()]);
        assert!(empty.status == 2 && empty.stderr.contains("is empty"), "{empty:?}");
        let kept = place.run(&["env", "exec", "mine", "--keep", "other", "--", "true"]);
        assert!(kept.status == 125 && kept.stderr.contains("is an environment"), "{kept:?}");
        assert_eq!(place.run(&["env", "exec", "--nonesuch", "mine", "--", "true"]).status, 125);
        assert_eq!(place.ok(&["--json", "env", "rm", "mine", "mine"]).matches("mine").count(), 1);
    });
}
