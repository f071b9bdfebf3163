//! Random histories of a store against a model: what is rooted stays, what is not can go, nothing breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use infradev_store::references::{Reference, write_head};
use infradev_store::{Access, Depth, LayerId, Lease, ObjectId, RootKind, Stack, Store};
use proptest::prelude::*;

use super::kills::{child_command, was_killed};
use super::report::{Tally, note};
use super::scenes::Scene;
use crate::support::{rounds, work_directory};

#[derive(Debug, Clone)]
enum Step {
    /// Commits a layer with these contents.
    Commit(BTreeSet<u8>),
    /// Roots, or releases, the n-th layer ever made.
    Root(usize, u8),
    Release(u8),
    /// Begins a writer that puts these contents and stays; ends the eldest, with or without committing.
    Begin(BTreeSet<u8>),
    End(bool),
    Collect,
    /// Claims the n-th layer, as a mount does; or lets the eldest claim go.
    Hold(usize),
    Let,
    /// Another process is killed at its n-th change.
    Kill(usize, usize),
    Reopen,
    ForgetIndex,
}

fn step() -> impl Strategy<Value = Step> {
    let contents = || prop::collection::btree_set(0u8..8, 1..4);
    prop_oneof![
        4 => contents().prop_map(Step::Commit),
        3 => (0usize..8, 0u8..3).prop_map(|(layer, name)| Step::Root(layer, name)),
        2 => (0u8..3).prop_map(Step::Release),
        2 => contents().prop_map(Step::Begin),
        2 => any::<bool>().prop_map(Step::End),
        4 => Just(Step::Collect),
        2 => (0usize..8).prop_map(Step::Hold),
        1 => Just(Step::Let),
        1 => (0usize..3, 0usize..60).prop_map(|(scene, at)| Step::Kill(scene, at)),
        1 => Just(Step::Reopen),
        1 => Just(Step::ForgetIndex),
    ]
}

fn content(number: u8) -> Vec<u8> {
    // One of them is large enough not to be held in memory.
    vec![number; if number == 7 { (1 << 20) + 17 } else { 10 + usize::from(number) }]
}

fn encoding(contents: &BTreeSet<u8>) -> Vec<u8> {
    let mut references: Vec<Reference> = contents
        .iter()
        .map(|&number| Reference {
            object: ObjectId::of(&content(number)),
            size: content(number).len() as u64,
        })
        .collect();
    references.sort();
    let mut encoding = vec![];
    write_head(&references, &mut encoding);
    encoding.extend(contents);
    encoding
}

/// Writers that live on while the store is used by others, as other processes do.
struct Writer {
    store: Store,
    contents: BTreeSet<u8>,
}

/// How many processes were killed in the middle of something.
static KILLED: AtomicUsize = AtomicUsize::new(0);

