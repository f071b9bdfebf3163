//! Environments as plain files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Finished, Need, Place, Powers, SMALL, TASK, User, image, in_own_root, lacks, write_small,
};

fn built(user: User) -> Option<Place> {
    if lacks(Need::Sandbox) || (user == User::Ordinary && lacks(Need::UserNamespaces)) {
        return None;
    }
    let place = Place::new(user);
    place.ok(&["build", "demo"]);
    Some(place)
}

fn at(place: &Place, task: &str, name: &str, more: &[&str]) -> Finished {
    let to = place.path(name).display().to_string();
    place.run(&[&["--json", "env", "materialize", task, "--at", &to], more].concat())
}

#[track_caller]
fn json(finished: &Finished) -> Value {
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).expect("JSON")
}

#[test]
fn what_is_printed_makes_a_shell_use_it() {
    for user in [User::Caller, User::Ordinary] {
        let Some(place) = built(user) else { return };
        let dry = at(&place, TASK, "out", &["--dry-run"]);
        assert!(dry.status == 0 && dry.stderr.contains("peak disk"), "{}", dry.stderr);
        assert!(!place.path("out").exists());
        let line = format!(
            "eval \"$({} --quiet env materialize {TASK} --at out)\"; python -c 'import demo, tinypkg; \
             print(demo.VALUE, tinypkg.NAME, demo.__file__)'; echo $DEMO; cat out/workspace/demo/native/out.so",
            place.program().display()
        );
        let said = place.finish(place.tool("sh").args(["-euc", &line]));
        let expected =
            "1 tiny [PLACE]/out/workspace/demo/demo/__init__.py\n1\nnative input\nin.txt\nout.so\n";
        assert_eq!(said.stdout, expected, "{}", said.stderr);
        // The same again is nothing to do; what differs is named, and replaced if that is wanted.
        let again = json(&at(&place, TASK, "out", &[]));
        assert_eq!(again["unchanged"].as_array().map(Vec::len), Some(1), "{again}");
        // Refused before anything is written, where the file system cannot.
        let cloned = at(&place, TASK, "cloned", &["--link", "reflink"]);
        assert!(cloned.status == 0 || cloned.stderr.contains("cannot share blocks"), "{}", cloned.stderr);
        assert_eq!(cloned.status == 0, place.path("cloned").exists());
        let file = place.path("out/opt/env/share/demo/note");
        fs::write(&file, "b note\n").expect("an own file");
        let refused = at(&place, TASK, "out", &[]);
        assert!(
            refused.status == 2 && refused.stderr.contains("share/demo/note is there, and"),
            "{}",
            refused.stderr
        );
        json(&at(&place, TASK, "out", &["--force"]));
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), Some("a note\n"));
        fs::write(place.path("out/extra"), "").expect("an own file");
        assert_eq!(at(&place, TASK, "out", &[]).status, 2);
        fs::create_dir(place.path("mine")).expect("an own directory");
        fs::write(place.path("mine/thing"), "precious").expect("an own file");
        let refused = at(&place, TASK, "mine", &["--force"]);
        assert!(refused.status == 2 && place.path("mine/thing").exists(), "{}", refused.stderr);
        place.assert_whole();
    }
}

#[test]
fn links_are_what_they_say() {
    let Some(place) = built(User::Caller) else { return };
    let linked = at(&place, TASK, "linked", &["--link", "hardlink"]);
    assert!(linked.stderr.contains("damages the store"), "{}", linked.stderr);
    let note = |name: &str| fs::metadata(place.path(name).join("opt/env/share/demo/note")).expect("a file");
    let object = infradev_store::object_name(&infradev_store::ObjectId::of(b"a note\n"));
    let object = || fs::metadata(place.store().join("objects").join(&object)).expect("an object");
    assert_eq!(note("linked").ino(), object().ino());
    json(&at(&place, TASK, "copied", &["--link", "copy"]));
    assert_ne!(note("copied").ino(), object().ino());
    let cloned = at(&place, TASK, "cloned", &["--link", "reflink"]);
    match cloned.status {
        0 => assert_ne!(note("cloned").ino(), object().ino()),
        // This file system shares no blocks; nothing is left of the attempt.
        _ => assert!(!place.path("cloned").exists() && !place.path(".cloned.infradev").exists()),
    }
    place.assert_whole();
}

