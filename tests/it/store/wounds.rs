//! Every kind of file of a store, wounded in every way: found, named, never served, and healed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use infradev_store::{Access, Depth, Store};

use super::packs::place as packed_place;
use super::report::{Tally, note};
use super::scenes::{assert_whole, commit, overwrite, record, tree};
use crate::support::{Need, Place, TASK, User, lacks, long};

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Object,
    Layer,
    Record,
    Metadata,
    Task,
    Pin,
    State,
    Index,
    Pack,
    Table,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wound {
    Emptied,
    Cut,
    Flipped,
    Swapped,
    Directory,
    Gone,
}

const PARTS: [Part; 10] = [
    Part::Object,
    Part::Layer,
    Part::Record,
    Part::Metadata,
    Part::Task,
    Part::Pin,
    Part::State,
    Part::Index,
    Part::Pack,
    Part::Table,
];
const WOUNDS: [Wound; 6] =
    [Wound::Emptied, Wound::Cut, Wound::Flipped, Wound::Swapped, Wound::Directory, Wound::Gone];

const SHOWN: &str = "VALUE = 1\ntool ran\n";
const SHOW: &str = "cat demo/__init__.py; tool";

/// The files of a part that hold something, by size.
fn files(place: &Place, part: Part) -> Vec<PathBuf> {
    let below = match part {
        Part::Object => "objects",
        Part::Layer => "layers",
        Part::Record => "steps",
        Part::Metadata if !place.listing("images").is_empty() => "images",
        Part::Metadata => "stubs",
        Part::Task => "roots/tasks",
        Part::Pin => "roots/pins",
        Part::State => "envs",
        Part::Index => return vec![place.store().join("index.db")],
        Part::Pack | Part::Table => {
            let extension = if part == Part::Pack { ".sqfs" } else { ".table" };
            let packs = place.listing("packs").into_iter().filter(|name| name.ends_with(extension));
            return packs.map(|name| place.store().join("packs").join(name)).collect();
        }
    };
    let mut found = vec![];
    let mut directories = vec![place.store().join(below)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of the store").flatten() {
            let kind = entry.file_type().expect("an own file");
            if kind.is_dir() && entry.file_name() != "pool" {
                directories.push(entry.path());
            } else if kind.is_file() && entry.metadata().expect("an own file").len() > 0 {
                found.push(entry.path());
            }
        }
    }
    found.retain(|path| part != Part::State || path.ends_with("state.json"));
    found.sort_by_key(|path| (fs::metadata(path).expect("an own file").len(), path.clone()));
    found
}

/// Wounds the first file of a part; returns it if there was something to wound.
fn wound(place: &Place, part: Part, wound: Wound) -> Option<PathBuf> {
    let files = files(place, part);
    let path = match part {
        // One whose loss shows.
        Part::Object => files.iter().find(|path| fs::read(path).is_ok_and(|text| text == b"VALUE = 1\n"))?,
        _ => files.last()?,
    };
    let bytes = fs::read(path).expect("an own file");
    let is_stub = path.starts_with(place.store().join("stubs"));
    match wound {
        Wound::Emptied => overwrite(path, b""),
        Wound::Cut => overwrite(path, &bytes[..bytes.len() / 2]),
        Wound::Flipped => {
            let mut bytes = bytes.clone();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            overwrite(path, &bytes);
        }
        Wound::Swapped => {
            let other = files.iter().find(|other| {
                *other != path && fs::read(other).is_ok_and(|others| is_stub || others != bytes)
            })?;
            let between = place.path("between");
            fs::rename(path, &between).expect("an own file");
            fs::rename(other, path).expect("an own file");
            fs::rename(&between, other).expect("an own file");
        }
        Wound::Directory => {
            fs::remove_file(path).expect("an own file");
            fs::create_dir(path).expect("an own directory");
            fs::write(path.join("inside"), "").expect("an own file");
        }
        Wound::Gone => fs::remove_file(path).expect("an own file"),
    }
    place.give_to_user();
    Some(path.clone())
}

/// What `verify` must say for a part, and whether the quick check says it too.
fn expected(part: Part, wound: Wound) -> (Option<&'static str>, bool) {
    match part {
        Part::Object => (Some("object "), wound != Wound::Flipped),
        Part::Layer if wound == Wound::Gone => (Some("root "), true),
        Part::Layer => (Some("layer "), true),
        // A record that is gone is one that was never written.
        Part::Record if wound == Wound::Gone => (None, true),
        Part::Record => (Some("record "), true),
        // Made anew when it is needed.
        Part::Metadata if wound == Wound::Gone => (None, false),
        Part::Metadata => (Some("damaged: "), false),
        Part::Task | Part::Pin | Part::State if wound == Wound::Gone => (None, true),
        Part::Task | Part::Pin | Part::State => (Some("root "), true),
        // Nothing tells of a pack without its table, but its objects are missing.
        Part::Table if wound == Wound::Gone => (Some("object "), true),
        Part::Table => (Some("pack "), true),
        Part::Pack => (Some("pack "), wound != Wound::Flipped),
        // Made anew at the next opening, or by whoever stumbles on it.
        Part::Index => (None, false),
    }
}