fn check(history: Vec<Step>) {
    let directory = tempfile::tempdir_in(work_directory()).expect("a directory");
    let root = directory.path().join("store");
    let open = || Store::open(&root, Access::Write).expect("a store");
    let mut store = open();
    let mut layers: Vec<LayerId> = vec![];
    let mut roots: BTreeMap<u8, LayerId> = BTreeMap::new();
    // A writer's lease and batch borrow its store, so each lives in a thread and is told what to do.
    let mut writers: std::collections::VecDeque<(
        std::sync::mpsc::Sender<bool>,
        std::thread::JoinHandle<Option<LayerId>>,
    )> = Default::default();
    let mut held: std::collections::VecDeque<(Lease, LayerId)> = Default::default();
    for step in history {
        match step {
            Step::Commit(contents) => {
                let lease = store.lease("commit").expect("a lease");
                let ingest = store.ingest(&lease).expect("a batch");
                for number in &contents {
                    ingest.put(&mut &content(*number)[..]).expect("an object");
                }
                layers.push(ingest.put_layer(&encoding(&contents)).expect("a layer"));
                ingest.commit().expect("a commit");
            }
            Step::Root(number, name) => {
                let Some(layer) = layers.get(number % layers.len().max(1)) else { continue };
                let lease = store.lease("root").expect("a lease");
                if lease.hold(&[*layer]).expect("held").is_empty() {
                    let stack = Stack::new(vec![*layer]);
                    store.set_root(RootKind::Pin, &format!("pin/{name}"), &stack).expect("a root");
                    roots.insert(name, *layer);
                }
            }
            Step::Release(name) => {
                let was_there = store.remove_root(RootKind::Pin, &format!("pin/{name}")).expect("an answer");
                assert_eq!(was_there, roots.remove(&name).is_some());
            }
            Step::Begin(contents) => {
                let (tell, told) = std::sync::mpsc::channel();
                let (ready, begun) = std::sync::mpsc::channel();
                let writer = Writer { store: open(), contents };
                let thread = std::thread::spawn(move || {
                    let lease = writer.store.lease("writer").expect("a lease");
                    let ingest = writer.store.ingest(&lease).expect("a batch");
                    for number in &writer.contents {
                        ingest.put(&mut &content(*number)[..]).expect("an object");
                    }
                    ready.send(()).expect("the test waits");
                    if told.recv() != Ok(true) {
                        return None;
                    }
                    let layer = ingest.put_layer(&encoding(&writer.contents)).expect("a layer");
                    ingest.commit().expect("whatever was collected meanwhile");
                    Some(layer)
                });
                begun.recv().expect("it begins");
                writers.push_back((tell, thread));
            }
            Step::End(commits) => {
                let Some((tell, thread)) = writers.pop_front() else { continue };
                tell.send(commits).expect("it listens");
                layers.extend(thread.join().expect("no panic"));
            }
            Step::Collect => {
                let lease = store.lease("gc").expect("a lease");
                let plan = store.plan_gc(&lease, true).expect("a plan");
                store.gc(plan, &lease).expect("a collection");
                let live: BTreeSet<LayerId> =
                    roots.values().copied().chain(held.iter().map(|(_, layer)| *layer)).collect();
                let left: BTreeSet<LayerId> = store.layers().expect("a listing").into_iter().collect();
                assert!(live.is_subset(&left), "a rooted layer went");
                assert!(left.is_subset(&live), "a layer without root or lease stayed");
            }
            Step::Hold(number) => {
                let Some(layer) = layers.get(number % layers.len().max(1)) else { continue };
                let lease = store.lease("mount").expect("a lease");
                if lease.hold(&[*layer]).expect("held").is_empty() {
                    held.push_back((lease, *layer));
                }
            }
            Step::Let => drop(held.pop_front()),
            Step::Kill(scene, at) => {
                let scene = [Scene::Ingest, Scene::Collect, Scene::Create][scene];
                let output = child_command(scene, &root, at, "kill", &[]).output().expect("it starts");
                let talk = String::from_utf8_lossy(&output.stderr);
                // With few changes to make, it ends before.
                assert!(was_killed(output.status) || output.status.success(), "{scene:?}: {talk}");
                KILLED.fetch_add(usize::from(was_killed(output.status)), Ordering::Relaxed);
            }
            Step::Reopen => store = open(),
            Step::ForgetIndex => {
                drop(store);
                for suffix in ["", "-wal", "-shm"] {
                    let _may_be_absent = std::fs::remove_file(root.join(format!("index.db{suffix}")));
                }
                store = open();
            }
        }
        let report = store.verify(Depth::ReadData, &()).expect("a report");
        assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{report:?}");
    }
    for (tell, thread) in writers {
        let _it_may_have_ended = tell.send(false);
        thread.join().expect("no panic");
    }
}

#[test]
fn random_histories_keep_the_promises() {
    let mut histories = Tally::new("random histories against a model");
    let mut kills = Tally::new("kill -9 at a random change of a random history");
    let cases = rounds(12, 400);
    let config =
        ProptestConfig { cases: cases as u32, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(history in prop::collection::vec(step(), 1..24))| check(history));
    (0..cases).for_each(|_| histories.add());
    (0..KILLED.load(Ordering::Relaxed)).for_each(|_| kills.add());
    note(histories);
    note(kills);
}
