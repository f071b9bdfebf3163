//! Encodings: a golden vector, round trips, and what is refused.

use infradev_store::ObjectId;
use proptest::prelude::*;

use super::*;
use crate::testing::{arbitrary_tree, file, path, tree};

/// One of everything; its id is part of the format and must never change.
fn golden_tree() -> Tree {
    let object = Content::Object(ObjectId::of(b"hello"), 5);
    let metadata = Metadata {
        xattrs: vec![(b"user.colour".as_slice().into(), b"red".as_slice().into())],
        uid: 1000,
        gid: 100,
        ..Metadata::new(0o755, -1)
    };
    tree([
        ("bin/tool", Kind::File { metadata: metadata.clone(), content: object }),
        ("bin/twin", Kind::Hardlink { first: path("bin/tool") }),
        ("empty", Kind::File { metadata: Metadata::new(0o644, 315_532_800), content: Content::Empty }),
        ("etc", Kind::Directory { metadata: metadata.clone(), opaque: true }),
        ("link", Kind::Symlink { metadata: Metadata::new(0o777, 0), target: b"bin/tool".as_slice().into() }),
        ("old", Kind::Whiteout),
        ("run", Kind::Directory { metadata: Metadata::new(0o1777, 1), opaque: false }),
    ])
}

#[test]
fn golden_vector() {
    let encoding = golden_tree().encode();
    let hex: String = encoding.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("../testdata/golden-layer.hex").trim());
    assert_eq!(LayerId::of(&encoding).to_hex(), include_str!("../testdata/golden-layer.id").trim());
}

#[test]
fn every_cut_and_every_flipped_bit_is_noticed() {
    let golden = golden_tree();
    let encoding = golden.encode();
    assert_eq!(Tree::decode(&encoding).as_ref(), Ok(&golden));
    for cut in 0..encoding.len() {
        assert!(Tree::decode(&encoding[..cut]).is_err(), "cut at {cut}");
    }
    for bit in 0..encoding.len() * 8 {
        let mut flipped = encoding.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        // A flipped bit may be another valid tree, but never another encoding of this one.
        if let Ok(other) = Tree::decode(&flipped) {
            assert_ne!(other, golden, "bit {bit}");
            assert_eq!(other.encode(), flipped, "bit {bit}");
        }
    }
}

#[test]
fn a_lying_count_reserves_no_memory() {
    let mut encoding = tree([]).encode();
    encoding.pop();
    let at = encoding.len() - 3;
    encoding.truncate(at);
    write_varint(u64::MAX, &mut encoding);
    assert!(matches!(Tree::decode(&encoding), Err(DecodeError::Length(_))));
}

#[test]
fn set_id_bits_do_not_decode() {
    let good = tree([("a", file(b"x"))]).encode();
    // The mode 0644 is the varint a4 03; 04644 would be a4 13.
    let at = good.windows(2).rposition(|pair| pair == [0xa4, 0x03]).unwrap();
    let mut bad = good;
    bad[at + 1] = 0x13;
    assert!(matches!(Tree::decode(&bad), Err(DecodeError::NotCanonical { .. })));
}

proptest! {
    #[test]
    fn decodes_what_it_encodes(tree in arbitrary_tree()) {
        let encoding = tree.encode();
        prop_assert_eq!(Tree::decode(&encoding), Ok(tree));
    }

    #[test]
    fn whatever_decodes_encodes_to_itself(tail in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut encoding = tree([]).encode();
        encoding.pop();
        encoding.extend(tail);
        if let Ok(tree) = Tree::decode(&encoding) {
            prop_assert_eq!(tree.encode(), encoding);
        }
    }
}
