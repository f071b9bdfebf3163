//! Bad input: one clear error that names the thing, a hint, the right exit code, and a store as it was.

use std::fs;

use crate::support::{Need, Package, Place, TASK, User, assert_failed, lacks, lock_of, sdist, wheel};

/// A place whose first task is built, so that there is a store to leave as it was.
fn built() -> Place {
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    place
}

/// Runs what must fail with exactly this talk, and must not change the store.
#[track_caller]
fn check(place: &Place, arguments: &[&str], status: i32, talk: &str) {
    let before = place.contents();
    assert_failed(&place.run(arguments), status, talk);
    assert!(place.contents() == before, "{arguments:?} changed the store");
    assert_eq!(
        (place.listing("tmp").len(), place.listing("leases").len()),
        (0, 0),
        "{arguments:?} left something"
    );
}

#[test]
fn an_unknown_task() {
    let place = Place::new(User::Caller);
    for command in ["build", "show", "plan", "why"] {
        let talk = "
error: `demo/onne` names no project and no task
hint: did you mean demo/one, demo/two, demo?
hint: `infradev ls` lists the tasks";
        assert_failed(&place.run(&[command, "demo/onne"]), 2, talk);
    }
    assert_failed(
        &place.run(&["rm", "demo/onne"]),
        2,
        "
error: `demo/onne` is not built in this store
hint: `infradev ls` shows what is",
    );
    assert_failed(
        &place.run(&["env", "exec", "demo/onne", "--", "true"]),
        125,
        "
error: `demo/onne` names no project and no task
hint: did you mean demo/one, demo/two, demo?
hint: `infradev ls` lists the tasks",
    );
    assert_failed(
        &place.run(&["env", "mount", "demo/onne"]),
        2,
        "
error: `demo/onne` names no project and no task
hint: did you mean demo/one, demo/two, demo?
hint: `infradev ls` lists the tasks",
    );
    assert_failed(
        &place.run(&["env", "rm", "nothing"]),
        2,
        "
error: there is no environment `nothing`
hint: `infradev env ls` lists the environments, `infradev ls` the tasks",
    );
    assert_failed(
        &place.run(&["env", "exec", TASK, "--", "true"]),
        125,
        "
error: `demo/one` is not built in this store
hint: run `infradev build demo/one`",
    );
    assert_failed(
        &place.run(&["build", "*/x*"]),
        2,
        "
error: `*/x*` names no project and no task
hint: `infradev ls` lists the tasks",
    );
    assert_failed(
        &place.run(&["unpin", "nothing"]),
        2,
        "
error: there is no pin `nothing`",
    );
    assert_failed(
        &place.run(&["layer", "show", "0000"]),
        2,
        "
error: no layer begins with `0000`
hint: `infradev layer ls` lists them",
    );
    assert_failed(
        &place.run(&["--catalog", "absent", "ls"]),
        2,
        "
error: there is no catalog at absent
hint: a catalog is a directory of recipes, named by --catalog, INFRADEV_CATALOG or the configuration",
    );
}

#[test]
fn a_malformed_recipe() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    place.edit("demo/project.toml", "outputs = [\"native/out.so\"]", "outputs = []\nouputs = 3");
    check(
        &place,
        &["build", TASK],
        2,
        "
error: [PLACE]/catalog/demo/project.toml:29:11: build[0].outputs: expected at least one output, found none
[PLACE]/catalog/demo/project.toml:30:1: build[0].ouputs: expected a known key, found `ouputs`",
    );
    place.write("demo/project.toml", "schema = 1\n[project\n");
    check(
        &place,
        &["build", TASK],
        2,
        "
error: [PLACE]/catalog/demo/project.toml:2:9: expected a TOML document, found unclosed table, expected `]`",
    );
    place.write("demo/project.toml", "schema = 9\n");
    check(
        &place,
        &["build", TASK],
        2,
        "
error: [PLACE]/catalog/demo/project.toml:1:1: expected the key `project`, found no such key
[PLACE]/catalog/demo/project.toml:1:1: expected the key `variant`, found no such key
[PLACE]/catalog/demo/project.toml:1:10: schema: expected 1, found 9",
    );
}

#[test]
fn a_pattern_that_matches_nothing() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    place.edit("demo/project.toml", "inputs = [\"native/*.txt\"]", "inputs = [\"native/*.cpp\"]");
    check(&place, &["build", TASK], 2, "
error: demo/one build native: the input `native/*.cpp` of build step `native` matches no file of the source tree
hint: patterns are relative to the source tree
not ready: demo/one@cpu");
}

