//! Garbage collection beside everything else.

use std::fs;
use std::process::Stdio;

use infradev_store::references::{Reference, write_head};
use infradev_store::{Access, Depth, LayerId, ObjectId, Store};

use crate::support::{Need, Place, TASK, User, assert_failed, lacks, wait_until, work_directory};

fn encoding(contents: &[&[u8]], mark: &str) -> Vec<u8> {
    let reference = |content: &&[u8]| Reference { object: ObjectId::of(content), size: content.len() as u64 };
    let mut references: Vec<Reference> = contents.iter().map(reference).collect();
    references.sort();
    references.dedup();
    let mut encoding = vec![];
    write_head(&references, &mut encoding);
    encoding.extend_from_slice(mark.as_bytes());
    encoding
}

/// Commits a layer of `contents` under a lease that ends here.
fn commit(store: &Store, contents: &[&[u8]], mark: &str) -> LayerId {
    let lease = store.lease("test").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    for content in contents {
        ingest.put_bytes(content).expect("an object");
    }
    let layer = ingest.put_layer(&encoding(contents, mark)).expect("a layer");
    ingest.commit().expect("a commit");
    layer
}

fn gc(store: &Store) -> infradev_store::GcDone {
    let lease = store.lease("gc").expect("a lease");
    let plan = store.plan_gc(&lease, true).expect("a plan");
    store.gc(plan, &lease).expect("a collection")
}

fn assert_whole(store: &Store) {
    let report = store.verify(Depth::ReadData, &()).expect("a report");
    assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{report:?}");
}

fn scratch() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in(work_directory()).expect("a directory");
    let store = Store::open(&directory.path().join("store"), Access::Write).expect("a store");
    (directory, store)
}

#[test]
fn a_known_object_survives_its_collection() {
    let (_directory, store) = scratch();
    let (shared, other): (&[u8], &[u8]) = (b"shared content", b"other content");
    commit(&store, &[shared, other], "first");
    // A writer finds the content known, and writes nothing.
    let lease = store.lease("writer").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    ingest.put_bytes(shared).expect("an object");
    assert_eq!(ingest.written(), 0, "deduplicated");
    // Its layer goes meanwhile, and the object with it: but the bytes wait in the trash for the writer.
    let done = gc(&store);
    assert_eq!((done.layers, done.objects, done.waiting), (1, 2, 1));
    assert!(!store.layout().object(&ObjectId::of(shared)).exists());
    let layer = ingest.put_layer(&encoding(&[shared], "second")).expect("a layer");
    ingest.commit().expect("the object comes back from the trash");
    assert!(store.has_layer(&layer));
    assert_whole(&store);
    // With the writer gone, the rest of the trash goes too, and so does the layer that has no root.
    drop(lease);
    gc(&store);
    gc(&store);
    assert_eq!(fs::read_dir(store.layout().root().join("trash")).expect("a directory").count(), 0);
}

#[test]
fn a_layer_that_was_claimed_before_it_was_there_keeps_its_objects() {
    let (_directory, store) = scratch();
    let shared: &[u8] = b"shared content";
    commit(&store, &[shared], "first");
    // A commit claims its layers first, and gives them their names last: a plan is made in between.
    let lease = store.lease("writer").expect("a lease");
    let second = encoding(&[shared], "second");
    assert_eq!(lease.hold(&[LayerId::of(&second)]).expect("claimed").len(), 1, "it is not there yet");
    let collector = store.lease("gc").expect("a lease");
    let plan = store.plan_gc(&collector, true).expect("a plan");
    assert_eq!(plan.objects, [ObjectId::of(shared)]);
    let ingest = store.ingest(&lease).expect("a batch");
    ingest.put_bytes(shared).expect("an object");
    assert_eq!(ingest.written(), 0, "deduplicated");
    ingest.put_layer(&second).expect("a layer");
    ingest.commit().expect("a commit");
    let done = store.gc(plan, &collector).expect("a collection");
    assert_eq!((done.layers, done.objects), (1, 0));
    assert_whole(&store);
}

#[test]
fn a_put_revives_what_was_thrown_away_before() {
    let (_directory, store) = scratch();
    let content: &[u8] = b"thrown away";
    commit(&store, &[content], "first");
    let bystander = store.lease("keeps the trash full").expect("a lease");
    assert_eq!(gc(&store).waiting, 1);
    let lease = store.lease("writer").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    ingest.put_bytes(content).expect("an object");
    assert_eq!(ingest.written(), 0, "taken back, not written again");
    drop(bystander);
    // Whatever gc does now: the writer's lease is younger than the batch, but it has the object back already.
    gc(&store);
    ingest.put_layer(&encoding(&[content], "second")).expect("a layer");
    ingest.commit().expect("a commit");
    assert_whole(&store);
}

