//! A merged tree looks the same through an EROFS image, through stubs, and as plain files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use infradev_layers::{Tree, merge, write_image, write_stubs};

use super::ground::{Ground, Mount, assert_same, fill, lacks_mounts, read, skipped, text, write};
use crate::support::{Seen, walk};

/// Scans a directory as a layer that stays, and merges it.
fn kept(ground: &Ground, directory: &Path) -> Tree {
    let (tree, _) = ground.keep(|ingest| read(directory, None, ingest).tree);
    merge([&tree])
}

/// What a directory shows, by paths that can be read in a message.
fn seen(directory: &Path) -> BTreeMap<PathBuf, Seen> {
    walk(directory).into_iter().map(|(path, seen)| (PathBuf::from("/").join(path), seen)).collect()
}

fn through_image(ground: &Ground, tree: &Tree, name: &str) -> Option<(Mount, Mount)> {
    let image = ground.path(name);
    write_image(tree, &mut File::create(&image).expect("an own file")).expect("a merged tree");
    let lower = match Mount::new("erofs", &[("ro", ""), ("source", text(&image))]) {
        Ok(mount) => mount,
        Err(error) => {
            skipped(&format!("this kernel mounts no EROFS image from a file: {error}"));
            return None;
        }
    };
    let (objects, at) = (ground.store.layout().objects(), lower.path());
    let options =
        [("metacopy", "on"), ("redirect_dir", "on"), ("lowerdir+", text(&at)), ("datadir+", text(&objects))];
    match Mount::new("overlay", &options) {
        Ok(overlay) => Some((lower, overlay)),
        Err(error) => {
            skipped(&format!("this kernel takes no lower directory that is attached nowhere: {error}"));
            None
        }
    }
}

fn through_stubs(ground: &Ground, tree: &Tree, name: &str) -> Option<Mount> {
    let (stubs, objects) = (ground.path(name), ground.store.layout().objects());
    write_stubs(tree, &ground.path("pool"), &stubs).expect("a merged tree");
    let options = [("userxattr", ""), ("lowerdir+", text(&stubs)), ("datadir+", text(&objects))];
    match Mount::new("overlay", &options) {
        Ok(overlay) => Some(overlay),
        Err(error) => {
            skipped(&format!("this kernel takes no stubs: {error}"));
            None
        }
    }
}

#[test]
fn privileged_images_stubs_and_plain_files_walk_alike() {
    if lacks_mounts() {
        return;
    }
    let ground = Ground::new();
    let plain = ground.directory("plain");
    fill(&plain);
    let tree = kept(&ground, &plain);
    let written = ground.directory("written");
    write(&tree, &written, |object| ground.object(object));
    let mut expected = seen(&plain);
    assert!(expected.len() > 300);
    let root = expected.remove(Path::new("/")).expect("the root was seen");
    let without_root = |mut all: BTreeMap<PathBuf, Seen>| {
        let found = all.remove(Path::new("/")).expect("the root was seen");
        assert_eq!((found.kind, found.mode), (root.kind, root.mode));
        all
    };
    assert_same("written", &without_root(seen(&written)), &expected);
    let Some((_image, overlay)) = through_image(&ground, &tree, "image") else { return };
    let by_image = seen(&overlay.path());
    let Some(overlay) = through_stubs(&ground, &tree, "stubs") else { return };
    // The second tree takes its stubs from the pool.
    let Some(again) = through_stubs(&ground, &tree, "again") else { return };
    for (stubs, overlay) in [("stubs", overlay), ("stubs from the pool", again)] {
        assert_same(stubs, &seen(&overlay.path()), &by_image);
    }
    assert_same("image", &without_root(by_image), &expected);
}

#[test]
fn privileged_names_of_one_content_stay_files_of_their_own() {
    if lacks_mounts() {
        return;
    }
    let ground = Ground::new();
    let plain = ground.directory("plain");
    for name in ["a", "b", "c"] {
        fs::write(plain.join(name), "same").expect("an own file");
    }
    fs::hard_link(plain.join("c"), plain.join("d")).expect("an own link");
    let tree = kept(&ground, &plain);
    let Some((_image, image)) = through_image(&ground, &tree, "image") else { return };
    let Some(stubs) = through_stubs(&ground, &tree, "stubs") else { return };
    for overlay in [image, stubs] {
        let firsts: Vec<_> = walk(&overlay.path()).into_values().skip(1).map(|seen| seen.first).collect();
        assert_eq!(firsts, ["a", "b", "c", "c"].map(PathBuf::from));
    }
}
