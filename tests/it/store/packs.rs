//! Packs: what is compressed reads the same, in every way that it can be read, and nothing in use loses a byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use infradev_store::{Access, CompressDone, Depth, LayerId, ObjectId, PACK_MINIMUM, Store, object_name};

use super::kills::system;
use super::scenes::{assert_whole, collect, commit, listing, overwrite, tree};
use crate::support::{Need, Place, TASK, User, lacks, work_directory};

/// Bytes that compress to about a half, different for each `seed`.
pub(super) fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..size).map(|_| b"0123456789abcdef"[(next() % 16) as usize]).collect()
}

/// Contents around every border: of packs, of blocks, of what can be compressed.
fn contents() -> Vec<Vec<u8>> {
    let mut contents: Vec<Vec<u8>> =
        [PACK_MINIMUM as usize - 1, PACK_MINIMUM as usize, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_500_000]
            .into_iter()
            .enumerate()
            .map(|(seed, size)| content(seed as u64, size))
            .collect();
    contents.push(vec![0; 2_500_000]);
    // No zstd frame of it is shorter.
    let random = (0..40_000u64).flat_map(|number| *ObjectId::of(&number.to_le_bytes()).as_bytes());
    contents.push(random.collect());
    contents
}

fn scratch() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir_in(work_directory()).expect("a directory");
    let store = Store::open(&directory.path().join("store"), Access::Write).expect("a store");
    (directory, store)
}

fn put(store: &Store, name: &str, contents: &[Vec<u8>]) -> LayerId {
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let layer = commit(store, name, &contents).expect("a commit");
    let pin = infradev_store::Stack::new(vec![layer]);
    store.set_root(infradev_store::RootKind::Pin, name, &pin).expect("a pin");
    layer
}

pub(super) fn compress(store: &Store) -> infradev_store::Result<CompressDone> {
    let lease = store.lease("compress")?;
    let nothing = || Ok(vec![]);
    store.compress(store.plan_compress(&lease, &nothing)?, &lease, &nothing, &())
}

fn is_plain(store: &Store, content: &[u8]) -> bool {
    store.layout().object(&ObjectId::of(content)).exists()
}

fn pack(store: &Store) -> PathBuf {
    let names = store.pack_names().expect("a listing");
    assert_eq!(names.len(), 1, "{names:?}");
    store.layout().pack(&names[0])
}

/// Every content by its name below `root`, and nothing else.
fn assert_shows(root: &Path, contents: &[Vec<u8>]) {
    let mut found = vec![];
    for prefix in fs::read_dir(root).expect("a directory").flatten() {
        found.extend(fs::read_dir(prefix.path()).expect("a directory").flatten().map(|file| file.path()));
    }
    let mut expected: Vec<PathBuf> =
        contents.iter().map(|content| root.join(object_name(&ObjectId::of(content)))).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for content in contents {
        let read = fs::read(root.join(object_name(&ObjectId::of(content)))).expect("a file");
        assert!(read == *content, "{} bytes are not the same", content.len());
    }
}

#[test]
fn what_is_packed_reads_by_its_table() {
    let (_directory, store) = scratch();
    let contents = contents();
    put(&store, "one", &contents);
    let before = store.disk_total().expect("a sum");
    let done = compress(&store).expect("a pack");
    assert_eq!((done.objects, done.plain, done.damage), (contents.len() - 1, contents.len() - 1, vec![]));
    assert!(is_plain(&store, &contents[0]), "too small");
    assert!(contents[1..].iter().all(|content| !is_plain(&store, content)));
    assert_whole(&store);
    let after = store.disk_total().expect("a sum");
    assert!(after < before - 2_500_000, "{before} {after}");
    let (usages, _) = store.usage(&[store.layers().expect("layers")]).expect("a sum");
    assert!(usages[0].on_disk > 4_000_000 && usages[0].on_disk < after, "{usages:?} {after}");
    // Again, there is nothing to do; and nothing is lost by a collection.
    assert_eq!(compress(&store).expect("nothing").pack, None);
    collect(&store).expect("a collection");
    assert_whole(&store);
    // Promotion gives the same bytes back.
    let lease = store.lease("reader").expect("a lease");
    let layers = store.layers().expect("layers");
    assert_eq!(lease.hold(&layers).expect("held"), []);
    let promoted = store.promote_layers(&layers, &lease).expect("plain again");
    assert_eq!(promoted.objects as usize, contents.len() - 1);
    for content in &contents {
        assert!(fs::read(store.layout().object(&ObjectId::of(content))).expect("an object") == *content);
    }
    assert_eq!(store.promote_layers(&layers, &lease).expect("done").objects, 0);
    drop(lease);
    // The packed copies are sound, so the plain ones go without anything being written.
    let done = compress(&store).expect("a compression");
    assert_eq!((done.pack, done.plain), (None, contents.len() - 1));
    assert_whole(&store);
}

