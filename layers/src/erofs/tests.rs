//! Images read back, and what the planner makes of odd trees.

#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::fs;
use std::process::Command;

use infradev_store::ObjectId;
use proptest::prelude::*;

use super::*;
use crate::entry::{Content, Entry, Kind, Metadata};
use crate::merge::merge;
use crate::testing::{arbitrary_tree, directory, file, path, tree};
use crate::tree::TreeBuilder;

pub(crate) fn image(tree: &Tree) -> Vec<u8> {
    let mut image = vec![];
    write_image(tree, &mut image).expect("a tree of a test");
    image
}

/// What an image can show of a tree: symlinks have no attributes of their own.
fn shown(tree: &Tree) -> Tree {
    let without = |entry: &Entry| {
        let mut entry = entry.clone();
        if let Kind::Symlink { metadata, .. } = &mut entry.kind {
            metadata.xattrs.clear();
        }
        entry
    };
    Tree::from_sorted(tree.entries().iter().map(without).collect())
}

/// Reads the image back and, where erofs-utils is installed, lets it judge.
fn check(tree: &Tree) {
    let image = image(tree);
    assert_eq!(read_image(&image).unwrap(), shown(tree));
    fsck(&image);
}

fn fsck(image: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory for the image");
    let at = directory.path().join("image.erofs");
    fs::write(&at, image).expect("the image is written");
    match Command::new("fsck.erofs").arg(&at).output() {
        Err(error) => eprintln!("skipped: no fsck.erofs ({error})"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{said}");
        }
    }
}

pub(crate) fn described(entries: impl IntoIterator<Item = (Vec<u8>, Kind)>) -> Tree {
    let mut builder = TreeBuilder::new();
    for (at, kind) in entries {
        builder.add(TreePath::new(&at).expect("a path of a test"), kind).expect("a tree of a test");
    }
    merge([&builder.finish().expect("a tree of a test")])
}

/// The contents of the files of [`awkward`].
pub(crate) fn contents() -> impl Iterator<Item = &'static [u8]> {
    let contents = "plain content|linked|not UTF-8|a long name|deep|no permissions|sorts before `.`|\
        sorts between `.` and `..`|before 1970|after 2106|an owner over 16 bits|two|many";
    contents.split('|').map(str::as_bytes)
}

/// Whatever is awkward and still allowed.
pub(crate) fn awkward() -> Tree {
    let with = |mode, uid, mtime, xattrs: &[(&str, Vec<u8>)]| Metadata {
        uid,
        gid: uid + 1,
        xattrs: xattrs.iter().map(|(name, value)| (name.as_bytes().into(), value[..].into())).collect(),
        ..Metadata::new(mode, mtime)
    };
    let of = |metadata, bytes: &[u8]| {
        let content = match file(bytes) {
            Kind::File { content, .. } => content,
            _ => Content::Empty,
        };
        Kind::File { metadata, content }
    };
    let link = |target: &[u8]| Kind::Symlink { metadata: with(0o777, 0, 7, &[]), target: target.into() };
    let deep = (0..40).map(|_| "d".repeat(90)).collect::<Vec<_>>().join("/");
    let mut entries: Vec<(Vec<u8>, Kind)> = vec![
        (b"plain".into(), file(b"plain content")),
        (b"twin".into(), file(b"plain content")),
        (b"other".into(), of(with(0o600, 7, 99, &[]), b"plain content")),
        (b"empty".into(), file(b"")),
        (b"linked/a".into(), file(b"linked")),
        (b"linked/b".into(), Kind::Hardlink { first: path("linked/a") }),
        (b"z".into(), Kind::Hardlink { first: path("linked/a") }),
        (b"caf\xe9 \n\xff".into(), file(b"not UTF-8")),
        (vec![b'n'; 255], file(b"a long name")),
        (deep.into_bytes(), file(b"deep")),
        (b"dir/short".into(), link(b"../plain")),
        (b"dir/inline".into(), link(&[b's'; 3000])),
        (b"dir/block".into(), link(&[b's'; 4095])),
        (b"dir/shut".into(), of(with(0o000, 0, 7, &[]), b"no permissions")),
        (b"dir/+before dots".into(), file(b"sorts before `.`")),
        (b"dir/.-between".into(), file(b"sorts between `.` and `..`")),
        (b"old".into(), of(with(0o644, 0, -12345, &[]), b"before 1970")),
        (b"late".into(), of(with(0o644, 0, 1 << 33, &[]), b"after 2106")),
        (b"owner".into(), of(with(0o644, 70_000, 7, &[]), b"an owner over 16 bits")),
        (b"marked".into(), of(with(0o644, 0, 7, &[("user.a", b"1".to_vec()), ("user.b", vec![])]), b"two")),
        (b"marked2".into(), of(with(0o640, 0, 7, &[("user.a", b"1".to_vec())]), b"")),
        (b"sticky".into(), Kind::Directory { metadata: with(0o1777, 0, 5, &[]), opaque: false }),
        (
            b"sticky/marked".into(),
            Kind::Directory { metadata: with(0o750, 3, 5, &[("user.d", vec![9; 3000])]), opaque: false },
        ),
        (b"none".into(), directory(0o000)),
        (b"closed".into(), directory(0o000)),
        (b"closed/below/file".into(), file(b"deep")),
    ];
    for number in 0..600 {
        entries.push((format!("many/{}{number}", "x".repeat(number % 200)).into_bytes(), file(b"many")));
    }
    described(entries)
}

