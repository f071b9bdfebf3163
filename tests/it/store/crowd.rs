//! Many processes on one store, some of them stopped, some killed.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use infradev_store::{Access, Error, Store};
use rustix::process::{Pid, Signal, kill_process};

use super::faults::Bench;
use super::kills::{assert_recovers, child_command, copy, directory};
use super::report::{Tally, note};
use super::scenes::{Scene, Sound, assert_whole, collect, commit};
use crate::support::{long, rounds, wait_until};

fn is_stopped(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
}

fn start(mut command: Command) -> Child {
    command.spawn().expect("it starts")
}

/// Starts `scene`, which stops at change `at`; it has ended if it has fewer changes.
fn stopped(scene: Scene, root: &std::path::Path, at: usize) -> Child {
    let mut child = start(child_command(scene, root, at, "stop", &[]));
    wait_until("it stops", || is_stopped(&child) || child.try_wait().expect("a child").is_some());
    child
}

fn changes(scene: Scene, root: &std::path::Path) -> usize {
    let bench = Arc::new(Bench::counting());
    scene.act(root, bench.clone()).expect("the operation");
    bench.kinds().len()
}

#[test]
fn a_stopped_writer_loses_nothing_to_collections() {
    let directory = directory();
    let (template, root) = (directory.path().join("template"), directory.path().join("store"));
    let mut tally = Tally::new("SIGSTOP of a writer at a change, two collections and a commit meanwhile");
    Scene::Ingest.prepare(&template);
    copy(&template, &root);
    let changes = changes(Scene::Ingest, &root);
    for at in (0..changes).step_by(if long() { 1 } else { 4 }) {
        infradev_store::remove_tree(&root).expect("an own store");
        copy(&template, &root);
        let child = stopped(Scene::Ingest, &root, at);
        let store = Store::open(&root, Access::Write).expect("it opens");
        for _ in 0..2 {
            let lease = store.lease("gc").expect("a lease");
            let mut plan = store.plan_gc(&lease, true).expect("a plan");
            plan.patience = Duration::from_millis(100);
            match store.gc(plan, &lease) {
                // Stopped in the moments of its commit: nothing was removed.
                Ok(_) | Err(Error::Busy { .. }) => {}
                Err(error) => panic!("collecting beside a writer stopped at change {at}: {error}"),
            }
        }
        commit(&store, "beside", &[b"beside it"]).expect("another writer goes on");
        assert_whole(&store);
        kill_process(Pid::from_child(&child), Signal::CONT).expect("it lives");
        let output = child.wait_with_output().expect("a child");
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "a writer stopped at change {at}: {talk}");
        assert_recovers(Scene::Ingest, &root, &format!("a writer stopped at change {at}"));
        tally.add();
    }
    note(tally);
}

#[test]
fn a_stopped_collection_does_not_harm_writers() {
    let directory = directory();
    let (template, root) = (directory.path().join("template"), directory.path().join("store"));
    let mut tally = Tally::new("SIGSTOP of a collection at a change, a writer meanwhile");
    Scene::Collect.prepare(&template);
    copy(&template, &root);
    let changes = changes(Scene::Collect, &root);
    for at in (0..changes).step_by(if long() { 1 } else { 4 }) {
        infradev_store::remove_tree(&root).expect("an own store");
        copy(&template, &root);
        let collector = stopped(Scene::Collect, &root, at);
        let writer = start(child_command(Scene::Ingest, &root, usize::MAX, "none", &[]));
        // It may have to wait for the collection, so that goes on before long.
        std::thread::sleep(Duration::from_millis(60));
        kill_process(Pid::from_child(&collector), Signal::CONT).expect("it lives");
        for child in [collector, writer] {
            let output = child.wait_with_output().expect("a child");
            let talk = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "a collection stopped at change {at}: {talk}");
        }
        assert_recovers(Scene::Ingest, &root, &format!("a collection stopped at change {at}"));
        tally.add();
    }
    note(tally);
}

#[test]
fn eight_processes_share_a_store() {
    let directory = directory();
    let root = directory.path().join("store");
    Scene::Ingest.prepare(&root);
    let mut tally = Tally::new("eight processes on one store, one of them killed");
    let scenes = [
        Scene::Ingest,
        Scene::Ingest,
        Scene::Collect,
        Scene::Revive,
        Scene::Ingest,
        Scene::Collect,
        Scene::Create,
        Scene::Ingest,
    ];
    for round in 0..rounds(6, 100) {
        let children: Vec<Child> = scenes
            .iter()
            .enumerate()
            .map(|(number, scene)| {
                let killed_at = if number == round % scenes.len() { 3 + round * 7 % 40 } else { usize::MAX };
                start(child_command(*scene, &root, killed_at, "kill", &[]))
            })
            .collect();
        for (number, child) in children.into_iter().enumerate() {
            let output = child.wait_with_output().expect("a child");
            let talk = String::from_utf8_lossy(&output.stderr);
            let scene = scenes[number];
            assert!(output.status.success() || number == round % scenes.len(), "{scene:?}: {talk}");
        }
        let store = Store::open(&root, Access::Write).expect("it opens");
        Scene::Ingest.assert_nothing_lost(&store);
        collect(&store).expect("a collection");
        assert_whole(&store);
        tally.add();
    }
    Scene::Ingest.act(&root, Arc::new(Sound)).expect("the operation");
    note(tally);
}
