//! What a pack of the first version becomes.

use std::io::Write;
use std::sync::Arc;

use super::table::{BLOCK, Table};
use super::write::{Source, Staged};
use super::{PACK_MINIMUM, Pack};
use crate::{Access, ObjectId, Store};

/// Bytes that compress somewhat.
fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed;
    let step = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 60) as u8
    };
    std::iter::repeat_with(step).take(size).collect()
}

#[test]
fn objects_of_larger_blocks_are_cut_anew() {
    // A real disk: a store is not made on tmpfs.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = Store::open(&directory.path().join("store"), Access::Write).unwrap();
    let lease = store.lease("writer").unwrap();
    let sizes = [PACK_MINIMUM as usize, BLOCK as usize, (4 * BLOCK) as usize, (9 * BLOCK) as usize + 1];
    let mut contents: Vec<Vec<u8>> = (1..).zip(sizes).map(|(seed, size)| content(seed, size)).collect();
    contents.sort_by_key(|content| ObjectId::of(content));
    for content in &contents {
        let path = store.layout().object(&ObjectId::of(content));
        // Two may share a directory.
        let _there_already = store.disk().create_directory(path.parent().unwrap());
        store.disk().create(&path, 0o444).unwrap().write_all(content).unwrap();
    }
    let objects: Vec<ObjectId> = contents.iter().map(|content| ObjectId::of(content)).collect();
    let plain: Vec<Source> = objects.iter().map(|object| Source::Plain(*object)).collect();
    let write = |table, sources: &[Source]| -> Staged {
        let (staged, damaged) = store.fill_pack(table, &lease, sources, &()).unwrap();
        assert_eq!(damaged, []);
        staged.unwrap()
    };
    let old = write(Table::of(4 * BLOCK), &plain);
    store.name_pack(&old).unwrap();
    let old = Arc::new(Pack { id: old.id, table: store.read_table(&old.id).unwrap().unwrap().table });
    assert_eq!(old.table.block(), 1 << 20);
    for object in &objects {
        store.check_packed(&old, object, &()).unwrap();
    }
    let packed: Vec<Source> =
        objects.iter().map(|object| Source::Blocks(Arc::clone(&old), *object)).collect();
    let (anew, direct) = (write(Table::default(), &packed), write(Table::default(), &plain));
    assert_eq!(anew.id, direct.id);
    assert!(std::fs::read(anew.image).unwrap() == std::fs::read(direct.image).unwrap());
}
