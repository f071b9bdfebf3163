//! The operations that the fault benches interrupt, each with a store to start from and what must hold after it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use infradev::env::back_end::{BackEnd, Uppers};
use infradev::env::image::mountable;
use infradev::env::plan::Mapping;
use infradev::env::state::{Environment, EnvironmentState};
use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder};
use infradev_store::{
    Access, ActionRecord, Change, Depth, Error, Faults, LayerId, ObjectId, Result, RootKind, Stack, StepKey,
    Store,
};

use super::packs::{compress, content};
use crate::support::long;

/// An operation on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scene {
    /// A store is made.
    Create,
    /// A batch of layers and records, with new, known, twin and large objects.
    Ingest,
    /// A batch of a hundred objects.
    Batch,
    /// A batch that takes an object back from the trash.
    Revive,
    /// A damaged object and a damaged layer are written anew.
    Repair,
    /// A damaged record and the index are made anew.
    Mirror,
    /// A collection.
    Collect,
    /// The root of a task is replaced.
    Root,
    /// A pin is added and another removed.
    Pin,
    /// The image of a stack and an environment are made.
    Mount,
    /// Large objects are packed.
    Compress,
    /// A pack most of which is dead is rewritten, with new objects.
    Rewrite,
    /// Packed objects become plain.
    Promote,
}

pub(super) const SCENES: [Scene; 13] = [
    Scene::Create,
    Scene::Ingest,
    Scene::Batch,
    Scene::Revive,
    Scene::Repair,
    Scene::Mirror,
    Scene::Collect,
    Scene::Root,
    Scene::Pin,
    Scene::Mount,
    Scene::Compress,
    Scene::Rewrite,
    Scene::Promote,
];

const SHARED: &[u8] = b"content that two layers have";
const KEPT: &[u8] = b"content that stays";
const LOST: &[u8] = b"content that a collection takes";
const LARGE: usize = (1 << 20) + 4711;

fn metadata() -> Metadata {
    Metadata { mode: 0o644, uid: 0, gid: 0, mtime: 1, xattrs: vec![] }
}

/// A layer with a file for each content.
pub(super) fn tree(name: &str, contents: &[&[u8]]) -> Tree {
    let mut builder = TreeBuilder::new();
    for (number, content) in contents.iter().enumerate() {
        let content = Content::Object(ObjectId::of(content), content.len() as u64);
        let path = format!("{name}/file{number}").parse().expect("a plain path");
        builder.add(path, Kind::File { metadata: metadata(), content }).expect("a new path");
    }
    builder.finish().expect("a tree")
}

pub(super) fn record(name: &str, layer: LayerId) -> ActionRecord {
    ActionRecord {
        key: StepKey::from_bytes(*blake3_of(name).as_bytes()),
        kind: "test".to_owned(),
        label: name.to_owned(),
        record: serde_json::json!({ "name": name, "seconds": 0.1 }),
        layers: vec![layer],
        outputs: BTreeMap::new(),
        seconds: 0.1 + 0.2,
        downloaded: 3,
        built: 1,
        nondeterministic: vec![],
    }
}

fn blake3_of(text: &str) -> ObjectId {
    ObjectId::of(text.as_bytes())
}

/// Commits a layer of `contents` with its record, under a lease that ends here.
pub(super) fn commit(store: &Store, name: &str, contents: &[&[u8]]) -> Result<LayerId> {
    let lease = store.lease(name)?;
    let ingest = store.ingest(&lease)?;
    for content in contents {
        ingest.put(&mut &**content).map_err(|error| match error {
            infradev_store::PutError::Store(error) => error,
            infradev_store::PutError::Read(error) => panic!("memory reads: {error}"),
        })?;
    }
    let layer = ingest.put_layer(&tree(name, contents).encode())?;
    ingest.put_step(record(name, layer));
    ingest.commit()?;
    Ok(layer)
}

pub(super) fn collect(store: &Store) -> Result<infradev_store::GcDone> {
    let lease = store.lease("gc")?;
    store.gc(store.plan_gc(&lease, true)?, &lease)
}

