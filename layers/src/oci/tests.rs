//! Blobs against the strict reader of layer archives, and piece by piece.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, Write};
use std::sync::OnceLock;

use infradev_store::{Access, ObjectId, Store};
use proptest::prelude::*;

use super::*;
use crate::entry::{Entry, Kind, Metadata};
use crate::testing::{arbitrary_tree, directory, file, path, tree};
use crate::tree::{Tree, TreeBuilder};
use crate::{Decompressed, LayerTarOptions, layer_tar_tree};

/// Every content that a random tree can have.
fn contents() -> &'static HashMap<ObjectId, Vec<u8>> {
    static CONTENTS: OnceLock<HashMap<ObjectId, Vec<u8>>> = OnceLock::new();
    CONTENTS.get_or_init(|| {
        let one = (0..=255).map(|byte| vec![byte]);
        let two = (0..=255).flat_map(|first| (0..=255).map(move |second| vec![first, second]));
        let large = [vec![b'x'; 3 << 20], vec![b'y'; 700]];
        one.chain(two).chain(large).map(|content| (ObjectId::of(&content), content)).collect()
    })
}

fn open(object: &ObjectId) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(contents().get(object).ok_or(io::ErrorKind::NotFound)?)?;
    file.rewind()?;
    Ok(file)
}

fn blob(of: &Tree, compression: Compression) -> (Vec<u8>, BlobDone) {
    let mut bytes = vec![];
    let source = BlobSource { layers: vec![of.encode()], tree: of };
    let done = write_blob(&source, compression, &open, &mut bytes).unwrap();
    (bytes, done)
}

/// What an archive says of a tree: directories are described, and nobody knows which were not.
fn described(tree: &Tree) -> Vec<Entry> {
    let describe = |kind: &Kind| match kind {
        Kind::ImpliedDirectory => Kind::Directory { metadata: Metadata::implied(), opaque: false },
        kind => kind.clone(),
    };
    let entries = tree.entries().iter().filter(|entry| !entry.path.is_root());
    entries.map(|entry| Entry { path: entry.path.clone(), kind: describe(&entry.kind) }).collect()
}

fn assert_reads(of: &Tree, compression: Compression) {
    let (bytes, done) = blob(of, compression);
    assert_eq!(done.size, bytes.len() as u64);
    assert_eq!(blob(of, compression).0, bytes, "one tree, one blob");
    // Whole, by the reader of image layers.
    static STORE: OnceLock<(tempfile::TempDir, Store)> = OnceLock::new();
    let (_, store) = STORE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store"), Access::Write).unwrap();
        (directory, store)
    });
    let lease = store.lease("test").unwrap();
    let ingest = store.ingest(&lease).unwrap();
    let mut reader = Decompressed::new(&bytes[..]).unwrap();
    let read = layer_tar_tree(&mut reader, LayerTarOptions::default(), &ingest).unwrap();
    assert_eq!(described(&read.tree), described(of));
    assert_eq!(read.diff_id, done.diff_id);
    // Piece by piece, by the table of contents.
    let (from, to) = (done.toc.offset as usize, (done.toc.offset + done.toc.length) as usize);
    assert_eq!(to, bytes.len());
    let toc = done.toc.read(&bytes[from..to], compression, done.size).unwrap();
    assert_eq!(toc.layers, [of.encode()]);
    for frame in &toc.frames {
        let piece = &bytes[frame.offset as usize..frame.end() as usize];
        let mut content = vec![];
        io::Read::read_to_end(&mut compression.reader(piece).unwrap(), &mut content).unwrap();
        assert_eq!(ObjectId::of(&content), frame.object.object);
    }
    let mut named: Vec<_> = toc.frames.iter().map(|frame| frame.object).collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, of.references());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blobs_hold_their_layers(of in arbitrary_tree()) {
        for compression in [Compression::Zstd, Compression::Gzip] {
            assert_reads(&of, compression);
        }
    }

    #[test]
    fn a_damaged_table_is_refused(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        for compression in [Compression::Zstd, Compression::Gzip] {
            let (bytes, done) = blob(&tree([("a", file(b"xy"))]), compression);
            let mut tail = bytes[done.toc.offset as usize..].to_vec();
            tail[at.index(done.toc.length as usize)] ^= 1 << bit;
            prop_assert!(done.toc.read(&tail, compression, done.size).is_err());
        }
    }

    #[test]
    fn any_bytes_are_no_table_or_one_that_holds(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        bytes.splice(0..0, *b"infradev toc\0\0\0\x01");
        let compressed = zstd::bulk::compress(&bytes, 1).unwrap();
        if let Ok(toc) = Toc::decode(&compressed, 1 << 20) {
            prop_assert!(toc.frames.iter().all(|frame| frame.end() <= 1 << 20));
        }
    }
}

