//! A disk that fills up, or fails, at every change: the error says so, the store is clean, and the same again
//! completes.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use infradev_store::{Access, Error, Store};

use super::faults::{Bench, EIO, ENOSPC, Fault};
use super::full::{fill, write_until};
use super::kills::{self, copy};
use super::report::{Tally, note};
use super::scenes::{SCENES, Scene, Sound, listing};
use crate::support::{Need, lacks, long};

/// Does `scene` on a disk that fails as `fault` says at change number `at`; returns how it ended.
fn fail(scene: Scene, root: &Path, at: usize, fault: Fault) -> infradev_store::Result<()> {
    let ended = scene.act(root, Arc::new(Bench::new(at, fault)));
    if root.join("format").exists() {
        // At once, and without the sweep of an opening for writing.
        let store = Store::open(root, Access::Read).expect("it can be read");
        if fault == Fault::Full {
            assert_eq!(listing(&store, "tmp"), Vec::<String>::new(), "leftovers of {scene:?} at {at}");
        }
    }
    let store = Store::open(root, Access::Write).expect("it opens again");
    scene.assert_nothing_lost(&store);
    drop(store);
    scene.act(root, Arc::new(Sound)).expect("the same operation completes");
    scene.assert_done(&Store::open(root, Access::Write).expect("it opens again"));
    ended
}

#[test]
fn a_failure_at_every_change_leaves_a_clean_store() {
    let directory = kills::directory();
    for scene in SCENES {
        let template = directory.path().join(format!("{}-template", scene.name()));
        let root = directory.path().join("store");
        scene.prepare(&template);
        let restore = || {
            infradev_store::remove_tree(&root).expect("an own store");
            if template.exists() {
                copy(&template, &root);
            }
        };
        restore();
        let bench = Arc::new(Bench::counting());
        scene.act(&root, bench.clone()).expect("the operation");
        let changes = bench.kinds().len();
        for (name, fault) in [
            ("a full disk from", Fault::Full),
            ("ENOSPC at", Fault::Fail(ENOSPC)),
            ("EIO at", Fault::Fail(EIO)),
        ] {
            let mut tally = Tally::new(format!("{name} every change: {}", scene.name()));
            for at in (0..changes).step_by(scene.stride()) {
                restore();
                match fail(scene, &root, at, fault) {
                    // Cleaning up may fail without harm: the next opening does it.
                    Ok(()) | Err(Error::NoSpace { .. }) => {}
                    Err(_) if fault == Fault::Fail(EIO) => {}
                    Err(error) => panic!("{scene:?} at change {at}: {error:?} is not called a full disk"),
                }
                tally.add();
            }
            note(tally);
        }
    }
}

/// The index on a disk that is full, by injected errors of the calls that SQLite makes.
#[test]
fn a_full_disk_at_every_write_of_the_index_leaves_a_clean_store() {
    if lacks(Need::Program("strace")) {
        return;
    }
    let directory = kills::directory();
    for scene in [Scene::Ingest, Scene::Collect, Scene::Create] {
        let template = directory.path().join(format!("{}-template", scene.name()));
        let root = directory.path().join("store");
        scene.prepare(&template);
        let mut tally = Tally::new(format!("ENOSPC at every write of SQLite: {}", scene.name()));
        for call in ["pwrite64", "fdatasync", "fallocate"] {
            for at in (1..).step_by(if long() { 1 } else { 6 }) {
                infradev_store::remove_tree(&root).expect("an own store");
                if template.exists() {
                    copy(&template, &root);
                }
                // From there on, as a disk stays full.
                let inject = format!("inject={call}:error=ENOSPC:when={at}+");
                let trace = format!("trace={call}");
                let tracer = ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
                let command = kills::child_command(scene, &root, usize::MAX, "none", &tracer).output();
                let output = command.expect("it starts");
                let failed = !output.status.success();
                if failed {
                    let talk = String::from_utf8_lossy(&output.stderr);
                    // SQLite does not say why a sync failed.
                    let said = talk.contains("NoSpace") || (call == "fdatasync" && talk.contains("1034"));
                    assert!(said, "{scene:?}, {call} number {at}: {talk}");
                }
                let context = format!("{} with a full disk at {call} number {at}", scene.name());
                kills::assert_recovers(scene, &root, &context);
                if !failed {
                    break;
                }
                tally.add();
            }
        }
        note(tally);
    }
}

/// Real small file systems in memory: bytes, then inodes, run out at ever later moments.
#[test]
fn privileged_a_small_file_system_fills_up() {
    if lacks(Need::Root) {
        return;
    }
    let place = tempfile::tempdir_in(crate::support::work_directory()).expect("a directory");
    let mount = place.path().join("disk");
    fs::create_dir(&mount).expect("an own directory");
    let (mut bytes, mut inodes) = (
        Tally::new("a tmpfs without bytes left: ingest, collect, mount"),
        Tally::new("a tmpfs without inodes left: ingest, collect, mount"),
    );
    for scene in [Scene::Ingest, Scene::Collect, Scene::Mount] {
        for left in 0..if long() { 40 } else { 10 } {
            for by_inodes in [false, true] {
                let options = "size=8m,nr_inodes=600";
                kills::system("mount", &["-t", "tmpfs", "-o", options, "none", &mount.display().to_string()]);
                let root = mount.join("store");
                scene.prepare(&root);
                let ballast = mount.join("ballast");
                fs::create_dir(&ballast).expect("an own directory");
                if by_inodes {
                    fill(&ballast, left)
                } else {
                    write_until(&ballast.join("bytes"), left * left * 8192)
                }
                let ended = scene.act(&root, Arc::new(Sound));
                if let Err(error) = &ended {
                    let text = format!("{error:?}");
                    assert!(matches!(error, Error::NoSpace { .. }), "{scene:?}, {left} left: {text}");
                }
                let store = Store::open(&root, Access::Read).expect("it can be read");
                super::scenes::assert_whole(&store);
                assert_eq!(listing(&store, "tmp"), Vec::<String>::new());
                drop(store);
                fs::remove_dir_all(&ballast).expect("an own directory");
                scene.act(&root, Arc::new(Sound)).expect("with room, the same operation completes");
                scene.assert_done(&Store::open(&root, Access::Write).expect("it opens"));
                kills::unmount(&mount);
                if by_inodes { inodes.add() } else { bytes.add() }
            }
        }
    }
    note(bytes);
    note(inodes);
}
