//! Which layers share a blob: stable from task to task, and few enough for every engine.
//!
//! A large layer is a blob of its own. Small wheels fall into sixteen groups by their names: what one task has in a
//! group, another mostly has too, and a pull takes from a group's blob only the files that it lacks. Base, source
//! and build layers are never grouped.

use std::collections::{BTreeMap, HashMap, HashSet};

use infradev_layers::{MAX_PART, Tree, split, union};
use infradev_store::LayerId;

use crate::build::root::BuiltTask;

/// Bytes of content from which on a layer is a blob of its own: about 8 MiB compressed.
const LARGE: u64 = 24 << 20;
/// How many groups there are.
const GROUPS: u8 = 16;

/// What becomes one blob.
#[derive(Debug)]
pub(super) struct Part {
    /// The layers, in stack order.
    pub(super) layers: Vec<LayerId>,
    /// The entries of the archive.
    pub(super) tree: Tree,
    /// Which part of a large layer it is, from 0.
    pub(super) number: usize,
    /// What it holds, for people.
    pub(super) label: String,
}

/// Puts the layers of a task's stack into blobs, in stack order; `trees` has each layer's tree.
pub(super) fn parts(built: &BuiltTask, trees: &HashMap<LayerId, Tree>) -> Vec<Part> {
    let mut packages: HashMap<LayerId, &str> = HashMap::new();
    let mut labels: HashMap<LayerId, &str> = HashMap::new();
    for step in &built.steps {
        labels.entry(step.layer).or_insert(&step.label);
        if let ("wheel", Some(name)) = (step.kind.as_str(), step.label.split(' ').nth(1)) {
            packages.insert(step.layer, name);
        }
    }
    let label =
        |layer: &LayerId| labels.get(layer).map_or_else(|| layer.short(), |label| (*label).to_owned());
    let mut parts = vec![];
    // The wheels of one run, by group: what lies between two runs must stay between them.
    let mut run: BTreeMap<u8, Vec<LayerId>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for layer in built.layers.iter().filter(|layer| seen.insert(**layer)) {
        let tree = &trees[layer];
        match packages.get(layer) {
            Some(name) if tree.apparent_bytes() < LARGE => {
                let group = blake3::hash(name.as_bytes()).as_bytes()[0] % GROUPS;
                run.entry(group).or_default().push(*layer);
            }
            // Wheels do not hide each other's files, so their order among each other is free.
            Some(_) => parts.extend(alone(*layer, tree, label(layer))),
            None => {
                parts.extend(groups(std::mem::take(&mut run), trees));
                parts.extend(alone(*layer, tree, label(layer)));
            }
        }
    }
    parts.extend(groups(run, trees));
    parts
}

/// Puts layers that are in no stack into blobs.
pub(super) fn loose_parts(layers: &[LayerId], trees: &HashMap<LayerId, Tree>) -> Vec<Part> {
    layers.iter().flat_map(|layer| alone(*layer, &trees[layer], layer.short())).collect()
}

fn alone(layer: LayerId, tree: &Tree, label: String) -> Vec<Part> {
    let cut = split(tree, MAX_PART);
    let part = |(number, tree)| Part { layers: vec![layer], tree, number, label: label.clone() };
    cut.into_iter().enumerate().map(part).collect()
}

fn groups(run: BTreeMap<u8, Vec<LayerId>>, trees: &HashMap<LayerId, Tree>) -> Vec<Part> {
    let mut parts = vec![];
    for (group, layers) in run {
        match union(layers.iter().map(|layer| &trees[layer])) {
            Some(tree) => {
                parts.push(Part { layers, tree, number: 0, label: format!("small packages, group {group}") });
            }
            // Two of them have a file at one path: no archive may.
            None => parts.extend(layers.iter().flat_map(|layer| alone(*layer, &trees[layer], layer.short()))),
        }
    }
    parts
}
