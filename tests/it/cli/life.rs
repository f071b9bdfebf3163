//! A task's life: planned, built, used, explained, removed, collected.

use crate::support::{Need, PROJECT, Place, TASK, User, lacks};

#[test]
fn a_task_is_built_once_and_used() {
    if lacks(Need::Sandbox) {
        return;
    }
    for user in [User::Caller, User::Ordinary] {
        if user == User::Ordinary && lacks(Need::UserNamespaces) {
            return;
        }
        let place = Place::new(user);
        let plan = place.ok(&["plan", TASK]);
        assert!(plan.contains("tinypkg"), "{plan}");
        assert!(!place.store().join("roots/tasks/demo%2Fone@cpu.json").exists(), "a plan builds nothing");
        let built = place.run(&["build", TASK]);
        assert_eq!(built.status, 0, "{}", built.stderr);
        assert!(built.stderr.contains("6 steps built"), "{}", built.stderr);
        let shown = place.sh(
            "python -c 'import demo, tinypkg; print(demo.VALUE, demo.__file__, tinypkg.__file__)' && tool && toolscript \
             && cat /opt/env/share/demo/note /opt/env/share/toolpkg/readme && echo $DEMO && pwd && cat native/out.so",
        );
        let python = crate::support::host_python();
        let expected = format!(
            "1 /workspace/demo/demo/__init__.py /opt/env/lib/python{python}/site-packages/tinypkg/__init__.py\n\
             tool ran\nscript ran\na note\nread me\n1\n/workspace/demo\nnative input\nin.txt\nout.so\n"
        );
        assert_eq!(shown, expected);
        // Again: all hits, no request, nothing to do.
        let requests = place.index.requests();
        let again = place.run(&["--offline", "build", TASK, "--require-hit"]);
        assert!(again.stderr.contains("nothing to do: 6 steps found"), "{}", again.stderr);
        assert_eq!((again.status, place.index.requests()), (0, requests));
        // The second task differs in its source alone: everything else, the build step too, is shared.
        let second = place.run(&["build", "demo/two"]);
        assert!(second.stderr.contains("1 step built"), "{}", second.stderr);
        assert!(
            second.stderr.contains("5 steps found") || second.stderr.contains("5 found"),
            "{}",
            second.stderr
        );
        place.assert_whole();
    }
}

#[test]
fn what_is_built_can_be_listed_shown_and_explained() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    let listed = place.ok(&["ls"]);
    assert!(listed.contains("demo/one") && listed.contains("demo/two"), "{listed}");
    place.ok(&["build", PROJECT]);
    let listed = place.ok(&["ls"]);
    assert_ne!(listed.matches("built").count(), 0, "{listed}");
    for arguments in [
        &["show", TASK][..],
        &["plan", TASK],
        &["why", TASK],
        &["du"],
        &["du", "--by", "layer"],
        &["du", "--by", "project"],
        &["du", "--by", "package"],
        &["layer", "ls"],
        &["config", "show", "--origin"],
        &["doctor"],
        &["verify"],
        &["completions", "bash"],
    ] {
        let shown = place.run(arguments);
        assert_eq!(shown.status, 0, "{arguments:?}: {}", shown.stderr);
        assert!(!shown.stdout.is_empty(), "{arguments:?} shows nothing");
    }
}

#[test]
fn why_names_the_file_that_changed() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    place.repository.write("native/in.txt", "changed input\n");
    let commit = place.repository.commit("third");
    place.edit("demo/tasks/one/task.toml", &place.repository.first, &commit);
    // An environment of the last build still works, with a warning, unless freshness is required.
    let stale = place.run(&["env", "exec", TASK, "--", "true"]);
    assert_eq!(stale.status, 0, "{}", stale.stderr);
    assert!(stale.stderr.contains("warning: the recipe or lock of demo/one@cpu changed"), "{}", stale.stderr);
    let fresh = place.run(&["env", "exec", "--require-fresh", TASK, "--", "true"]);
    assert_ne!(fresh.status, 0);
    let why = place.ok(&["why", TASK]);
    assert!(why.contains("demo/one build native\n  a step that it needs is not there"), "{why}");
    assert!(why.contains("never built in this store: demo/one source"), "{why}");
    // A changed command is named with both forms.
    place.edit("demo/tasks/one/task.toml", &commit, &place.repository.first);
    place.edit("demo/project.toml", "&& ls native", "&& ls  native");
    let why = place.ok(&["why", TASK]);
    assert!(why.starts_with("demo/one build native\n  command: `") && why.contains("` became `"), "{why}");
}

