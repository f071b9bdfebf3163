//! Where a store may be, and what is said where it may not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Need, Place, TASK, User, assert_failed, lacks};

fn mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().expect("it starts");
    assert!(output.status.success(), "mount {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_newer_store_is_refused_with_advice() {
    let place = Place::new(User::Caller);
    place.ok(&["gc", "--dry-run"]);
    fs::write(place.store().join("format"), "infradev store 99\n").expect("an own file");
    for command in [&["build", TASK][..], &["ls"], &["verify"], &["gc"]] {
        let finished = place.run(command);
        let talk = "
error: the store [PLACE]/store has format 99; this program knows format 1
hint: use a newer infradev, or another store with --store";
        assert_failed(&finished, 2, talk);
    }
}

#[test]
fn what_is_no_store_is_left_alone() {
    let place = Place::new(User::Caller);
    fs::create_dir(place.store()).expect("an own directory");
    fs::write(place.store().join("thesis.tex"), "precious").expect("an own file");
    let talk = "
error: [PLACE]/store is not empty and not a store
hint: name an empty or absent directory with --store";
    assert_failed(&place.run(&["build", TASK]), 2, talk);
    assert_eq!(place.listing(""), ["thesis.tex"]);
    let absent = place.run(&["--store", "/nowhere/store", "verify"]);
    assert_failed(
        &absent,
        2,
        "error: there is no store at /nowhere/store\nhint: build something first, or name the store with --store",
    );
}

#[test]
fn somebody_elses_store_can_be_read() {
    if lacks(Need::UserNamespaces) {
        return;
    }
    let place = Place::new(User::Ordinary);
    place.ok(&["build", TASK]);
    // Not in the stub trees, whose modes are those that environments show.
    let script = "find \"$0\" -path \"$0/stubs/*\" -prune -o -exec chmod a-w {} +";
    let forbidden = Command::new("sh").args(["-c", script]).arg(place.store()).status();
    assert!(forbidden.expect("find runs").success());
    for command in [&["verify", "--read-data"][..], &["ls"], &["du"], &["env", "ls"], &["layer", "ls"]] {
        let finished = place.run(command);
        assert_eq!(finished.status, 0, "{command:?}: {}", finished.stderr);
    }
    for command in [&["build", TASK][..], &["gc"]] {
        let finished = place.run(command);
        assert_eq!(finished.status, 2, "{command:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("hint: choose a store that you may write"), "{}", finished.stderr);
    }
    let restored = Command::new("chmod").args(["-R", "u+w"]).arg(place.store()).status();
    assert!(restored.expect("chmod runs").success());
    place.ok(&["build", TASK]);
}

#[test]
fn privileged_a_read_only_mount_can_be_read() {
    if lacks(Need::Root) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    let store = place.store().display().to_string();
    mount(&["--bind", &store, &store]);
    mount(&["-o", "remount,bind,ro", &store]);
    for command in [&["verify", "--read-data"][..], &["ls"], &["du"], &["env", "ls"]] {
        let finished = place.run(command);
        assert_eq!(finished.status, 0, "{command:?}: {}", finished.stderr);
    }
    let talk = "
error: the store [PLACE]/store is read-only
hint: choose a store that you may write with --store or INFRADEV_STORE";
    assert_failed(&place.run(&["build", TASK]), 2, talk);
    assert_failed(&place.run(&["gc"]), 2, talk);
}

#[test]
fn privileged_a_store_on_tmpfs() {
    if lacks(Need::Root) {
        return;
    }
    let place = Place::new(User::Caller);
    fs::create_dir(place.store()).expect("an own directory");
    mount(&["-t", "tmpfs", "none", &place.store().display().to_string()]);
    let doctor = place.run(&["doctor"]);
    assert!(doctor.stdout.contains("tmpfs: works, and is lost at the next boot"), "{}", doctor.stdout);
    place.ok(&["build", TASK]);
    assert_eq!(place.sh("tool; echo x >made; stat -c %u run.sh made"), "tool ran\n0\n0\n");
    place.assert_whole();
}

/// An overlay cannot hold an upper: there, an environment that is kept is a full copy.
#[test]
fn privileged_a_store_on_overlayfs() {
    if lacks(Need::Root) || lacks(Need::UserNamespaces) {
        return;
    }
    for user in [User::Caller, User::Ordinary] {
        let place = Place::new(user);
        for name in ["lower", "upper", "work", "overlaid"] {
            fs::create_dir(place.path(name)).expect("an own directory");
        }
        place.give_to_user();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            place.path("lower").display(),
            place.path("upper").display(),
            place.path("work").display()
        );
        mount(&["-t", "overlay", "none", "-o", &options, &place.path("overlaid").display().to_string()]);
        let store = place.path("overlaid/store").display().to_string();
        let doctor = place.run(&["--store", &store, "doctor"]);
        assert_eq!(doctor.status, 0, "{}", doctor.stdout);
        for words in ["overlayfs: full copies for what is kept", "back end copy", "what is written in memory"]
        {
            assert!(doctor.stdout.contains(words), "{words}: {}", doctor.stdout);
        }
        place.ok(&["--store", &store, "build", TASK]);
        let script = "tool; stat -c %u run.sh; rm -r native && mkdir native && ls native; echo x >>run.sh; tail -n 1 run.sh; \
                      stat -f -c %T /workspace";
        let exec = ["--store", &store, "env", "exec", TASK, "--", "sh", "-c", script];
        let finished = place.run(&exec);
        assert_eq!(finished.stdout, "tool ran\n0\nx\noverlayfs\n", "{}", finished.stderr);
        assert!(!finished.stderr.contains("copy"), "{}", finished.stderr);
        assert_eq!(fs::read_dir(place.path("overlaid/store/envs")).expect("a directory").count(), 0);
        let kept =
            place.run(&["--store", &store, "env", "exec", TASK, "--keep", "one", "--", "sh", "-c", script]);
        assert!(kept.stderr.contains("is a full copy"), "{}", kept.stderr);
        assert!(place.ok(&["--store", &store, "env", "diff", "one"]).contains("run.sh"));
        place.ok(&["--store", &store, "env", "rm", "one"]);
        assert_eq!(place.run(&["--store", &store, "verify"]).status, 0);
        // Seen through one more overlay, no other may lie on it: what was found before does not hold there.
        for name in ["upper-2", "work-2"] {
            fs::create_dir(place.path(name)).expect("an own directory");
        }
        place.give_to_user();
        let overlaid = place.path("overlaid").display().to_string();
        let (upper, work) = (place.path("upper-2"), place.path("work-2"));
        let options = format!("lowerdir={overlaid},upperdir={},workdir={}", upper.display(), work.display());
        mount(&["-t", "overlay", "none", "-o", &options, &overlaid]);
        let deeper = place.run(&exec);
        assert!(deeper.status == 0 && deeper.stdout.starts_with("tool ran\n0\nx\n"), "{}", deeper.stderr);
    }
}

#[test]
fn objects_cannot_be_written_by_accident() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    for (path, _) in place.contents().iter().filter(|(path, _)| path.contains("/objects/")) {
        let mode = fs::metadata(path).expect("an object").permissions().mode() & 0o7777;
        // Where farms are used, a lent object shows what its file shows; even then nobody else may write it.
        let lent = place.listing("farm").len() > 1 && mode & 0o444 == 0o444 && mode & 0o022 == 0;
        assert!(mode == 0o444 || lent, "{path} is {mode:o}");
    }
}