#[test]
fn clocks_do_not_matter() {
    let (_directory, store) = scratch();
    let layer = commit(&store, &[b"kept"], "first");
    let lease = store.lease("reader").expect("a lease");
    assert_eq!(lease.hold(&[layer]).expect("held"), []);
    // The lease says that it began in 1970, its file that it was changed in 2100: only the lock counts.
    let path = store.layout().root().join("leases").join(lease.id());
    for time in ["@0", "2100-01-01"] {
        let touched = std::process::Command::new("touch").args(["--date", time]).arg(&path).status();
        assert!(touched.expect("touch runs").success());
        let again = Store::open(store.layout().root(), Access::Write).expect("opening sweeps the dead");
        assert!(path.exists(), "a live lease is not swept");
        assert_eq!(gc(&again).layers, 0, "a held layer is live");
    }
    drop(lease);
    assert_eq!(gc(&store).layers, 1);
}

#[test]
fn a_dead_lease_is_swept_with_its_leftovers() {
    let (_directory, store) = scratch();
    let leases = store.layout().root().join("leases");
    let header = r#"{"pid":1,"purpose":"dead","started":1}"#;
    fs::write(leases.join("dead"), format!("{header}\n")).expect("an own file");
    let staging = store.layout().root().join("tmp/dead/below");
    fs::create_dir_all(&staging).expect("an own directory");
    fs::write(staging.join("half"), "written").expect("an own file");
    fs::create_dir_all(store.layout().root().join("tmp/orphan")).expect("an own directory");
    let _swept = Store::open(store.layout().root(), Access::Write).expect("a store");
    for directory in ["leases", "tmp"] {
        assert_eq!(
            fs::read_dir(store.layout().root().join(directory)).expect("a directory").count(),
            0,
            "{directory}"
        );
    }
}

#[test]
fn an_unreadable_live_lease_stops_the_collection() {
    let (_directory, store) = scratch();
    commit(&store, &[b"x"], "first");
    let path = store.layout().root().join("leases/odd");
    fs::write(&path, "no header\n").expect("an own file");
    let file = fs::File::open(&path).expect("an own file");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    let own = store.lease("gc").expect("a lease");
    let refused = store.plan_gc(&own, true).expect_err("what cannot be judged is live");
    assert!(refused.to_string().contains("leases/odd cannot be read"), "{refused}");
}

#[test]
fn nothing_to_keep_needs_a_clear_word() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    place.ok(&["rm", TASK]);
    let talk = "
error: the store [PLACE]/store has no roots: collecting would remove everything
hint: give --all if everything may go";
    assert_failed(&place.run(&["gc"]), 2, talk);
    assert!(!place.listing("layers").is_empty());
    place.ok(&["gc", "--all"]);
    assert_eq!(place.listing("layers"), Vec::<String>::new());
    assert_eq!(place.listing("images"), Vec::<String>::new());
    assert!(place.contents().is_empty(), "{:?}", place.contents());
}

#[test]
fn a_pin_outlives_its_task() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    let before = place.contents().len();
    place.ok(&["pin", TASK, "--name", "release"]);
    place.ok(&["rm", TASK]);
    place.ok(&["gc"]);
    assert_eq!(place.contents().len(), before, "the pin took the task's place");
    place.ok(&["build", TASK, "--offline", "--require-hit"]);
    place.ok(&["rm", TASK]);
    place.ok(&["unpin", "release"]);
    place.ok(&["gc", "--all"]);
    assert!(place.contents().is_empty());
}

#[test]
fn a_stopped_build_keeps_what_it_needs() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.edit("demo/project.toml", "&& ls native", "&& sleep 1 && ls native");
    let mut command = place.command(&["build", TASK]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_until("the first layers are there", || place.listing("layers").len() >= 4);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it lives");
    let layers = place.listing("layers");
    // However long it sleeps: it holds a lease, and so it is alive.
    place.ok(&["gc", "--all"]);
    place.ok(&["gc", "--all"]);
    assert_eq!(place.listing("layers"), layers);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("it lives");
    assert!(child.wait().expect("it ends").success());
    place.assert_whole();
    assert_eq!(place.sh("tool"), "tool ran\n");
}

#[test]
fn a_run_keeps_its_files_through_collections() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    let script = "echo ready; read line; cat $(find /workspace /opt/env -type f) | sha256sum";
    let expected = place.sh("cat $(find /workspace /opt/env -type f) | sha256sum");
    let mut command = place.command(&["env", "exec", TASK, "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
    place.ok(&["rm", TASK]);
    place.ok(&["gc", "--all"]);
    // Whatever the page cache held does not count.
    let _only_root_may = fs::write("/proc/sys/vm/drop_caches", "3");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"go\n").expect("it reads");
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
    assert_eq!(line, expected);
    assert!(child.wait().expect("it ends").success());
    place.ok(&["gc", "--all"]);
    assert!(place.contents().is_empty(), "the run was the last to need them");
}