#[test]
fn what_is_consumed_leaves_the_store_whole() {
    let Some(place) = built(User::Caller) else { return };
    let before = place.disk_bytes();
    let dry = json(&at(&place, TASK, "out", &["--consume", "--dry-run"]));
    // Only the source differs from that of the other task, which keeps everything else.
    assert!(dry["moved"].as_u64() > Some(0) && dry["moved"].as_u64() < Some(100_000), "{dry}");
    let consumed = json(&at(&place, TASK, "out", &["--consume"]));
    assert_eq!(consumed["moved"], dry["moved"], "{consumed}");
    assert_eq!(place.listing("roots/tasks"), ["demo%2Ftwo@cpu.json"]);
    place.assert_whole();
    assert_eq!(place.ok(&["env", "exec", "demo/two", "--", "tool"]), "tool ran\n");
    let second = json(&at(&place, "demo/two", "two", &["--consume"]));
    assert!(
        second["peak_disk"].as_u64() < second["content"].as_u64().map(|content| content + 2_000_000),
        "{second}"
    );
    assert_eq!(place.listing("roots/tasks"), Vec::<String>::new());
    place.assert_whole();
    assert!(place.disk_bytes() < before, "{} of {before}", place.disk_bytes());
    let run = "import demo, toolpkg; toolpkg.main(); print(demo.VALUE)";
    let python = place.path("two/opt/env/bin/python");
    let output =
        Command::new(python).args(["-c", run]).env("PYTHONPATH", place.path("two/workspace/demo")).output();
    assert_eq!(String::from_utf8_lossy(&output.expect("python runs").stdout), "tool ran\n2\n");
    // An environment needs its layers: then nothing is moved, and it goes on.
    place.ok(&["build", TASK]);
    place.ok(&["env", "exec", TASK, "--keep", "mine", "--", "true"]);
    let copied = json(&at(&place, TASK, "third", &["--consume"]));
    assert_eq!(copied["moved"], 0, "{copied}");
    assert_eq!(place.ok(&["env", "exec", "mine", "--", "tool"]), "tool ran\n");
    place.assert_whole();
}

#[test]
fn a_consumption_that_is_killed_leaves_the_store_whole() {
    let Some(place) = built(User::Caller) else { return };
    let mut killed = 0;
    for round in 0..8 {
        place.ok(&["build", "demo"]);
        let to = place.path("out").display().to_string();
        let mut command =
            place.command(&["env", "materialize", "demo/two", "--at", &to, "--consume", "--force"]);
        let mut child = command.process_group(0).spawn().expect("the program starts");
        std::thread::sleep(Duration::from_millis(4 * round));
        let _it_may_be_done = child.kill();
        killed += usize::from(!child.wait().expect("it ends").success());
        place.assert_whole();
        assert_eq!(place.ok(&["env", "exec", TASK, "--", "tool"]), "tool ran\n");
    }
    assert!(killed > 0, "no round was killed in time");
    place.ok(&["build", "demo"]);
    let done = at(&place, "demo/two", "out", &["--consume", "--force"]);
    assert_eq!(done.status, 0, "{}", done.stderr);
    place.assert_whole();
}

/// `--at /`, in a root of its own.
#[test]
fn privileged_the_real_places_are_written() {
    if lacks(Need::Root) {
        return;
    }
    let Some(place) = built(User::Caller) else { return };
    let script = format!(
        "infradev --quiet env materialize {TASK} --at / ; /opt/env/bin/tool; cat /workspace/demo/native/out.so; \
         infradev --quiet --json env materialize {TASK} --at / | grep -c /workspace/demo; echo x >/opt/env/share/demo/note; \
         infradev --quiet env materialize {TASK} --at / || echo refused; infradev --quiet env materialize {TASK} --at / --force; \
         cat /opt/env/share/demo/note; ls -A /opt /workspace"
    );
    let said = place.finish(&mut in_own_root(&place, Powers::All, &script));
    assert_eq!(said.status, 0, "{}{}", said.stdout, said.stderr);
    for part in
        ["export PATH='/opt/env/bin':\"$PATH\"\n", "tool ran\nnative input\n", "refused\n", "a note\n"]
    {
        assert!(said.stdout.contains(part), "{part}: {}{}", said.stdout, said.stderr);
    }
    assert!(!said.stdout.contains(".infradev"), "{}", said.stdout);
    place.assert_whole();
}

#[test]
fn a_whole_tree_runs_in_its_own_root() {
    if lacks(Need::Root) {
        return;
    }
    let Some(place) = built(User::Caller) else { return };
    write_small(&place, &format!("oci:{}/layout:one", image().display()));
    place.ok(&["lock", SMALL]);
    place.ok(&["build", SMALL]);
    json(&at(&place, SMALL, "out", &["--consume"]));
    let said = place.finish(place.tool("chroot").arg(place.path("out")).arg("/opt/env/bin/tool"));
    assert_eq!(said.stdout, "tool ran\n", "{}", said.stderr);
    place.assert_whole();
}

#[test]
fn what_is_no_environment_is_not_replaced_wherever_it_lies() {
    if lacks(Need::Root) {
        return;
    }
    let Some(place) = built(User::Caller) else { return };
    let script = format!(
        "mkdir -p /opt/important; echo precious >/opt/important/f; \
         infradev env materialize {TASK} --at /opt/important --force || cat /opt/important/f"
    );
    let said = place.finish(&mut in_own_root(&place, Powers::All, &script));
    assert_eq!((said.status, said.stdout.as_str()), (0, "precious\n"), "{}", said.stderr);
    fs::write(place.path("file"), "precious").expect("an own file");
    write_small(&place, &format!("oci:{}/layout:one", image().display()));
    place.ok(&["lock", SMALL]);
    place.ok(&["build", SMALL]);
    for format in ["squashfs", "docker-archive"] {
        let refused = place.run(&["env", "export", SMALL, "--format", format, "--to", "file", "--force"]);
        assert_ne!(refused.status, 0, "{}", refused.stdout);
        assert!(refused.stderr.contains("is no earlier export"), "{}", refused.stderr);
    }
    assert_eq!(fs::read(place.path("file")).expect("a file"), b"precious");
}
