//! `env exec`: statuses, streams, terminals, signals, variables, binds.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use super::for_each_user;
use crate::support::{Need, Place, TASK, assert_failed, lacks, wait_until};

fn status(place: &Place, command: &[&str]) -> i32 {
    place.run(&[&["env", "exec", TASK, "--"], command].concat()).status
}

#[test]
fn statuses_pass_through() {
    for_each_user(|place| {
        for wanted in [0, 1, 2, 3, 42, 124, 255] {
            assert_eq!(status(place, &["sh", "-c", &format!("exit {wanted}")]), wanted);
        }
        for signal in [1, 2, 9, 11, 15] {
            assert_eq!(status(place, &["sh", "-c", &format!("kill -{signal} $$")]), 128 + signal);
        }
        assert_eq!(place.listing("envs"), Vec::<String>::new(), "fresh environments are discarded");
        assert_eq!(place.listing("leases"), Vec::<String>::new());
    });
}

#[test]
fn our_own_failures_have_their_own_statuses() {
    for_each_user(|place| {
        let run = |command: &[&str]| place.run(&[&["env", "exec", TASK, "--"], command].concat());
        assert_failed(&run(&["nonesuch"]), 127, "error: `nonesuch` is not found in the environment");
        assert_failed(
            &run(&["/opt/env/bin/none"]),
            127,
            "error: `/opt/env/bin/none` is not found in the environment",
        );
        let talk = "error: `/workspace/demo/link.py` cannot be executed: Permission denied (os error 13)";
        assert_failed(&run(&["/workspace/demo/link.py"]), 126, talk);
        let nowhere = place.run(&["env", "exec", "--workdir", "/nowhere", TASK, "--", "true"]);
        assert_eq!(nowhere.status, 125, "{}", nowhere.stderr);
        assert!(nowhere.stderr.contains("cannot change to the directory /nowhere"), "{}", nowhere.stderr);
        let bind = place.run(&["env", "exec", "--bind", "/nowhere:/x", TASK, "--", "true"]);
        assert_eq!(bind.status, 125, "{}", bind.stderr);
        assert!(bind.stderr.contains("/nowhere"), "{}", bind.stderr);
        let bind = place.run(&["env", "exec", "--bind", "relative", TASK, "--", "true"]);
        assert_eq!(bind.status, 125, "{}", bind.stderr);
    });
}

#[test]
fn streams_pass_through() {
    for_each_user(|place| {
        let script = "cat; echo to-stderr >&2";
        let mut command = place.command(&["env", "exec", TASK, "--", "sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        // More than a pipe holds, and not text.
        let bytes: Vec<u8> = (0..1_000_000u32).flat_map(|number| number.to_le_bytes()).collect();
        let mut input = child.stdin.take().expect("a pipe");
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || input.write_all(&sent));
        let output = child.wait_with_output().expect("it ends");
        writer.join().expect("no panic").expect("all was read");
        assert!(output.stdout == bytes, "standard input came out changed");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "to-stderr\n");
    });
}

#[test]
fn a_terminal_passes_through() {
    if lacks(Need::Program("script")) {
        return;
    }
    for_each_user(|place| {
        let line = format!(
            "{} env exec {TASK} -- sh -c 'tty; test -t 0 && test -t 1 && test -t 2 && echo terminal; exit 7'",
            place.program().display()
        );
        let mut command = place.tool("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let finished = place.finish(&mut command);
        assert_eq!(finished.status, 7, "{}", finished.stdout);
        assert!(finished.stdout.contains("terminal"), "{}", finished.stdout);
    });
}

#[test]
fn signals_are_forwarded() {
    for_each_user(|place| {
        let script = "trap 'echo got TERM; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
        let mut command = place.command(&["env", "exec", TASK, "--", "sh", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
        assert_eq!(lines.next().expect("a line").expect("text"), "got TERM");
        assert_eq!(child.wait().expect("it ends").code(), Some(9));
        assert_eq!(place.listing("envs"), Vec::<String>::new());
    });
}

#[test]
fn variables_binds_and_directories() {
    for_each_user(|place| {
        let shared = place.path("shared");
        fs::create_dir(&shared).expect("an own directory");
        fs::write(shared.join("given"), "given\n").expect("an own file");
        // Whoever the run is outside may write to it.
        fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .expect("an own directory");
        let bind = format!("{}:/mnt/shared", shared.display());
        let script = "cat /mnt/shared/given; echo no >/mnt/shared/made 2>/dev/null || echo read-only";
        assert_eq!(
            place.ok(&["env", "exec", "--bind", &bind, TASK, "--", "sh", "-c", script]),
            "given\nread-only\n"
        );
        let script = "echo made >/mnt/shared/made";
        place.ok(&["env", "exec", "--bind", &format!("{bind}:rw"), TASK, "--", "sh", "-c", script]);
        assert_eq!(fs::read_to_string(shared.join("made")).expect("it was made"), "made\n");
        let mut command = place.command(&[
            "env",
            "exec",
            "--env",
            "ONE=1",
            "--env",
            "TAKEN",
            "--env",
            "ABSENT",
            "--workdir",
            "/opt",
            TASK,
            "--",
            "sh",
            "-c",
            "echo $ONE $TAKEN ${ABSENT-unset}; pwd",
        ]);
        let finished = place.finish(command.env("TAKEN", "taken"));
        assert_eq!(finished.stdout, "1 taken unset\n/opt\n", "{}", finished.stderr);
    });
}

#[test]
fn many_at_once() {
    for_each_user(|place| {
        let start = |number: usize| {
            let script = format!("echo {number} >/workspace/demo/mine; sleep 0.2; cat /workspace/demo/mine");
            let mut command = place.command(&["env", "exec", TASK, "--", "sh", "-c", &script]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let children: Vec<_> = (0..16).map(start).collect();
        for (number, child) in children.into_iter().enumerate() {
            let output = child.wait_with_output().expect("it ends");
            let talk = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{number}\n"), "{talk}");
        }
        place.assert_whole();
    });
}

#[test]
fn nothing_survives_a_kill() {
    for_each_user(|place| {
        // A daemon in a session of its own, and a child that ignores everything.
        let script =
            "setsid sh -c 'trap \"\" TERM INT HUP; sleep 4711' & trap '' TERM; echo ready; sleep 4711";
        let mut command = place.command(&["env", "exec", TASK, "--", "sh", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        assert!(place.processes().len() > 1, "the run is there");
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        wait_until("all processes are gone", || place.processes().is_empty());
        assert_eq!(place.mounts(), Vec::<std::path::PathBuf>::new());
        assert!(place.ok(&["env", "ls"]).contains(" killed "), "what is left of it is shown as that");
        place.ok(&["gc", "--dry-run"]);
        assert_eq!(place.listing("envs"), Vec::<String>::new(), "the next command sweeps");
        place.assert_whole();
    });
}
