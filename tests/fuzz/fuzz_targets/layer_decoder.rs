//! Any bytes as a layer's encoding: refused, or the one encoding of the tree that they describe.
#![no_main]

use infradev_layers::{Tree, merge};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(tree) = Tree::decode(data) else { return };
    assert_eq!(tree.encode(), data, "an encoding is canonical or refused");
    let below = merge(std::slice::from_ref(&tree));
    let merged = merge(&[below, tree]);
    assert_eq!(Tree::decode(&merged.encode()).expect("an own encoding"), merged);
});