#[test]
fn a_build_step_that_fails_or_makes_nothing() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    place.edit(
        "demo/project.toml",
        "cat native/*.txt >native/out.so && ls",
        "echo about to fail; exit 3; ls",
    );
    check(&place, &["build", TASK], 1, "
error: demo/one build native: `sh -c echo about to fail; exit 3; ls native >>native/out.so` failed with status 3
  | about to fail
hint: the whole log is [PLACE]/store/caches/logs/[ID].log
not ready: demo/one@cpu");
    // A compiler that fails where nobody looks: the native extension is silently not there.
    place.edit(
        "demo/project.toml",
        "echo about to fail; exit 3; ls native >>native/out.so",
        "c++ absent.cpp || true",
    );
    check(&place, &["build", TASK], 1, "
error: demo/one build native: build step `native` succeeded but left nothing at `/workspace/demo/native/out.so`
  | cc1plus: fatal error: absent.cpp: No such file or directory
  | compilation terminated.
hint: the whole log is [PLACE]/store/caches/logs/[ID].log
not ready: demo/one@cpu");
}

fn relock(place: &Place, packages: &[&Package]) {
    place.write("demo/locks/pylock.one-cpu.toml", lock_of(place, packages));
}

#[test]
fn a_disk_that_cannot_hold_the_build() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    let package = wheel("third", "1.0", &[("third.py", "")]);
    let size = format!("size = {},", package.bytes.len());
    place.write(
        "demo/locks/pylock.one-cpu.toml",
        lock_of(&place, &[&package]).replace(&size, "size = 1000000000000000,"),
    );
    let before = place.contents();
    let refused = place.run(&["build", TASK]);
    assert_eq!(refused.status, 3, "{}", refused.stderr);
    let expected = "error: the build needs about 4000 TB of disk, and the store's file system has ";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    assert!(refused.stderr.contains("hint: `infradev gc --dry-run` shows what can go"), "{}", refused.stderr);
    assert!(place.contents() == before, "nothing was begun");
}

#[test]
fn a_wheel_that_is_not_what_the_lock_names() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    let mut locked = wheel("third", "1.0", &[("third.py", "")]);
    place.index.add(&locked);
    locked.bytes.push(0);
    relock(&place, &[&locked]);
    check(
        &place,
        &["build", TASK],
        1,
        "
error: demo/one wheel third 1.0: third-1.0-py3-none-any.whl has sha256 [ID], but the lock names [ID]
hint: the index or something on the way changed the file; if the new one is right, run `infradev lock`
not ready: demo/one@cpu",
    );
    // One that is gone, and one that is no wheel.
    locked.file = "third-1.1-py3-none-any.whl".to_owned();
    relock(&place, &[&locked]);
    check(
        &place,
        &["build", TASK],
        1,
        "
error: demo/one wheel third 1.0: the index has no file third-1.1-py3-none-any.whl of third
hint: it was removed from the index, or the index is another one; run `infradev lock --check`
not ready: demo/one@cpu",
    );
    locked.bytes = b"no zip".to_vec();
    place.index.add(&locked);
    relock(&place, &[&locked]);
    check(&place, &["build", TASK], 1, "
error: demo/one wheel third 1.0: third-1.1-py3-none-any.whl cannot become a layer: the archive is damaged: invalid Zip archive: Could not find EOCD
not ready: demo/one@cpu");
    let hostile = wheel("hostile", "1.0", &[("../../escape.py", "")]);
    place.index.add(&hostile);
    relock(&place, &[&hostile]);
    check(&place, &["build", TASK], 1, "
error: demo/one wheel hostile 1.0: hostile-1.0-py3-none-any.whl cannot become a layer: path `../../escape.py` has an empty, `.` or `..` component
not ready: demo/one@cpu");
}

/// Locks an sdist whose backend is its own: a build lock without packages.
fn relock_sdist(place: &Place, package: &Package) {
    let own = "\n[packages.tool.infradev]\nbuild-lock = \"third-build\"\n\n[tool.infradev]";
    let lock = lock_of(place, &[package]).replace("\n[tool.infradev]", own);
    place.write("demo/locks/pylock.one-cpu.toml", lock);
    place.write("demo/locks/pylock.third-build.toml", lock_of(place, &[]));
}

const BACKEND: &str = "
import os, zipfile
def build_wheel(out, config_settings=None, metadata_directory=None):
    if os.path.exists('broken'):
        raise SystemExit('error: this package does not build')
    name = 'third-1.0-py3-none-any.whl'
    with zipfile.ZipFile(os.path.join(out, name), 'w') as archive:
        for path, text in (('third.py', 'BUILT = True\\n'),
                           ('third-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: third\\nVersion: 1.0\\n'),
                           ('third-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'),
                           ('third-1.0.dist-info/RECORD', '')):
            archive.writestr(zipfile.ZipInfo(path), text)
    return name
";
const PYPROJECT: &str =
    "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n";

#[test]
fn an_sdist_that_does_not_build() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    let good = sdist("third", "1.0", &[("pyproject.toml", PYPROJECT), ("backend.py", BACKEND)]);
    let broken =
        sdist("third", "1.0", &[("pyproject.toml", PYPROJECT), ("backend.py", BACKEND), ("broken", "x")]);
    place.index.add(&broken);
    relock_sdist(&place, &broken);
    // Its sources are a layer, as the next attempt finds; nothing else is left.
    assert_failed(
        &place.run(&["build", TASK]),
        1,
        "
error: demo/one sdist third 1.0: `/opt/env/bin/python -c  …` failed with status 1
  | error: this package does not build
hint: the whole log is [PLACE]/store/caches/logs/[ID].log
not ready: demo/one@cpu",
    );
    place.assert_whole();
    place.index.add(&good);
    relock_sdist(&place, &good);
    place.ok(&["build", TASK]);
    assert_eq!(place.sh("python -c 'import third; print(third.BUILT)'"), "True\n");
}