#[test]
fn long_names_large_numbers_and_attributes() {
    let deep = ["d".repeat(90), "e".repeat(90), "f".repeat(120)].join("/");
    let mut builder = TreeBuilder::new();
    let metadata = Metadata {
        uid: 3_000_000,
        gid: 70_000,
        mtime: -5,
        xattrs: vec![(b"user.note".as_slice().into(), b"\0\n=".as_slice().into())],
        ..Metadata::new(0o640, 0)
    };
    let Kind::File { content, .. } = file(&contents()[&ObjectId::of(&[b'x'; 3 << 20])]) else {
        unreachable!()
    };
    builder.add(path(&deep), Kind::File { metadata, content }).unwrap();
    builder.add(path("link"), Kind::Hardlink { first: path(&deep) }).unwrap();
    let target = "t/".repeat(90).into_bytes().into();
    builder.add(path("s"), Kind::Symlink { metadata: Metadata::new(0o777, 1 << 40), target }).unwrap();
    assert_reads(&builder.finish().unwrap(), Compression::Zstd);
}

#[test]
fn what_an_image_cannot_hold_is_refused() {
    let reserved = tree([("a/.wh.b", file(b"x"))]);
    let source = BlobSource { layers: vec![reserved.encode()], tree: &reserved };
    let refused = write_blob(&source, Compression::Zstd, &open, &mut vec![]).unwrap_err();
    assert!(refused.to_string().contains("/a/.wh.b"), "{refused}");
}

#[test]
fn a_damaged_object_is_named() {
    let of = tree([("a", file(b"xy"))]);
    let source = BlobSource { layers: vec![of.encode()], tree: &of };
    let damaged = |_: &ObjectId| open(&ObjectId::of(b"ab"));
    let refused = write_blob(&source, Compression::Zstd, &damaged, &mut vec![]).unwrap_err();
    assert!(matches!(refused, BlobError::Damaged { .. }), "{refused}");
    let short = |_: &ObjectId| open(&ObjectId::of(b"a"));
    let refused = write_blob(&source, Compression::Zstd, &short, &mut vec![]).unwrap_err();
    assert!(matches!(refused, BlobError::Damaged { .. }), "{refused}");
}

#[test]
fn parts_hold_everything_and_links_stay_together() {
    let of = tree([
        ("d", directory(0o700)),
        ("d/a", file(&[b'y'; 700])),
        ("d/b", file(b"xy")),
        ("e/c", file(b"ab")),
        ("e/link", Kind::Hardlink { first: path("d/a") }),
    ]);
    let parts = split(&of, 600);
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[0].get(&path("e/link")), of.get(&path("e/link")));
    assert_eq!(parts[1].get(&path("d")), of.get(&path("d")), "a part has its directories");
    let names = |tree: &Tree| tree.entries().iter().filter(|entry| !entry.kind.is_directory()).count();
    assert_eq!(parts.iter().map(names).sum::<usize>(), names(&of));
    assert_eq!(split(&of, 1 << 20), [of]);
}

#[test]
fn layers_with_one_path_are_not_united() {
    let (one, other) = (tree([("d/a", file(b"x"))]), tree([("d/b", file(b"y"))]));
    assert_eq!(union([&one, &other]).unwrap().references().len(), 2);
    assert!(union([&one, &one]).is_none());
}