fn marked(count: usize, value: usize) -> Tree {
    let xattrs = (0..count)
        .map(|n| (format!("user.{n:05}").into_bytes().into(), vec![n as u8; value].into()))
        .collect();
    let metadata = Metadata { xattrs, ..Metadata::new(0o644, 1) };
    let content = Content::Object(ObjectId::of(b"x"), 1);
    merge([&tree([("marked", Kind::File { metadata, content })])])
}

#[test]
fn an_awkward_tree_is_read_back() {
    check(&awkward());
    check(&merge([&tree([])]));
}

#[test]
fn more_than_255_attributes_and_large_ones_are_read_back() {
    check(&marked(400, 3));
    check(&marked(3, 65_535));
    check(&marked(255, 800));
}

#[test]
fn sizes_at_the_limits_are_read_back() {
    let sized = |size| Kind::File {
        metadata: Metadata::new(0o644, 1),
        content: Content::Object(ObjectId::of(b"x"), size),
    };
    let (four_gib, eight_tib) = (1 << 32, 1 << 43);
    let limits = tree([("a", sized(four_gib - 1)), ("b", sized(four_gib)), ("c", sized(eight_tib))]);
    let limits = merge([&limits]);
    assert_eq!(read_image(&image(&limits)).unwrap(), limits);
    let beyond = merge([&tree([("d", sized(eight_tib + 1))])]);
    assert!(matches!(write_image(&beyond, &mut vec![]), Err(ImageError::Size { .. })));
}

#[test]
fn a_hundred_thousand_names_in_one_directory() {
    let many = described((0..100_000).map(|n| (format!("d/name{n}").into_bytes(), file(&[n as u8 + 1]))));
    check(&many);
    assert_eq!(many.entries().len(), 100_002);
}

#[test]
fn more_links_than_sixteen_bits() {
    let names = (0..70_000).map(|n| (format!("l{n}").into_bytes(), Kind::Hardlink { first: path("a") }));
    check(&described([(b"a".to_vec(), file(b"x"))].into_iter().chain(names)));
}

#[test]
fn the_commonest_time_makes_small_inodes() {
    let stats = |tree: &Tree| write_image(tree, &mut vec![]).unwrap();
    // The two files are of one time, the root of another.
    let two = stats(&merge([&tree([("a", file(b"1")), ("b", file(b"1"))])]));
    assert_eq!((two.inodes, two.compact_inodes), (3, 2));
    let one = stats(&merge([&tree([("a", file(b"1"))])]));
    assert_eq!(two.xattr_bytes, one.xattr_bytes, "a twin adds no attributes");
}

#[test]
fn refuses_what_no_mount_could_show() {
    let refused = |tree: &Tree| write_image(tree, &mut vec![]).expect_err("refused").to_string();
    assert_eq!(refused(&tree([])), "/ is a directory: only a merged tree can be an image");
    let opaque = Kind::Directory { metadata: Metadata::new(0o755, 0), opaque: true };
    let layer = tree([("", opaque), ("a", Kind::Whiteout)]);
    assert_eq!(refused(&layer), "/a is a whiteout: only a merged tree can be an image");
    assert_eq!(
        refused(&marked(1, 65_536)),
        "extended attribute `user.00000` of /marked has a value of more than 65535 bytes"
    );
    assert!(refused(&marked(300, 9000)).ends_with("is one of more than fit an inode"));
    for target in [vec![], vec![b'x'; 4096], b"a\0b".to_vec()] {
        let metadata = Metadata::new(0o777, 0);
        let link = Kind::Symlink { metadata, target: target.into() };
        assert!(refused(&merge([&tree([("l", link)])])).starts_with("symlink /l has a target of "));
    }
}

#[test]
fn any_damage_of_the_first_block_is_found() {
    let image = image(&awkward());
    for at in (1024..4096).step_by(7) {
        let mut damaged = image.clone();
        damaged[at] ^= 0x10;
        assert!(matches!(read_image(&damaged), Err(ReadError::Superblock(_))), "at {at}");
    }
}

proptest! {
    #[test]
    fn an_image_is_read_back_as_its_tree(layers in prop::collection::vec(arbitrary_tree(), 1..4)) {
        let merged = merge(&layers);
        let written = image(&merged);
        prop_assert_eq!(read_image(&written).unwrap(), shown(&merged));
        prop_assert_eq!(image(&merged.clone()), written);
    }

    #[test]
    fn a_damaged_image_is_an_error_or_another_tree(at in 4096usize..20_000, byte: u8) {
        let mut damaged = image(&awkward());
        damaged[at] = byte;
        let _ = read_image(&damaged);
    }
}