fn pin(store: &Store, name: &str, layer: LayerId) -> Result<()> {
    let lease = store.lease("pin")?;
    assert_eq!(lease.hold(&[layer])?, []);
    store.set_root(RootKind::Pin, name, &Stack::new(vec![layer]))
}

fn kept() -> LayerId {
    tree("kept", &[SHARED, KEPT]).layer_id()
}

fn unrooted() -> LayerId {
    tree("unrooted", &[SHARED, LOST]).layer_id()
}

impl Scene {
    /// Every how many changes one is interrupted, where time is short: some operations are many alike.
    pub(super) fn stride(self) -> usize {
        match self {
            Scene::Create | Scene::Batch if !long() => 23,
            _ => 1,
        }
    }

    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub(super) fn of(name: &str) -> Self {
        SCENES.into_iter().find(|scene| scene.name() == name).expect("the name of a scene")
    }

    /// Makes the store that the operation starts from.
    pub(super) fn prepare(self, root: &Path) {
        if self == Scene::Create {
            return;
        }
        let store = Store::open(root, Access::Write).expect("a store");
        let layer = commit(&store, "kept", &[SHARED, KEPT]).expect("a commit");
        pin(&store, "old", layer).expect("a pin");
        let lease = store.lease("task").expect("a lease");
        store.set_root(RootKind::Task, "demo/one@cpu", &Stack::new(vec![layer])).expect("a root");
        drop(lease);
        commit(&store, "unrooted", &[SHARED, LOST]).expect("a commit");
        match self {
            Scene::Revive => {
                let bystander = store.lease("keeps the trash full").expect("a lease");
                assert_eq!(collect(&store).expect("a collection").waiting, 1);
                drop(bystander);
            }
            Scene::Repair => {
                overwrite(&store.layout().object(&ObjectId::of(KEPT)), b"content that stayz");
                overwrite(&store.layout().layer(&kept()), b"no layer");
            }
            Scene::Mirror => {
                let step = record("kept", kept()).key;
                overwrite(&store.layout().step(&step), b"{");
            }
            Scene::Compress => {
                large_layer(&store, "large", 0..3);
            }
            Scene::Rewrite => {
                large_layer(&store, "large", 0..3);
                compress(&store).expect("a pack");
                store.remove_root(RootKind::Pin, "large").expect("a pin");
                large_layer(&store, "larger", 2..4);
                collect(&store).expect("a collection");
            }
            Scene::Promote => {
                large_layer(&store, "large", 0..3);
                compress(&store).expect("a pack");
            }
            _ => {}
        }
    }

