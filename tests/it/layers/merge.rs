//! Merging in memory shows what kernel overlayfs shows.

use std::collections::BTreeMap;
use std::fs;

use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder, TreePath, merge};
use infradev_store::ObjectId;

use super::ground::{But, Chance, Ground, Mount, assert_same, lacks_mounts, shown, write};
use crate::support::rounds;

#[test]
fn privileged_a_merge_is_what_the_kernel_shows() {
    if lacks_mounts() {
        return;
    }
    let ground = Ground::new();
    for seed in 0..rounds(60, 5000) {
        let stack = Stack::random(&mut Chance::new(seed));
        let place = ground.fresh();
        let contents: BTreeMap<ObjectId, &[u8]> =
            CONTENTS.iter().map(|content| (ObjectId::of(content), *content)).collect();
        let lowers: Vec<_> =
            (0..stack.layers.len()).map(|number| place.path().join(number.to_string())).collect();
        let mut scanned: Vec<Tree> = vec![];
        for (layer, lower) in stack.layers.iter().zip(&lowers) {
            fs::create_dir(lower).expect("an own directory");
            write(layer, lower, |object| contents[&object].to_vec());
            scanned.push(ground.scan(lower, Some(&merge(&scanned))).tree);
        }
        let overlay = Mount::overlay(&lowers, &[]);
        let shows = ground.scan(&overlay.path(), None).tree;
        let what = |how: &str| {
            let layers = stack.layers.iter().map(|layer| format!("\n{:#?}", layer.entries()));
            format!("seed {seed}, layers {how}, lowest first:{}", layers.collect::<String>())
        };
        assert_same(
            &what("as described"),
            &shown(&merge(&stack.layers), But::Nothing),
            &shown(&shows, But::Nothing),
        );
        // A scanned layer leaves out a directory that differs from the one below in nothing but time.
        let but = But::DirectoryTimes;
        assert_same(&what("as scanned"), &shown(&merge(&scanned), but), &shown(&shows, but));
    }
}

const CONTENTS: [&[u8]; 3] = [b"", b"one", b"another\n"];

/// Layers over few names, so that they collide in every way.
struct Stack {
    layers: Vec<Tree>,
}

impl Stack {
    fn random(chance: &mut Chance) -> Self {
        let mut stack = Self { layers: vec![] };
        for _ in 0..2 + chance.below(4) {
            let layer = stack.random_layer(chance);
            stack.layers.push(layer);
        }
        stack
    }

    fn random_layer(&self, chance: &mut Chance) -> Tree {
        let below = merge(&self.layers);
        let mut entries: BTreeMap<TreePath, Kind> = BTreeMap::new();
        for _ in 0..2 + chance.below(14) {
            let path = random_path(chance);
            let kind = match chance.below(10) {
                0..3 => Kind::Directory { metadata: metadata(chance), opaque: chance.one_in(2) },
                3..5 if hides(&entries, &below, &path) => Kind::Whiteout,
                5 => Kind::Symlink {
                    metadata: Metadata { mode: 0o777, xattrs: vec![], ..metadata(chance) },
                    target: (*chance.of(&[&b"a"[..], b"../b", b"\xff nowhere"])).into(),
                },
                6 => match entries.iter().find(|(_, kind)| matches!(kind, Kind::File { .. })) {
                    Some((first, _)) => Kind::Hardlink { first: first.clone() },
                    None => continue,
                },
                _ => file(chance),
            };
            add(&mut entries, &path, kind, chance);
        }
        let mut builder = TreeBuilder::new();
        for (path, kind) in entries {
            builder.add(path, kind).expect("the path is free");
        }
        builder.finish().expect("made to be a tree")
    }
}

fn random_path(chance: &mut Chance) -> TreePath {
    const NAMES: [&[u8]; 5] = [b"a", b"b", b"a.b", b"caf\xe9", b" \n"];
    let names: Vec<&[u8]> = (0..1 + chance.below(3)).map(|_| *chance.of(&NAMES)).collect();
    TreePath::new(&names.join(&b'/')).expect("short names")
}

fn metadata(chance: &mut Chance) -> Metadata {
    let mut metadata = Metadata::new(*chance.of(&[0o755, 0o700, 0o1777, 0]), chance.below(5) as i64 - 2);
    metadata.uid = chance.below(3) as u32;
    if chance.one_in(3) {
        metadata.xattrs.push((b"user.x"[..].into(), vec![chance.below(3) as u8].into()));
    }
    metadata
}

fn file(chance: &mut Chance) -> Kind {
    let content = match *chance.of(&CONTENTS) {
        [] => Content::Empty,
        bytes => Content::Object(ObjectId::of(bytes), bytes.len() as u64),
    };
    Kind::File { metadata: metadata(chance), content }
}

fn parents(path: &TreePath) -> Vec<TreePath> {
    let above = std::iter::successors(path.parent(), TreePath::parent);
    above.filter(|parent| !parent.is_root()).collect()
}

/// Whether a whiteout at `path` stands in a directory that merges with one below, as the kernel only makes them.
/// In any other it lists the name of the whiteout and then denies it.
fn hides(entries: &BTreeMap<TreePath, Kind>, below: &Tree, path: &TreePath) -> bool {
    parents(path).iter().all(|parent| {
        let merges = match entries.get(parent) {
            Some(Kind::Directory { opaque, .. }) => !opaque,
            Some(_) => false,
            None => true,
        };
        merges && below.get(parent).is_some_and(Kind::is_directory)
    })
}

/// Adds an entry and its parents where it fits.
fn add(entries: &mut BTreeMap<TreePath, Kind>, path: &TreePath, kind: Kind, chance: &mut Chance) {
    let fits = parents(path).iter().all(|parent| entries.get(parent).is_none_or(Kind::is_directory));
    if !fits || entries.contains_key(path) {
        return;
    }
    for parent in parents(path) {
        let opaque = kind != Kind::Whiteout && chance.one_in(8);
        entries.entry(parent).or_insert_with(|| Kind::Directory { metadata: metadata(chance), opaque });
    }
    entries.insert(path.clone(), kind);
}