fn check(place: &Place, part: Part, how: Wound) -> bool {
    let Some(path) = wound(place, part, how) else { return false };
    let context = format!("{part:?} {how:?}: {}", path.display());
    let (finding, quickly) = expected(part, how);
    let found = place.run(&["verify", "--read-data"]);
    if let Some(finding) = finding {
        assert_eq!(found.status, 1, "{context}: {}{}", found.stdout, found.stderr);
        assert!(found.stdout.contains(finding), "{context}: {}", found.stdout);
        let status = place.run(&["verify"]).status;
        assert_eq!(status, i32::from(quickly), "{context}: the quick check");
    }
    // Content is read by the kernel, which compares nothing; everything else is checked or rebuilt before use.
    if part != Part::Object {
        let served = place.run(&["env", "exec", TASK, "--", "sh", "-c", SHOW]);
        let expected = matches!(part, Part::Metadata) && how != Wound::Gone;
        assert!(
            served.stdout == SHOWN || served.status != 0 || expected,
            "{context}: served {:?}",
            served.stdout
        );
    }
    if matches!(part, Part::Task | Part::Pin | Part::State | Part::Layer) && finding.is_some() {
        let collected = place.run(&["gc"]);
        assert_eq!(collected.status, 3, "{context}: gc must not judge: {}", collected.stderr);
    }
    let plan = place.run(&["verify", "--read-data", "--repair", "--dry-run"]);
    if finding.is_some() {
        assert_eq!(plan.status, 1, "{context}: {}{}", plan.stdout, plan.stderr);
        assert!(plan.stderr.contains("repair: "), "{context}: {}", plan.stderr);
    }
    let mended = place.run(&["verify", "--read-data", "--repair"]);
    match part {
        // What a person wrote cannot be made again by a machine; the advice can be followed.
        Part::Pin | Part::State if finding.is_some() => {
            assert_eq!(mended.status, 1, "{context}: {}{}", mended.stdout, mended.stderr);
            let advised = if part == Part::Pin { &["unpin", "mine"][..] } else { &["env", "rm", "named"] };
            assert!(mended.stderr.contains(&advised.join(" ")), "{context}: {}", mended.stderr);
            place.ok(advised);
        }
        _ => assert_eq!(mended.status, 0, "{context}: {}{}", mended.stdout, mended.stderr),
    }
    place.ok(&["build", TASK]);
    prepare(place);
    assert_eq!(place.sh(SHOW), SHOWN, "{context}");
    place.ok(&["gc"]);
    place.assert_whole();
    true
}

/// Gives the store what a wound may have cost it: a pin and an environment.
fn prepare(place: &Place) {
    place.ok(&["gc", "--compress"]);
    assert!(!place.listing("packs").is_empty());
    if place.listing("roots/pins").is_empty() {
        place.ok(&["pin", TASK, "--name", "mine"]);
    }
    if place.listing("envs").is_empty() {
        place.ok(&["env", "exec", TASK, "--keep", "named", "--", "true"]);
    }
}

#[test]
fn every_wound_is_found_and_healed() {
    for user in [User::Caller, User::Ordinary] {
        if lacks(if user == User::Caller { Need::Sandbox } else { Need::UserNamespaces }) {
            continue;
        }
        let place = packed_place(user);
        prepare(&place);
        let mut tally = Tally::new(format!("a file damaged, found and healed ({user:?})"));
        for (row, part) in PARTS.into_iter().enumerate() {
            for (column, how) in WOUNDS.into_iter().enumerate() {
                // Where time is short, a third, and for the second user what is special to it.
                let special = [Part::Metadata, Part::Pack, Part::Table].contains(&part);
                let short = (row + column) % 3 == 0 && (user == User::Caller || special);
                if (long() || short) && check(&place, part, how) {
                    tally.add();
                }
            }
        }
        assert!(tally.cases() > 1);
        note(tally);
    }
}

#[test]
fn a_step_that_gives_something_else_replaces_nothing() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.edit("demo/project.toml", "&& ls native", "&& cat /proc/sys/kernel/random/uuid");
    place.ok(&["build", TASK]);
    let layers = place.listing("layers");
    let uuid = place.sh("tail -n 1 native/out.so");
    let object = files(&place, Part::Object)
        .into_iter()
        .find(|path| fs::read(path).is_ok_and(|text| text.ends_with(uuid.as_bytes())));
    overwrite(&object.expect("the output is an object"), b"no bytes that anything makes");
    let mended = place.run(&["verify", "--repair"]);
    assert_eq!(mended.status, 1, "{}{}", mended.stdout, mended.stderr);
    assert!(mended.stderr.contains("repair: run `build native` of demo/one@cpu again"), "{}", mended.stderr);
    assert!(mended.stderr.contains("gave another layer than before"), "{}", mended.stderr);
    assert!(mended.stderr.contains("could not be mended"), "{}", mended.stderr);
    assert!(layers.iter().all(|layer| place.listing("layers").contains(layer)), "nothing was replaced");
    // The advice works.
    place.ok(&["rm", TASK]);
    place.ok(&["gc", "--all"]);
    place.ok(&["build", TASK]);
    place.assert_whole();
}