#[test]
fn removing_a_task_and_collecting_gives_the_bytes_back() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.repository.write("large.bin", &"0123456789abcdef".repeat(1 << 17));
    let commit = place.repository.commit("large");
    place.edit("demo/tasks/two/task.toml", &place.repository.second, &commit);
    place.ok(&["build", "demo/one"]);
    let one = place.disk_bytes();
    place.ok(&["build", "demo/two"]);
    let both = place.disk_bytes();
    assert!(both > one + 2_000_000, "the second task has 2 MB of its own: {one} {both}");
    place.ok(&["env", "mount", "demo/two", "--name", "held"]);
    place.ok(&["rm", "demo/two"]);
    place.ok(&["gc"]);
    assert!(place.disk_bytes() > one + 2_000_000, "a mounted environment keeps its layers");
    let read = place.run(&[
        "env",
        "exec",
        "held",
        "--",
        "sh",
        "-c",
        "cat $(find /workspace /opt/env -type f) | wc -c",
    ]);
    assert_eq!(read.status, 0, "{}", read.stderr);
    place.ok(&["env", "umount", "held"]);
    place.ok(&["gc"]);
    let read = place.run(&["env", "exec", "held", "--", "sha256sum", "/workspace/demo/large.bin"]);
    assert_eq!(read.status, 0, "unmounted, it is still a root: {}", read.stderr);
    place.ok(&["env", "rm", "held"]);
    let dry = place.ok(&["gc", "--dry-run"]);
    assert!(dry.starts_with("would remove"), "{dry}");
    assert!(place.disk_bytes() > one + 2_000_000, "a dry run removes nothing");
    place.ok(&["gc"]);
    let left = place.disk_bytes();
    assert!(left < one + 100_000, "{left} bytes are left of {both}, {one} before");
    place.assert_whole();
}

#[test]
fn a_rebuild_finds_steps_that_are_not_deterministic() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.edit("demo/project.toml", "&& ls native", "&& cat /proc/sys/kernel/random/uuid");
    place.ok(&["build", TASK]);
    let before = place.sh("cat native/out.so");
    // Wheels, sources and skeletons give what they gave.
    let again = place.run(&["build", TASK, "--rebuild", "{wheel*,source*,skeleton*}"]);
    assert_eq!(again.status, 0, "{}", again.stderr);
    assert!(again.stderr.contains("4 steps built"), "{}", again.stderr);
    assert!(!again.stderr.contains("another layer"), "{}", again.stderr);
    assert!(place.ok(&["why", TASK]).starts_with("every step is in the store"));
    let none = place.run(&["build", TASK, "--rebuild", "wheal *"]);
    assert_eq!(none.status, 2);
    assert!(none.stderr.contains("error: --rebuild: no step is called `wheal *`"), "{}", none.stderr);
    let again = place.run(&["build", TASK, "--rebuild", "build *"]);
    assert!(again.stderr.contains("`demo/one build native` gave another layer"), "{}", again.stderr);
    assert!(place.ok(&["why", TASK]).contains("gave 2 different layers for one key"));
    // What stands on the first layer keeps it.
    assert_eq!(place.sh("cat native/out.so"), before);
    let (_, command) = again.stderr.split_once("`infradev layer diff ").expect("it says how to compare them");
    let (layers, _) = command.split_once('`').expect("a command");
    let arguments: Vec<&str> = ["layer", "diff"].into_iter().chain(layers.split(' ')).collect();
    assert_eq!(place.ok(&arguments), "M /workspace/demo/native/out.so  (content)\n");
    place.ok(&["gc"]);
    assert_eq!(place.run(&arguments).status, 2, "nothing needs the second layer");
    place.assert_whole();
}

#[test]
fn steps_run_in_the_order_of_the_document() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    let step = |name: &str| {
        format!(
            "[[build]]\nname = \"{name}\"\ncommand = [\"touch\", \"{name}\"]\ninputs = [\"native/*.txt\"]\noutputs = [\"{name}\"]\n\n"
        )
    };
    let steps: String = ["third", "first", "second"].map(step).concat();
    place.edit("demo/project.toml", "[[build]]", &format!("{steps}[[build]]"));
    let built = place.run(&["--progress", "plain", "build", TASK, "--jobs", "1"]);
    assert_eq!(built.status, 0, "{}", built.stderr);
    let at = |name: &&str| built.stderr.find(&format!("build {name} ")).expect("a line for each");
    assert!(["third", "first", "second", "native"].is_sorted_by_key(at), "{}", built.stderr);
}
