//! Builds where no namespace can be made: at the real places, believed by nobody else.

use serde_json::Value;

use crate::support::{Finished, Need, Place, Powers, STILL_POWERFUL, TASK, User, in_own_root, lacks};

/// Runs a script in a container without namespaces, mounts and capabilities; `None` where there is none.
fn contained(place: &Place, script: &str) -> Option<Finished> {
    let finished = place.finish(&mut in_own_root(place, Powers::None, script));
    if finished.status == STILL_POWERFUL {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: this machine does not let a namespace forbid others");
        }
        return None;
    }
    Some(finished)
}

fn place() -> Option<Place> {
    if lacks(Need::Root) || lacks(Need::Sandbox) || lacks(Need::UserNamespaces) {
        return None;
    }
    Some(Place::new(User::Caller))
}

/// How many different layers there are.
fn layers(place: &Place) -> usize {
    let listed: Value = serde_json::from_str(&place.ok(&["--json", "layer", "ls"])).expect("JSON");
    let listed = listed["layers"].as_array().expect("a list");
    listed.iter().map(|layer| layer["layer"].to_string()).collect::<std::collections::BTreeSet<_>>().len()
}

const BUILD: &str = "infradev build demo/one --sandbox none";

#[test]
fn privileged_a_container_builds_and_uses_what_it_built() {
    let Some(place) = place() else { return };
    let refused = contained(&place, "infradev build demo/one");
    let Some(refused) = refused else { return };
    assert!(refused.status == 1 || refused.status == 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("--sandbox none"), "{}", refused.stderr);
    let script = format!(
        "{BUILD}; ls -A /workspace; test ! -e /opt/env; infradev --quiet env materialize {TASK} --at /; /opt/env/bin/tool; \
         cat /workspace/demo/native/out.so"
    );
    let built = contained(&place, &script).expect("as before");
    assert_eq!(built.status, 0, "{}{}", built.stdout, built.stderr);
    assert!(
        built.stderr.contains("without a sandbox") && built.stderr.contains("ready: demo/one@cpu"),
        "{}",
        built.stderr
    );
    // Nothing is left at the real places.
    assert!(!built.stdout.contains("demo\n"), "{}", built.stdout);
    assert!(built.stdout.contains("tool ran\nnative input\n"), "{}", built.stdout);
    // What needs to run nothing needs no places.
    let again = contained(&place, &format!("mkdir -p /workspace/mine; {BUILD}")).expect("as before");
    assert!(again.stderr.contains("nothing to do: 6 steps found"), "{}", again.stderr);
    assert!(!again.stderr.contains("without a sandbox"), "{}", again.stderr);
    place.assert_whole();
    // With a sandbox, what ran a command runs again, and gives the same.
    let before = layers(&place);
    let confined = place.run(&["build", TASK]);
    assert!(
        confined.stderr.contains("1 step built") && confined.stderr.contains("5 steps found"),
        "{}",
        confined.stderr
    );
    assert_eq!(layers(&place), before);
    let third = contained(&place, BUILD).expect("as before");
    assert!(third.stderr.contains("nothing to do: 6 steps found"), "{}", third.stderr);
}

#[test]
fn privileged_what_ran_without_a_sandbox_is_not_shared() {
    let Some(place) = place() else { return };
    let Some(built) = contained(&place, BUILD) else { return };
    assert_eq!(built.status, 0, "{}", built.stderr);
    let (cache, images) =
        (format!("dir:{}", place.path("cache").display()), format!("dir:{}", place.path("images").display()));
    let saved = place.run(&["ci", "save", TASK, "--to", &cache, "--all"]);
    assert!(saved.stderr.contains("5 steps saved"), "{}", saved.stderr);
    place.ok(&["push", TASK, "--to", &images]);
    let other = Place::new(User::Caller);
    other.ok(&["pull", TASK, "--from", &images, "--trust"]);
    assert_eq!(other.sh("cat native/out.so"), "native input\nin.txt\nout.so\n");
    let miss = other.run(&["build", TASK, "--require-hit"]);
    assert_eq!(miss.status, 4, "{}", miss.stderr);
    let built = other.run(&["build", TASK]);
    assert!(built.stderr.contains("1 step built"), "{}", built.stderr);
}