    /// Does the operation, on a disk with faults.
    pub(super) fn act(self, root: &Path, faults: Arc<dyn Faults>) -> Result<()> {
        let store = Store::open_with(root, Access::Write, faults)?;
        match self {
            Scene::Create => {}
            Scene::Ingest => {
                let lease = store.lease("ingest")?;
                let ingest = store.ingest(&lease)?;
                let large = vec![7; LARGE];
                let contents: [&[u8]; 6] = [SHARED, LOST, b"new one", b"new two", &large, b"new one"];
                for content in contents {
                    match ingest.put(&mut &*content) {
                        Err(infradev_store::PutError::Store(error)) => return Err(error),
                        other => drop(other.expect("memory reads")),
                    }
                }
                for (name, own) in [("first", &contents[..3]), ("second", &contents[2..5])] {
                    let layer = ingest.put_layer(&tree(name, own).encode())?;
                    ingest.put_step(record(name, layer));
                }
                ingest.commit()?;
            }
            Scene::Batch => {
                let contents: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; 100]).collect();
                let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
                commit(&store, "batch", &contents)?;
            }
            Scene::Revive => drop(commit(&store, "back", &[LOST, KEPT])?),
            Scene::Repair => {
                store.distrust([ObjectId::of(KEPT)], [kept()]);
                commit(&store, "kept", &[SHARED, KEPT])?;
            }
            Scene::Mirror => {
                store.repair_record(&record("kept", kept()).key)?;
                store.repair_index()?;
            }
            Scene::Collect => drop(collect(&store)?),
            Scene::Root => {
                let lease = store.lease("root")?;
                assert_eq!(lease.hold(&[unrooted()])?, []);
                let stack = Stack { layers: vec![unrooted()], also: vec![kept()] };
                store.set_root(RootKind::Task, "demo/one@cpu", &stack)?;
            }
            Scene::Pin => {
                pin(&store, "new", unrooted())?;
                store.remove_root(RootKind::Pin, "old")?;
            }
            Scene::Compress | Scene::Rewrite => drop(compress(&store)?),
            Scene::Promote => {
                let lease = store.lease("reader")?;
                let layers = [large_tree("large", 0..3).layer_id()];
                assert_eq!(lease.hold(&layers)?, []);
                store.promote_layers(&layers, &lease)?;
            }
            Scene::Mount => {
                let lease = store.lease("mount")?;
                let stack = Stack::new(vec![kept()]);
                lease.hold(&stack.layers)?;
                lease.hold_stack(stack.id())?;
                mountable(&store, &stack, BackEnd::Erofs, &lease).map_err(as_store_error)?;
                match Environment::create(&store, &lease, "mine", state(&stack)) {
                    Err(infradev::env::state::EnvironmentError::Exists(_)) => {}
                    Err(infradev::env::state::EnvironmentError::Store(error)) => return Err(error),
                    Err(infradev::env::state::EnvironmentError::Stack(error)) => {
                        return Err(as_store_error(error));
                    }
                    Err(infradev::env::state::EnvironmentError::Io { action, path, source }) => {
                        return Err(Error::io(action, &path, source));
                    }
                    other => drop(other.expect("an environment")),
                }
            }
        }
        Ok(())
    }

    /// Whether the store is damaged before the operation, which then mends it.
    pub(super) fn mends(self) -> bool {
        matches!(self, Scene::Repair | Scene::Mirror)
    }

    /// Asserts what must hold however the operation ended.
    pub(super) fn assert_nothing_lost(self, store: &Store) {
        for directory in ["tmp", "leases"] {
            // A child that another test is just starting has our locks until it is another program.
            if !listing(store, directory).is_empty() {
                crate::support::wait_until(&format!("nothing is left in {directory}"), || {
                    drop(Store::open(store.layout().root(), Access::Write).expect("it opens again"));
                    listing(store, directory).is_empty()
                });
            }
            assert_eq!(listing(store, directory), Vec::<String>::new(), "leftovers in {directory}");
        }
        if self == Scene::Create {
            return;
        }
        let root: Option<Stack> = store.root(RootKind::Task, "demo/one@cpu").expect("a readable root");
        let root = root.expect("the root is there");
        let new = self == Scene::Root && root.layers == [unrooted()] && root.also == [kept()];
        assert!(new || root.layers == [kept()], "{root:?}");
        let mut pins = store.root_names(RootKind::Pin).expect("a listing");
        pins.retain(|pin| !pin.starts_with("large"));
        assert!(
            pins == ["old"] || (self == Scene::Pin && (pins == ["new", "old"] || pins == ["new"])),
            "{pins:?}"
        );
        if !self.mends() {
            assert_whole(store);
        }
    }

    /// Asserts what the finished operation promises.
    pub(super) fn assert_done(self, store: &Store) {
        assert_whole(store);
        let committed = |name: &str| {
            let step = store.step(&record(name, kept()).key).expect("an index").expect("a record");
            assert!(step.layers.iter().all(|layer| store.has_layer(layer)), "{name}");
        };
        match self {
            Scene::Create => {}
            Scene::Ingest => ["first", "second"].into_iter().for_each(committed),
            Scene::Batch => committed("batch"),
            Scene::Revive => committed("back"),
            Scene::Repair | Scene::Mirror => committed("kept"),
            Scene::Collect => {
                assert!(!store.has_layer(&unrooted()));
                assert!(store.step(&record("unrooted", unrooted()).key).expect("an index").is_none());
                assert!(!store.layout().object(&ObjectId::of(LOST)).exists());
                assert_eq!(listing(store, "trash"), Vec::<String>::new());
            }
            Scene::Root => {
                let root: Stack =
                    store.root(RootKind::Task, "demo/one@cpu").expect("a root").expect("a root");
                assert_eq!(root.layers, [unrooted()]);
            }
            Scene::Compress => assert_packed(store, 0..3),
            Scene::Rewrite => {
                assert_packed(store, 2..4);
                assert_eq!(store.pack_names().expect("a listing").len(), 1);
            }
            Scene::Promote => {
                for number in 0..3 {
                    let object = ObjectId::of(&large(number));
                    assert_eq!(fs::read(store.layout().object(&object)).expect("plain"), large(number));
                }
            }
            Scene::Pin => assert_eq!(store.root_names(RootKind::Pin).expect("a listing"), ["new"]),
            Scene::Mount => {
                let stack = Stack::new(vec![kept()]);
                let mut expected = vec![];
                let tree = infradev_layers::merge(&[tree("kept", &[SHARED, KEPT])]);
                infradev_layers::write_image(&tree, &mut expected).expect("memory");
                let image = fs::read(store.layout().image(&stack.id())).expect("an image");
                assert!(image == expected, "the image is not what the layer makes");
                assert_eq!(Environment::open(store, "mine").expect("an environment").state.layers, [kept()]);
            }
        }
    }
}