#[test]
fn equal_objects_make_equal_packs() {
    let mut packs = vec![];
    for reversed in [false, true] {
        let (_directory, store) = scratch();
        let mut contents = contents();
        if reversed {
            contents.reverse();
        }
        put(&store, "one", &contents);
        compress(&store).expect("a pack");
        packs.push((store.pack_names().expect("names"), fs::read(pack(&store)).expect("a pack")));
    }
    assert!(packs[0] == packs[1]);
}

#[test]
fn privileged_the_kernel_and_unsquashfs_read_the_same() {
    let (_directory, store) = scratch();
    let mut contents = contents();
    // More files than a metadata block and a run of entries hold.
    contents.extend((100..800).map(|seed| content(seed, PACK_MINIMUM as usize + seed as usize)));
    put(&store, "one", &contents);
    compress(&store).expect("a pack");
    contents.remove(0);
    let pack = pack(&store);
    if !lacks(Need::Program("unsquashfs")) {
        let out = store.layout().root().join("out");
        system(
            "unsquashfs",
            &["-quiet", "-no-progress", "-d", &out.display().to_string(), &pack.display().to_string()],
        );
        assert_shows(&out, &contents);
    }
    if lacks(Need::Root) {
        return;
    }
    let place = store.layout().root().join("place");
    fs::create_dir(&place).expect("an own directory");
    system(
        "mount",
        &["-t", "squashfs", "-o", "loop,ro", &pack.display().to_string(), &place.display().to_string()],
    );
    let shown = std::panic::catch_unwind(|| assert_shows(&place, &contents));
    super::kills::unmount(&place);
    shown.expect("the same");
}

#[test]
fn a_damaged_object_is_never_packed() {
    let (_directory, store) = scratch();
    let contents = contents();
    put(&store, "one", &contents);
    for (at, number) in [(0, 2), (2_000_000, 5)] {
        let mut damaged = contents[number].clone();
        damaged[at] ^= 1;
        overwrite(&store.layout().object(&ObjectId::of(&contents[number])), &damaged);
    }
    let done = compress(&store).expect("a pack");
    assert_eq!(done.damage.len(), 2, "{:?}", done.damage);
    assert_eq!(done.objects, contents.len() - 3);
    for (number, content) in contents.iter().enumerate() {
        assert_eq!(is_plain(&store, content), [0, 2, 5].contains(&number), "{number}");
    }
    let report = store.verify(Depth::ReadData, &()).expect("a report");
    assert_eq!(report.damage.len(), 2, "{report:?}");
}

#[test]
fn a_damaged_pack_gives_way_to_plain_copies() {
    let (_directory, store) = scratch();
    let contents = contents();
    put(&store, "one", &contents);
    compress(&store).expect("a pack");
    let path = pack(&store);
    let mut bytes = fs::read(&path).expect("a pack");
    bytes[1 << 20] ^= 1;
    overwrite(&path, &bytes);
    assert!(store.verify(Depth::Quick, &()).expect("a report").damage.is_empty());
    let report = store.verify(Depth::ReadData, &()).expect("a report");
    let [finding] = report.damage.as_slice() else { panic!("{report:?}") };
    assert!(finding.detail.contains("in pack") && finding.layers.len() == 1, "{finding:?}");
    let infradev_store::Subject::Object(damaged) = finding.what else { panic!("{finding:?}") };
    // Nobody gets the damaged bytes.
    let lease = store.lease("reader").expect("a lease");
    let refused = store.promote_layers(&store.layers().expect("layers"), &lease).expect_err("damage");
    assert!(refused.to_string().contains(&damaged.to_string()), "{refused}");
    drop(lease);
    // A repair writes the object anew; it stands over the damaged one, which the next pack drops.
    store.distrust([damaged], []);
    put(&store, "one", &contents);
    assert_eq!(store.verify(Depth::ReadData, &()).expect("a report").shadowed, 1);
    assert_whole(&store);
    let done = compress(&store).expect("a pack");
    assert_eq!((done.objects, done.damage), (contents.len() - 1, vec![]));
    let report = store.verify(Depth::ReadData, &()).expect("a report");
    assert!(report.damage.is_empty() && report.shadowed == 0 && report.packs == 1, "{report:?}");
    assert!(contents[1..].iter().all(|content| !is_plain(&store, content)));
}