#[test]
fn privileged_what_is_at_the_real_places_is_not_touched() {
    let Some(place) = place() else { return };
    for occupied in ["/workspace/mine", "/opt/env/mine"] {
        let script = format!("mkdir -p {occupied}; touch {occupied}/file; {BUILD} || true; ls {occupied}");
        let Some(refused) = contained(&place, &script) else { return };
        assert!(refused.stdout == "file\n" && refused.stderr.contains("is not empty"), "{}", refused.stderr);
    }
    let script = format!("mkdir -p /opt; ln -s /elsewhere /opt/env; {BUILD} || true; readlink /opt/env");
    let refused = contained(&place, &script).expect("as before");
    assert!(
        refused.stdout == "/elsewhere\n" && refused.stderr.contains("is not empty"),
        "{}",
        refused.stderr
    );
    // Where a base is of its own, its commands cannot run; and nothing was begun.
    let catalog = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/catalog");
    let script = format!("infradev --catalog {catalog} build verl/3567 --sandbox none");
    let refused = contained(&place, &script).expect("as before");
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("verl/3567 has a base of its own"), "{}", refused.stderr);
}

#[test]
fn privileged_a_killed_build_leaves_its_places_to_the_next() {
    let Some(place) = place() else { return };
    place.edit("demo/project.toml", "cat native", "touch {MARK}; sleep ${PAUSE:-0}; cat native");
    let mark = place.path("mark").display().to_string();
    place.edit("demo/project.toml", "{MARK}", &mark);
    place.edit("demo/project.toml", "outputs =", "env-ignored = [\"PAUSE\"]\noutputs =");
    // While it runs nobody else gets the places; what its command has started ends with it.
    let script = format!(
        "PAUSE=600 {} build {TASK} --sandbox none & while ! test -e {mark}; do sleep 0.05; done; \
         {BUILD} --rebuild 'wheel *' && echo too early || echo lent; kill -$SIGNAL $!; wait $! || true; ls /workspace; \
         mkdir /workspace/mine; while {BUILD} 2>said && echo not mine || grep -q 'hold the lock' said; do sleep 0.05; done; \
         cat said >&2; ls /workspace; rmdir /workspace/mine; {BUILD}; ls -A /workspace",
        place.program().display()
    );
    for signal in ["TERM", "KILL"] {
        let Some(done) = contained(&place, &script.replace("$SIGNAL", signal)) else { return };
        assert_eq!(done.status, 0, "{}{}", done.stdout, done.stderr);
        assert_eq!(done.stdout, "lent\ndemo\nmine\n", "{}", done.stderr);
        assert!(done.stderr.contains("hold the lock"), "{}", done.stderr);
        place.assert_whole();
        place.edit("demo/project.toml", "cat native", "true; cat native");
        std::fs::remove_file(place.path("mark")).expect("an own file");
    }
}

#[test]
fn privileged_what_a_command_left_running_is_ended() {
    let Some(place) = place() else { return };
    let beat = place.path("beat").display().to_string();
    let left =
        format!("(setsid sh -c 'while :; do date +%N >{beat}; sleep 0.02; done' &); sleep 0.2; cat native");
    place.edit("demo/project.toml", "cat native/*.txt", &format!("{left}/*.txt"));
    let script = format!(
        "{BUILD}; first=$(cat {beat}); sleep 0.3; test \"$first\" = \"$(cat {beat})\"; ls -A /workspace"
    );
    let Some(built) = contained(&place, &script) else { return };
    assert_eq!((built.status, built.stdout.as_str()), (0, ""), "{}", built.stderr);
    // The lock may be a link that somebody has put there: it is neither followed nor waited for.
    let script = format!(
        "mkdir -p /workspace; ln -s /tmp/elsewhere /workspace/.infradev-build; {BUILD} --rebuild 'wheel *'"
    );
    let refused = contained(&place, &script).expect("as before");
    assert!(refused.status == 2 && refused.stderr.contains("is not empty"), "{}", refused.stderr);
}