#[test]
fn damage_that_nothing_needs_is_not_taken_for_content() {
    let directory = tempfile::tempdir_in(crate::support::work_directory()).expect("a directory");
    let root = directory.path().join("store");
    let store = Store::open(&root, Access::Write).expect("a store");
    let layer = commit(&store, "first", &[b"content of a layer that goes"]).expect("a commit");
    let lease = store.lease("gc").expect("a lease");
    assert!(store.forget_layer(&layer, &lease).expect("forgotten"));
    assert!(store.step(&record("first", layer).key).expect("an index").is_none());
    drop(lease);
    let object = infradev_store::ObjectId::of(b"content of a layer that goes");
    overwrite(&store.layout().object(&object), b"content of a layer that goez");
    let report = store.verify(Depth::ReadData, &()).expect("a report");
    assert_eq!((report.unneeded_objects, report.damage.len()), (1, 1), "{report:?}");
    store.distrust([object], []);
    commit(&store, "first", &[b"content of a layer that goes"]).expect("a commit");
    assert_whole(&store);
}

/// A process that has the index open goes on when it is damaged, deleted or replaced.
#[test]
fn an_index_can_be_lost_while_it_is_open() {
    let directory = tempfile::tempdir_in(crate::support::work_directory()).expect("a directory");
    let root = directory.path().join("store");
    let index = root.join("index.db");
    let commit_and_find = |store: &Store, name: &str| {
        let layer = commit(store, name, &[name.as_bytes()]).expect("a commit");
        let found = store.step(&record(name, layer).key).expect("an index");
        assert_eq!(found.map(|record| record.layers), Some(vec![tree(name, &[name.as_bytes()]).layer_id()]));
    };
    let store = Store::open(&root, Access::Write).expect("a store");
    commit_and_find(&store, "first");
    for (number, loss) in ["deleted", "emptied", "garbage", "pages", "wal"].into_iter().enumerate() {
        let other = Store::open(&root, Access::Write).expect("a store");
        commit_and_find(&other, &format!("before{number}"));
        let length = fs::metadata(&index).expect("an own file").len() as usize;
        match loss {
            "deleted" => ["", "-wal", "-shm"].into_iter().for_each(|suffix| {
                let _may_be_absent = fs::remove_file(root.join(format!("index.db{suffix}")));
            }),
            "emptied" => fs::write(&index, b"").expect("an own file"),
            "garbage" => fs::write(&index, vec![0x5a; length]).expect("an own file"),
            "pages" => {
                let mut bytes = fs::read(&index).expect("an own file");
                let start = bytes.len().min(4096);
                bytes[start..].fill(0x5a);
                fs::write(&index, bytes).expect("an own file");
            }
            _ => fs::write(root.join("index.db-wal"), vec![0x5a; 65536]).expect("an own file"),
        }
        for store in [&store, &other] {
            let layer = commit(store, &format!("after{number}"), &[b"after"]).expect(loss);
            assert!(store.has_layer(&layer));
        }
        drop(other);
        let fresh = Store::open(&root, Access::Write).expect(loss);
        commit_and_find(&fresh, &format!("fresh{number}"));
        let lease = fresh.lease("gc").expect("a lease");
        fresh.gc(fresh.plan_gc(&lease, true).expect(loss), &lease).expect(loss);
        let report = fresh.verify(Depth::ReadData, &()).expect(loss);
        assert!(report.unchecked.is_empty(), "{loss}: {report:?}");
    }
    drop(store);
    let fresh = Store::open(&root, Access::Write).expect("a store");
    fresh.repair_index().expect("made anew");
    assert_whole(&fresh);
}

#[test]
fn dates_in_the_future_and_in_the_past_mean_nothing() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = packed_place(User::Caller);
    prepare(&place);
    let before = place.contents();
    for date in ["2100-01-01", "@1"] {
        touch(&place.store(), date);
        place.ok(&["gc"]);
        place.ok(&["build", TASK, "--require-hit", "--offline"]);
        assert_eq!(place.sh(SHOW), SHOWN);
        assert_eq!(place.contents(), before, "files dated {date}");
        place.assert_whole();
    }
}

fn touch(path: &Path, date: &str) {
    let script = "find \"$0\" -xdev -not -fstype squashfs -exec touch --no-dereference --date \"$1\" {} +";
    let touched = Command::new("sh").args(["-c", script]).arg(path).arg(date).status();
    assert!(touched.expect("find runs").success());
}
