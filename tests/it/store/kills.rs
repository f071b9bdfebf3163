//! `kill -9` at every change of every operation: nothing is lost, and the same operation completes.
//!
//! The operation runs in a process of its own, which is this test program again, started for one test
//! ([`child`]) and told by a variable what to do. SQLite's own writes do not pass the store's seam, so strace
//! kills at each of those, where there is one.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use infradev_store::{Access, Store};

use super::faults::{Bench, Fault};
use super::report::{Tally, note};
use super::scenes::{SCENES, Scene, Sound, collect};
use crate::support::{Need, lacks, long, work_directory};

const CHILD: &str = "INFRADEV_TEST_CHILD";

/// Where stores of killed processes lie: a kill loses nothing that was written, so memory will do.
pub(super) fn directory() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    let place = if memory.is_dir() && !long() { memory } else { work_directory() };
    tempfile::tempdir_in(&place).or_else(|_| tempfile::tempdir_in(work_directory())).expect("a directory")
}

/// Copies a tree of files and directories.
pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("an own directory");
    for entry in fs::read_dir(from).expect("an own directory").flatten() {
        let to = to.join(entry.file_name());
        match entry.file_type().expect("an own file").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), &to).expect("an own file")),
        }
    }
}

/// Unmounts what children that other tests are just starting may still have, for a moment.
pub(super) fn unmount(place: &Path) {
    let gone = || {
        Command::new("umount").arg(place).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    crate::support::wait_until(&format!("nobody uses {}", place.display()), gone);
}

pub(super) fn system(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it starts");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {talk}");
}

/// The command that runs `scene` on `root` in a process of its own.
pub(super) fn child_command(scene: Scene, root: &Path, at: usize, fault: &str, tracer: &[&str]) -> Command {
    let program = std::env::current_exe().expect("this program");
    let arguments = ["--exact", "store::kills::child", "--nocapture"];
    let mut command = match tracer.split_first() {
        Some((tracer, rest)) => {
            let mut command = Command::new(tracer);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(arguments).env(CHILD, format!("{} {at} {fault} {}", scene.name(), root.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The operation, when this program was started for it.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let mut words = task.splitn(4, ' ');
    let mut word = || words.next().expect("four words");
    let (scene, at) = (Scene::of(word()), word().parse().expect("a number"));
    let fault = match word() {
        "kill" => Fault::Kill,
        "tear" => Fault::Tear,
        "stop" => Fault::Stop,
        _ => Fault::Kill,
    };
    scene.act(Path::new(word()), Arc::new(Bench::new(at, fault))).expect("the operation");
}

pub(super) fn was_killed(status: ExitStatus) -> bool {
    // 137: strace passes a signal on, or says it like a shell.
    status.signal() == Some(9) || status.code() == Some(137)
}

/// Checks what a killed process left, does the same again, and collects.
pub(super) fn assert_recovers(scene: Scene, root: &Path, context: &str) {
    let begun = std::panic::catch_unwind(|| {
        let store = Store::open(root, Access::Write).expect("it opens again");
        scene.assert_nothing_lost(&store);
        drop(store);
        scene.act(root, Arc::new(Sound)).expect("the same operation completes");
        let store = Store::open(root, Access::Write).expect("it opens again");
        scene.assert_done(&store);
        collect(&store).expect("a collection");
        super::scenes::assert_whole(&store);
        drop(store);
        let store = Store::open(root, Access::Write).expect("it opens again");
        assert_eq!(super::scenes::listing(&store, "tmp"), Vec::<String>::new());
        assert_eq!(super::scenes::listing(&store, "trash"), Vec::<String>::new());
    });
    if let Err(panic) = begun {
        let text = panic.downcast_ref::<String>().cloned();
        panic!("{context}: {}", text.unwrap_or_else(|| "it panicked".to_owned()));
    }
}

#[test]
fn a_kill_at_every_change_loses_nothing() {
    let directory = directory();
    for scene in SCENES {
        let template = directory.path().join(format!("{}-template", scene.name()));
        let root = directory.path().join("store");
        let restore = || {
            infradev_store::remove_tree(&root).expect("an own store");
            if template.exists() {
                copy(&template, &root);
            }
        };
        scene.prepare(&template);
        restore();
        let bench = Arc::new(Bench::counting());
        scene.act(&root, bench.clone()).expect("the operation");
        let kinds = bench.kinds();
        let mut tally = Tally::new(format!("kill -9 at every change: {}", scene.name()));
        for at in (0..kinds.len()).step_by(scene.stride()) {
            for fault in ["kill", "tear"].into_iter().take(if kinds[at] == "write" { 2 } else { 1 }) {
                restore();
                let context = format!("{} killed ({fault}) at change {at}, {}", scene.name(), kinds[at]);
                let output = child_command(scene, &root, at, fault, &[]).output().expect("it starts");
                let talk = String::from_utf8_lossy(&output.stderr);
                assert!(was_killed(output.status), "{context}: {:?} {talk}", output.status);
                assert_recovers(scene, &root, &context);
                tally.add();
            }
        }
        note(tally);
    }
}

#[test]
fn a_kill_at_every_write_of_the_index_loses_nothing() {
    if lacks(Need::Program("strace")) {
        return;
    }
    let directory = directory();
    let scenes = [Scene::Ingest, Scene::Collect, Scene::Mirror, Scene::Create];
    for scene in scenes.into_iter().take(if long() { 4 } else { 2 }) {
        let template = directory.path().join(format!("{}-template", scene.name()));
        let root = directory.path().join("store");
        scene.prepare(&template);
        let mut tally = Tally::new(format!("kill -9 at every write of SQLite: {}", scene.name()));
        for call in ["pwrite64", "fdatasync", "ftruncate"] {
            for at in (1..).step_by(if long() { 1 } else { 5 }) {
                infradev_store::remove_tree(&root).expect("an own store");
                if template.exists() {
                    copy(&template, &root);
                }
                let inject = format!("inject={call}:signal=SIGKILL:when={at}");
                let trace = format!("trace={call}");
                let tracer = ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
                let output =
                    child_command(scene, &root, usize::MAX, "none", &tracer).output().expect("it starts");
                if output.status.success() {
                    break;
                }
                let context = format!("{} killed at {call} number {at}", scene.name());
                let talk = String::from_utf8_lossy(&output.stderr);
                assert!(was_killed(output.status), "{context}: {:?} {talk}", output.status);
                assert_recovers(scene, &root, &context);
                tally.add();
            }
        }
        note(tally);
    }
}
