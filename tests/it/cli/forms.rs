//! Output forms: JSON, colours, closed pipes.

use std::io::Read;
use std::process::Stdio;

use crate::support::{Need, Place, TASK, User, lacks};

#[test]
fn json_says_its_version() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    place.ok(&["env", "mount", TASK, "--name", "one"]);
    for arguments in [
        &["ls"][..],
        &["show", TASK],
        &["plan", TASK],
        &["build", TASK],
        &["why", TASK],
        &["du"],
        &["env", "ls"],
        &["env", "diff", "one"],
        &["layer", "ls"],
        &["verify"],
        &["verify", "--read-data"],
        &["gc", "--dry-run"],
        &["doctor"],
        &["config", "show"],
    ] {
        let text = place.ok(&[arguments, &["--json"]].concat());
        let value: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"));
        assert_eq!(value["schema_version"], 1, "{arguments:?}");
    }
    place.ok(&["env", "rm", "one"]);
}

#[test]
fn colour_comes_only_where_it_is_wanted() {
    let place = Place::new(User::Caller);
    let error = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.envs(variables.iter().copied());
        place.finish(&mut command).stderr
    };
    assert!(!error(&[], &["show", "nothing"]).contains('\x1b'), "a pipe gets no colour");
    assert!(error(&[], &["--color", "always", "show", "nothing"]).contains('\x1b'));
    assert!(!error(&[("NO_COLOR", "1")], &["show", "nothing"]).contains('\x1b'));
    if lacks(Need::Program("script")) {
        return;
    }
    // On a terminal: colour, unless NO_COLOR is set.
    let on_terminal = |variables: &[(&str, &str)]| {
        let line = format!("{} show nothing", place.program().display());
        let mut command = place.tool("script");
        command
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .envs(variables.iter().copied());
        place.finish(&mut command).stdout
    };
    assert!(on_terminal(&[]).contains("\x1b[31;1merror:"), "{}", on_terminal(&[]));
    assert!(!on_terminal(&[("NO_COLOR", "1")]).contains('\x1b'));
}

#[test]
fn a_closed_pipe_is_quiet() {
    let place = Place::new(User::Caller);
    let mut command = place.command(&["completions", "bash"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let mut talk = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut talk).expect("text");
    assert_eq!(talk, "");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn quiet_says_nothing() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    let built = place.run(&["--quiet", "build", TASK]);
    assert_eq!((built.status, built.stdout.as_str(), built.stderr.as_str()), (0, "", ""));
    let built = place.run(&["--progress", "json", "build", "demo/two"]);
    let events: Vec<serde_json::Value> =
        built.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(events.iter().any(|event| event["event"] == "built"), "{}", built.stderr);
}

#[test]
fn data_that_cannot_be_written_is_a_failure() {
    let place = Place::new(User::Caller);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device of every Linux");
    let mut command = place.command(&["--json", "ls"]);
    let output = command.stdout(full).stderr(std::process::Stdio::piped()).output().expect("it starts");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{talk}");
    assert!(talk.contains("error: cannot write to standard output: No space left on device"), "{talk}");
}

#[test]
fn an_argument_that_is_no_text_is_refused_and_not_changed() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new(User::Caller);
    let mut command = place.command(&["env", "exec", TASK, "--", "echo"]);
    let finished = place.finish(command.arg(std::ffi::OsStr::from_bytes(b"\xff")));
    assert_eq!(finished.status, 2);
    assert!(finished.stderr.contains("is not valid UTF-8"), "{}", finished.stderr);
}