/// Content that can be packed; one is longer than a block.
fn large(number: u64) -> Vec<u8> {
    content(number, if number == 0 { LARGE } else { 140_000 + number as usize })
}

fn large_tree(name: &str, numbers: std::ops::Range<u64>) -> Tree {
    let contents: Vec<Vec<u8>> = numbers.map(large).collect();
    tree(name, &contents.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Commits and pins a layer of large contents.
fn large_layer(store: &Store, name: &str, numbers: std::ops::Range<u64>) {
    let contents: Vec<Vec<u8>> = numbers.map(large).collect();
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let layer = commit(store, name, &contents).expect("a commit");
    pin(store, name, layer).expect("a pin");
}

fn assert_packed(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert!(!store.layout().object(&ObjectId::of(&large(number))).exists(), "{number} is plain");
    }
    assert_eq!(listing(store, "trash"), Vec::<String>::new());
}

fn state(stack: &Stack) -> EnvironmentState {
    EnvironmentState {
        schema: 1,
        layers: stack.layers.clone(),
        task: "demo/one@cpu".to_owned(),
        back_end: BackEnd::Erofs,
        mapping: Mapping::Host,
        variables: BTreeMap::new(),
        directory: "/".into(),
        host_base: true,
        discarded_with: None,
        uppers: Uppers::Disk,
        created: 1,
    }
}

fn as_store_error(error: infradev::env::image::StackError) -> Error {
    use infradev::env::image::StackError;
    match error {
        StackError::Store(error) => error,
        StackError::Io { action, path, source } => Error::io(action, &path, source),
        StackError::Image(infradev_layers::ImageError::Write(source)) => {
            Error::io("write", Path::new("image"), source)
        }
        other => panic!("{other}"),
    }
}

pub(super) fn overwrite(path: &Path, bytes: &[u8]) {
    // A new file: hardlinks of the old one are not its business.
    fs::remove_file(path).expect("an own file");
    fs::write(path, bytes).expect("an own file");
}

pub(super) fn assert_whole(store: &Store) {
    let report = store.verify(Depth::ReadData, &()).expect("a report");
    assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{report:?}");
}

pub(super) fn listing(store: &Store, below: &str) -> Vec<String> {
    let entries = fs::read_dir(store.layout().root().join(below)).expect("a directory of the store");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// No faults.
#[derive(Debug)]
pub(super) struct Sound;

impl Faults for Sound {
    fn before(&self, _change: &Change<'_>) -> std::io::Result<()> {
        Ok(())
    }
}