#[test]
fn packed_content_is_known_and_packs_live_as_long_as_it() {
    let (_directory, store) = scratch();
    let contents: Vec<Vec<u8>> = (0..4).map(|seed| content(seed, 300_000)).collect();
    put(&store, "one", &contents[..3]);
    put(&store, "two", &contents[2..]);
    let first = compress(&store).expect("a pack").pack.expect("a pack");
    // Known content is not written again.
    let lease = store.lease("writer").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    ingest.put_bytes(&contents[0]).expect("an object");
    assert_eq!(ingest.written(), 0);
    ingest.put_layer(&tree("third", &[&contents[0]]).encode()).expect("a layer");
    ingest.commit().expect("a commit");
    assert_whole(&store);
    drop(lease);
    // Half of the pack dies: it is written anew without that.
    store.remove_root(infradev_store::RootKind::Pin, "one").expect("a pin");
    collect(&store).expect("a collection");
    assert_eq!(store.pack_names().expect("names"), [first], "a collection rewrites nothing");
    store.remove_root(infradev_store::RootKind::Pin, "two").expect("a pin");
    put(&store, "two", &contents[3..]);
    collect(&store).expect("a collection");
    let done = compress(&store).expect("a pack");
    assert_eq!(done.objects, 1);
    assert_eq!(store.pack_names().expect("names"), [done.pack.expect("a pack")]);
    assert_whole(&store);
    // With the last of its objects it goes.
    store.remove_root(infradev_store::RootKind::Pin, "two").expect("a pin");
    assert_eq!(collect(&store).expect("a collection").packs, 1);
    assert_eq!(listing(&store, "packs"), Vec::<String>::new());
}

#[test]
fn a_commit_takes_a_pack_back_from_the_trash() {
    let (_directory, store) = scratch();
    let contents = [content(1, 300_000)];
    put(&store, "one", &contents);
    compress(&store).expect("a pack");
    let lease = store.lease("writer").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    ingest.put_bytes(&contents[0]).expect("an object");
    assert_eq!(ingest.written(), 0, "a pack has it");
    store.remove_root(infradev_store::RootKind::Pin, "one").expect("a pin");
    let done = collect(&store).expect("a collection");
    assert_eq!((done.packs, done.waiting), (1, 1));
    assert_eq!(store.pack_names().expect("names"), []);
    ingest.put_layer(&tree("two", &[&contents[0]]).encode()).expect("a layer");
    ingest.commit().expect("the pack comes back");
    assert_eq!(store.pack_names().expect("names").len(), 1);
    assert_whole(&store);
}

#[test]
fn what_is_in_use_stays_plain() {
    let (_directory, store) = scratch();
    let contents: Vec<Vec<u8>> = (0..3).map(|seed| content(seed, 300_000)).collect();
    let held = put(&store, "held", &contents[..1]);
    let mounted = put(&store, "mounted", &contents[1..2]);
    put(&store, "cold", &contents[2..]);
    let reader = store.lease("reader").expect("a lease");
    assert_eq!(reader.hold(&[held]).expect("held"), []);
    let lease = store.lease("compress").expect("a lease");
    let in_use = || Ok(vec![mounted]);
    let plan = store.plan_compress(&lease, &in_use).expect("a plan");
    assert_eq!((plan.objects.len(), plan.in_use), (1, 2));
    // What becomes used while the pack is written stays, too.
    let plan = store.plan_compress(&lease, &|| Ok(vec![])).expect("a plan");
    assert_eq!((plan.objects.len(), plan.in_use), (2, 1));
    let done = store.compress(plan, &lease, &in_use, &()).expect("a pack");
    assert_eq!((done.objects, done.plain), (2, 1));
    assert_eq!([0, 1, 2].map(|number| is_plain(&store, &contents[number])), [true, true, false]);
    drop((reader, lease));
    compress(&store).expect("a pack");
    assert_eq!([0, 1, 2].map(|number| is_plain(&store, &contents[number])), [false; 3]);
    assert_whole(&store);
}

#[test]
fn an_unreadable_environment_keeps_everything_plain() {
    let (_directory, store) = scratch();
    let contents = [content(1, 300_000)];
    put(&store, "one", &contents);
    let lease = store.lease("compress").expect("a lease");
    let plan = store.plan_compress(&lease, &|| Ok(vec![])).expect("a plan");
    let unreadable = || Err(infradev_store::Error::NoRoots { path: "/".into() });
    store.compress(plan, &lease, &unreadable, &()).expect_err("who knows what is mounted");
    assert!(is_plain(&store, &contents[0]));
    assert_whole(&store);
}

/// A place whose task has a file that can be packed.
pub(super) fn place(user: User) -> Place {
    let place = Place::new(user);
    place.edit("demo/project.toml", "a note\\n", &String::from_utf8(content(7, 700_000)).expect("text"));
    place.ok(&["build", TASK]);
    place
}

const SUM: &str = "cat /opt/env/share/demo/note $(find /workspace -type f | sort) | sha256sum";

