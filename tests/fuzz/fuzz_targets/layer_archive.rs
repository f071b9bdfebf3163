//! Any bytes as a layer archive: refused, or a tree that survives its own encoding.
#![no_main]

use std::sync::OnceLock;

use infradev_layers::{Decompressed, LayerTarOptions, SpecialFiles, TarLimits, Tree, layer_tar_tree};
use infradev_store::{Access, Store};
use libfuzzer_sys::fuzz_target;

fn store() -> &'static Store {
    static STORE: OnceLock<(tempfile::TempDir, Store)> = OnceLock::new();
    let made = STORE.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path(), Access::Write).expect("a store");
        (directory, store)
    });
    &made.1
}

fuzz_target!(|data: &[u8]| {
    let lease = store().lease("fuzz").expect("a lease");
    let ingest = store().ingest(&lease).expect("a batch");
    let limits = TarLimits { bytes: 1 << 24, ..TarLimits::default() };
    let options = LayerTarOptions { special_files: SpecialFiles::Drop, limits };
    let Ok(mut reader) = Decompressed::new(data) else { return };
    let Ok(layer) = layer_tar_tree(&mut reader, options, &ingest) else { return };
    let encoding = layer.tree.encode();
    assert_eq!(Tree::decode(&encoding).expect("an own encoding"), layer.tree);
});
