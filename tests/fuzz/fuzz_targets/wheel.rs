//! Any bytes as a wheel: refused, or a tree below the prefix that survives its own encoding.
#![no_main]

use std::sync::OnceLock;

use infradev_layers::{Tree, WheelTarget, wheel_tree};
use infradev_store::{Access, Store};
use libfuzzer_sys::fuzz_target;

fn place() -> &'static (tempfile::TempDir, Store) {
    static PLACE: OnceLock<(tempfile::TempDir, Store)> = OnceLock::new();
    PLACE.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("store"), Access::Write).expect("a store");
        (directory, store)
    })
}

fuzz_target!(|data: &[u8]| {
    let (directory, store) = place();
    let wheel = directory.path().join("fuzz-1.0-py3-none-any.whl");
    std::fs::write(&wheel, data).expect("an own file");
    let lease = store.lease("fuzz").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    let target = WheelTarget { prefix: "opt/env".parse().expect("a path"), python: "3.11".to_owned() };
    let Ok(tree) = wheel_tree(&wheel, &target, &ingest) else { return };
    for entry in tree.entries() {
        assert!(entry.path.starts_with(&target.prefix) || target.prefix.starts_with(&entry.path), "{}", entry.path);
    }
    assert_eq!(Tree::decode(&tree.encode()).expect("an own encoding"), tree);
});