#[test]
fn two_wheels_that_disagree() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    let left = wheel("left", "1.0", &[("shared/__init__.py", "SIDE = 'left'\n"), ("shared/same.py", "")]);
    let right = wheel("right", "1.0", &[("shared/__init__.py", "SIDE = 'right'\n"), ("shared/same.py", "")]);
    place.index.add(&left);
    place.index.add(&right);
    relock(&place, &[&left, &right]);
    let finished = place.run(&["build", TASK]);
    let python = crate::support::host_python();
    let talk = format!(
        "
error: demo/one@cpu: left and right both hold /opt/env/lib/python{python}/site-packages/shared/__init__.py, with different content
hint: say in the task's [python] which one is right, for instance prefer = {{ \"PATH\" = \"left\" }}
not ready: demo/one@cpu"
    );
    assert_failed(&finished, 2, &talk);
    // The hint is one that can be followed.
    let task = fs::read_to_string(place.path("catalog/demo/tasks/one/task.toml")).expect("a task");
    let prefer =
        format!("\n[python]\nprefer = {{ \"lib/python{python}/site-packages/shared/**\" = \"right\" }}\n");
    place.write("demo/tasks/one/task.toml", task + &prefer);
    place.ok(&["build", TASK]);
    assert_eq!(place.sh("python -c 'import shared; print(shared.SIDE)'"), "right\n");
}

#[test]
fn a_repository_that_is_not_there() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    let url = "https://git.invalid/demo";
    let second = &["build", "demo/two"];
    check(
        &place,
        &[&["--mirror", &format!("{url}=/nowhere/demo")], &second[..]].concat(),
        3,
        "
error: demo/two source [ID]: the repository /nowhere/demo cannot be fetched: there is no such directory
hint: it was named by --mirror, INFRADEV_MIRRORS or [mirrors] of the configuration
not ready: demo/two@cpu",
    );
    let elsewhere = place.path("elsewhere");
    fs::create_dir(&elsewhere).expect("an own directory");
    check(
        &place,
        &[&["--mirror", &format!("{url}={}", elsewhere.display())], &second[..]].concat(),
        3,
        "
error: demo/two source [ID]: the repository [PLACE]/elsewhere cannot be fetched: it does not have commit [ID]
hint: it was named by --mirror, INFRADEV_MIRRORS or [mirrors] of the configuration
not ready: demo/two@cpu",
    );
    let mut unmirrored = place.command(&["--offline", "build", "demo/two"]);
    assert_failed(&place.finish(unmirrored.env_remove("INFRADEV_MIRRORS")), 4, "
error: demo/two source [ID]: commit [ID] of https://git.invalid/demo is not in the store, and the network is off
hint: run it once without --offline
not ready: demo/two@cpu");
    // What git says about a host that does not exist depends on the machine.
    let mut unmirrored = place.command(&["build", "demo/two"]);
    let finished = place.finish(unmirrored.env_remove("INFRADEV_MIRRORS"));
    let start = format!("the repository {url} cannot be fetched: ");
    assert_eq!(finished.status, 3, "{}", finished.stderr);
    assert!(finished.stderr.contains(&start), "{}", finished.stderr);
}

#[test]
fn no_network() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built();
    let third = wheel("third", "1.0", &[("third.py", "")]);
    place.index.add(&third);
    relock(&place, &[&third]);
    let requests = place.index.requests();
    check(
        &place,
        &["--offline", "build", TASK],
        4,
        "
error: demo/one wheel third 1.0: the index's page of third is not in the store, and the network is off
hint: run it once without --offline
not ready: demo/one@cpu",
    );
    assert_eq!(place.index.requests(), requests, "offline means no request");
    check(
        &place,
        &["build", "--require-hit", TASK],
        4,
        "
error: demo/one wheel third 1.0: the step is not in the store, and --require-hit forbids building it
hint: `infradev why` tells what differs from what is there
not ready: demo/one@cpu",
    );
    // An index that does not answer.
    let mut command = place.command(&["build", TASK]);
    command.env("INFRADEV_INDEX", "http://127.0.0.1:1/simple");
    assert_failed(&place.finish(&mut command), 3, "
error: demo/one wheel third 1.0: cannot fetch the index's page of third: error sending request for url (http://127.0.0.1:[PORT]/simple/third/): client error (Connect): tcp connect error: Connection refused (os error 111)
hint: check the network, the proxy and the index
not ready: demo/one@cpu");
    place.ok(&["build", TASK]);
}
