//! Damage: found, named, told apart from what could not be checked, and never served.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::support::{Need, Place, TASK, User, lacks};

fn built(user: User) -> Place {
    let place = Place::new(user);
    place.ok(&["build", TASK]);
    place
}

/// The object of a file of the source tree, found by its content.
fn object_of(place: &Place, content: &[u8]) -> PathBuf {
    let found =
        place.contents().into_iter().find(|(path, bytes)| path.contains("/objects/") && bytes == content);
    found.expect("the content is an object").0.into()
}

fn overwrite(path: &PathBuf, bytes: &[u8]) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("an own file");
    fs::write(path, bytes).expect("an own file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).expect("an own file");
}

#[test]
fn one_flipped_bit_is_found_and_named() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built(User::Caller);
    let object = object_of(&place, b"VALUE = 1\n");
    overwrite(&object, b"VALUE = 3\n");
    assert_eq!(place.run(&["verify"]).status, 0, "the quick check reads no content");
    let found = place.run(&["verify", "--read-data"]);
    let id = format!(
        "{}{}",
        object.parent().and_then(|parent| parent.file_name()).expect("a prefix").to_string_lossy(),
        object.file_name().expect("a name").to_string_lossy()
    );
    assert_eq!(found.status, 1, "{}", found.stdout);
    assert!(found.stdout.contains(&id) && found.stdout.contains("its bytes hash to"), "{}", found.stdout);
    assert!(found.stdout.contains("(in demo/one@cpu)"), "{}", found.stdout);
    assert!(found.stderr.contains("to mend:"), "{}", found.stderr);
    let json = place.run(&["verify", "--read-data", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((json.status, value["damage"].as_array().map(Vec::len)), (1, Some(1)));
    // The advice works.
    place.ok(&["rm", TASK]);
    place.ok(&["gc", "--all"]);
    place.ok(&["build", TASK]);
    place.assert_whole();
    assert_eq!(place.sh("cat demo/__init__.py"), "VALUE = 1\n");
}

#[test]
fn a_truncated_or_missing_object_is_found_quickly() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built(User::Caller);
    let object = object_of(&place, b"VALUE = 1\n");
    overwrite(&object, b"VALUE");
    let found = place.run(&["verify"]);
    assert_eq!(found.status, 1);
    assert!(found.stdout.contains("expected 10 bytes, found 5"), "{}", found.stdout);
    fs::remove_file(&object).expect("an own file");
    let found = place.run(&["verify"]);
    assert_eq!(found.status, 1);
    assert!(found.stdout.contains("it is missing"), "{}", found.stdout);
}

#[test]
fn a_damaged_layer_is_never_served() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built(User::Caller);
    for name in place.listing("images") {
        fs::remove_file(place.store().join("images").join(name)).expect("an own file");
    }
    let layer = place.store().join("layers").join(&place.listing("layers")[0]);
    let mut bytes = fs::read(&layer).expect("an own file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    overwrite(&layer, &bytes);
    let found = place.run(&["verify"]);
    assert_eq!(found.status, 1, "{}{}", found.stdout, found.stderr);
    assert!(found.stdout.contains("damaged: layer"), "{}", found.stdout);
    let served = place.run(&["env", "exec", TASK, "--", "true"]);
    assert_eq!(served.status, 125, "{}", served.stderr);
    assert!(served.stderr.contains("damaged") && served.stderr.contains("hint: "), "{}", served.stderr);
}

#[test]
fn a_damaged_image_is_found_and_made_anew() {
    if lacks(Need::Sandbox) || lacks(Need::Root) {
        return;
    }
    let place = built(User::Caller);
    let image = place.store().join("images").join(&place.listing("images")[0]);
    let mut bytes = fs::read(&image).expect("an own file");
    let last = bytes.len() - 200;
    bytes[last] ^= 0x20;
    fs::write(&image, bytes).expect("an own file");
    let found = place.run(&["verify", "--read-data"]);
    assert_eq!(found.status, 1, "{}", found.stdout);
    assert!(found.stdout.contains("damaged: image"), "{}", found.stdout);
    fs::remove_file(&image).expect("an own file");
    assert_eq!(place.sh("cat demo/__init__.py"), "VALUE = 1\n");
    place.assert_whole();
}

#[test]
fn what_cannot_be_read_is_not_called_damaged() {
    if lacks(Need::UserNamespaces) {
        return;
    }
    let place = built(User::Ordinary);
    let object = object_of(&place, b"VALUE = 1\n");
    fs::set_permissions(&object, fs::Permissions::from_mode(0o000)).expect("an own file");
    let found = place.run(&["verify", "--read-data"]);
    assert_eq!(found.status, 3, "{}", found.stdout);
    assert!(found.stdout.contains("not checked: object"), "{}", found.stdout);
    fs::set_permissions(&object, fs::Permissions::from_mode(0o444)).expect("an own file");
    // An unreadable root stops the collection, and nothing is removed.
    let root = place.store().join("roots/tasks/demo%2Fone@cpu.json");
    fs::set_permissions(&root, fs::Permissions::from_mode(0o000)).expect("an own file");
    let objects = place.contents().len();
    let collected = place.run(&["gc", "--all"]);
    assert_eq!(collected.status, 3, "{}", collected.stderr);
    assert!(
        collected.stderr.contains("roots/tasks/demo%2Fone@cpu.json cannot be read"),
        "{}",
        collected.stderr
    );
    assert_eq!(place.contents().len(), objects);
}

#[test]
fn a_lost_index_loses_only_time() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = built(User::Caller);
    place.ok(&["env", "mount", TASK, "--name", "held"]);
    place.ok(&["env", "exec", "held", "--", "sh", "-c", "echo x >made"]);
    let index = place.store().join("index.db");
    for garbage in [
        None,
        Some(&b""[..]),
        Some(b"this is no database, and long enough to be read as one"),
        Some(&[0; 8192]),
    ] {
        for suffix in ["", "-wal", "-shm"] {
            let _may_be_absent = fs::remove_file(place.store().join(format!("index.db{suffix}")));
        }
        if let Some(garbage) = garbage {
            fs::write(&index, garbage).expect("an own file");
        }
        assert_eq!(place.run(&["verify"]).status, 0, "reading copes with {garbage:?}");
        let built = place.run(&["build", TASK, "--require-hit", "--offline"]);
        assert!(built.status == 0 && built.stderr.contains("nothing to do"), "{garbage:?}: {}", built.stderr);
        assert_eq!(place.ok(&["env", "exec", "held", "--", "cat", "made"]), "x\n");
        place.ok(&["gc"]);
        place.assert_whole();
    }
    place.ok(&["env", "rm", "held"]);
}