#[test]
fn an_environment_reads_the_same_before_and_after() {
    for user in [User::Caller, User::Ordinary] {
        if lacks(if user == User::Caller { Need::Sandbox } else { Need::UserNamespaces }) {
            continue;
        }
        let place = place(user);
        let expected = place.sh(SUM);
        place.ok(&["env", "exec", TASK, "--keep", "kept", "--", "true"]);
        let dry = place.ok(&["gc", "--compress", "--dry-run"]);
        assert!(dry.contains("would pack 1 objects"), "{dry}");
        assert!(place.listing("packs").is_empty());
        let packed = place.ok(&["gc", "--compress"]);
        assert!(packed.contains("packed 1 objects") && packed.contains("removed 1 plain"), "{packed}");
        place.assert_whole();
        assert!(place.ok(&["verify"]).contains("1 packs"));
        let plain = || place.contents().iter().filter(|(_, bytes)| bytes.len() == 700_000).count();
        assert_eq!(plain(), 0);
        assert_eq!(place.sh(SUM), expected, "{user:?}");
        let kept = place.ok(&["env", "exec", "kept", "--", "sh", "-c", SUM]);
        assert_eq!(kept, expected, "{user:?}");
        // Root reads the pack; everybody else has made the object plain again, once.
        let mounts = place.mounts().len();
        let root = rustix::process::geteuid().is_root() && user == User::Caller;
        assert_eq!((plain(), mounts), if root { (0, 1) } else { (1, 0) }, "{user:?}");
        for back_end in ["stub", "farm", "copy"] {
            let run = place.run(&["--back-end", back_end, "env", "exec", TASK, "--", "sh", "-c", SUM]);
            assert!(run.stdout == expected || run.status == 125, "{back_end}: {}{}", run.stdout, run.stderr);
        }
        let du = place.ok(&["du"]);
        assert!(du.contains("demo/one"), "{du}");
        place.ok(&["gc", "--compress"]);
        place.assert_whole();
        place.ok(&["env", "rm", "kept"]);
        place.ok(&["rm", TASK]);
        place.ok(&["gc", "--all"]);
        assert_eq!((place.listing("packs"), place.mounts().len()), (vec![], 0), "{user:?}");
    }
}

#[test]
fn privileged_mounted_environments_keep_what_they_were_mounted_with() {
    if lacks(Need::Root) {
        return;
    }
    let place = place(User::Caller);
    let read = |name: &str| {
        let path = place.store().join("envs").join(name).join("merged/opt/env/share/demo/note");
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
        ObjectId::of(&fs::read(path).expect("a file"))
    };
    place.ok(&["env", "mount", TASK, "--name", "before"]);
    let dry = place.ok(&["gc", "--compress", "--dry-run"]);
    assert!(dry.contains("would pack 0 objects\n") || dry.contains("would leave 1 objects"), "{dry}");
    place.ok(&["gc", "--compress"]);
    let expected = read("before");
    place.ok(&["env", "umount", "before"]);
    place.ok(&["gc", "--compress"]);
    // Mounted from the pack, while the pack is written anew without what died.
    place.ok(&["env", "mount", "before"]);
    assert_eq!(read("before"), expected);
    let packs = place.listing("packs");
    place.edit(
        "demo/project.toml",
        "[[build]]",
        "[[files]]\npath = \"/opt/env/share/demo/other\"\ntext = \"@\"\n\n[[build]]",
    );
    place.edit(
        "demo/project.toml",
        "\"@\"",
        &format!("\"{}\"", String::from_utf8(content(8, 900_000)).expect("text")),
    );
    place.ok(&["build", TASK]);
    place.ok(&["gc", "--compress"]);
    assert_ne!(place.listing("packs"), packs, "small packs are merged");
    assert_eq!(read("before"), expected);
    assert_eq!(place.mounts().len(), 1, "the old pack is mounted nowhere else: {:?}", place.mounts());
    let run = "cat /opt/env/share/demo/note /opt/env/share/demo/other | wc -c";
    assert_eq!(place.sh(run).trim(), "1600000");
    assert_eq!(read("before"), expected);
    place.ok(&["env", "rm", "before"]);
    place.assert_whole();
}

#[test]
fn privileged_many_environments_mount_a_pack_once() {
    if lacks(Need::Root) {
        return;
    }
    let place = place(User::Caller);
    let expected = place.sh(SUM);
    place.ok(&["gc", "--compress"]);
    let start = || {
        let mut command: Command = place.command(&["env", "exec", TASK, "--", "sh", "-c", SUM]);
        command.stdout(std::process::Stdio::piped()).spawn().expect("it starts")
    };
    let children: Vec<_> = (0..12).map(|_| start()).collect();
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
    assert_eq!(place.mounts().len(), 1, "{:?}", place.mounts());
}
