//! Many environments of one stack at once: each has its own upper, and all have one lower.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use super::conformance::for_each_back_end;
use crate::support::{TASK, rounds};

/// Starts of the program at a time.
const STARTERS: usize = 4;

/// Runs `job` for every number below `count`, some at a time.
fn for_each_number(count: usize, job: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for starter in 0..STARTERS {
            let job = &job;
            scope.spawn(move || (starter..count).step_by(STARTERS).for_each(job));
        }
    });
}

#[test]
fn privileged_300_environments_are_mounted_at_once() {
    for_each_back_end(|place, back_end| {
        let held_by_processes = !place.is_roots();
        let count = match back_end {
            "copy" => rounds(8, 40),
            // A start of the program for every step, where for root a path will do.
            _ if held_by_processes => rounds(16, 300),
            "erofs" => 300,
            _ => rounds(60, 300),
        };
        let name = |number: usize| format!("crowd-{number}");
        let lower = "VALUE = 1\n";
        let roots: Vec<std::sync::OnceLock<PathBuf>> = (0..count).map(|_| Default::default()).collect();
        for_each_number(count, |number| {
            let mounted = place.ok(&["--back-end", back_end, "env", "mount", TASK, "--name", &name(number)]);
            let here = place.path("").display().to_string();
            let root = PathBuf::from(mounted.trim().replace("[PLACE]/", &here));
            roots[number].set(root).expect("each is mounted once");
        });
        // All are there before the first is written to, and all are written to before the first is read.
        assert_eq!(place.listing("envs").len(), count);
        let listed = place.ok(&["env", "ls"]);
        let is_up = |line: &&str| line.contains(" mounted ") || line.contains(" held ");
        assert_eq!(listed.lines().filter(is_up).count(), count, "{listed}");
        let source = |number: usize| roots[number].get().expect("mounted above").join("workspace/demo/demo");
        let write = |number: usize| {
            let exec = |script: &str| place.ok(&["env", "exec", &name(number), "--", "sh", "-c", script]);
            if held_by_processes {
                exec(&format!("echo 'MINE = {number}' >>demo/__init__.py; echo {number} >demo/own"));
                return;
            }
            let module = source(number).join("__init__.py");
            assert_eq!(fs::read_to_string(&module).expect("from the lower"), lower, "{back_end} {number}");
            fs::write(&module, format!("{lower}MINE = {number}\n")).expect("into the upper");
            fs::write(source(number).join("own"), format!("{number}\n")).expect("into the upper");
        };
        for_each_number(count, write);
        for_each_number(count, |number| {
            let read = |file: &str| fs::read_to_string(source(number).join(file)).expect("written above");
            let expected = format!("{lower}MINE = {number}\n");
            assert_eq!(read("__init__.py"), expected, "{back_end} {number}");
            assert_eq!(read("own"), format!("{number}\n"), "{back_end}");
        });
        // One lower for all, which shows none of it.
        for directory in ["images", "stubs", "farm"] {
            let made = place.listing(directory).into_iter().filter(|name| name != "pool").count();
            assert!(made <= 1, "{made} in {directory} for {count} environments");
        }
        let fresh = ["--back-end", back_end, "env", "exec", TASK, "--", "cat", "demo/__init__.py"];
        assert_eq!(place.ok(&fresh), lower, "{back_end}");
        let diff = place.ok(&["env", "diff", &name(count - 1)]);
        assert_eq!(diff, "M /workspace/demo/demo/__init__.py\nA /workspace/demo/demo/own\n", "{back_end}");
        for_each_number(count, |number| drop(place.ok(&["env", "rm", &name(number)])));
        assert_eq!(place.listing("envs"), Vec::<String>::new());
        assert_eq!(place.mounts(), Vec::<PathBuf>::new());
    });
}

#[test]
fn privileged_many_environments_at_once() {
    for_each_back_end(|place, back_end| {
        let count = if back_end == "copy" { rounds(8, 40) } else { rounds(20, 300) };
        let start = |number: usize| {
            let script = format!("cd case; echo {number} >>d/f; echo ready; read go; cat d/f");
            let mut command =
                place.command(&["--back-end", back_end, "env", "exec", TASK, "--", "sh", "-c", &script]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("it starts")
        };
        let mut children: Vec<_> = (0..count).map(start).collect();
        // All are there before the first goes.
        let mut outputs = vec![];
        for child in &mut children {
            let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
            let mut line = String::new();
            std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
            assert_eq!(line, "ready\n", "{back_end}");
            outputs.push(output);
        }
        assert_eq!(place.listing("envs").len(), count);
        for (number, (mut child, mut output)) in children.into_iter().zip(outputs).enumerate() {
            drop(child.stdin.take());
            let mut rest = String::new();
            std::io::Read::read_to_string(&mut output, &mut rest).expect("text");
            assert_eq!(rest, format!("d/f\n{number}\n"), "{back_end}");
            assert!(child.wait().expect("it ends").success());
        }
        assert_eq!(place.listing("envs"), Vec::<String>::new());
    });
}
