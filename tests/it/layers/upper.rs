//! Uppers: what an overlay captured, put over what lay below, is what the overlay showed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use infradev_layers::{Kind, Scanned, TreePath, merge};
use infradev_store::LayerId;

use super::ground::{
    But, Chance, Ground, Mount, assert_same, fill, lacks_mounts, set_xattr, sh, shown, text,
};
use crate::support::{rounds, walk};

/// How an upper is mounted: complete in itself, with pointers into what lies below, and as by a user.
const MOUNTS: [&[(&str, &str)]; 3] = [
    &[("metacopy", "off"), ("redirect_dir", "off")],
    &[("metacopy", "on"), ("redirect_dir", "on")],
    &[("userxattr", "")],
];

/// Changes a tree through an overlay, captures the upper, and checks it against what the overlay shows.
///
/// `change` returns what it did, for the message.
#[track_caller]
fn capture(
    ground: &Ground,
    options: &[(&str, &str)],
    lower: impl Fn(&Path),
    change: impl Fn(&Path) -> String,
    but: But,
) -> Scanned {
    let place = ground.fresh();
    let [below, upper, work] = ["below", "upper", "work"].map(|name| {
        let path = place.path().join(name);
        fs::create_dir(&path).expect("an own directory");
        path
    });
    lower(&below);
    let lower = merge([&ground.scan(&below, None).tree]);
    let directories = [("upperdir", text(&upper)), ("workdir", text(&work)), ("volatile", "")];
    let overlay = Mount::overlay(&[below], &[options, &directories[..]].concat());
    let done = change(&overlay.path());
    let showed = merge([&ground.scan(&overlay.path(), None).tree]);
    drop(overlay);
    let captured = ground.scan(&upper, Some(&lower));
    let merged = merge([&lower, &captured.tree]);
    let what = format!("{done} with {options:?}, captured as {:#?}", captured.tree.entries());
    assert_same(&what, &shown(&merged, but), &shown(&showed, but));
    captured
}

/// Checks a change, given as a shell line, of a lower tree with every way to mount.
#[track_caller]
fn check(change: &str) -> Vec<Scanned> {
    let change = |merged: &Path| {
        sh(merged, change);
        change.to_owned()
    };
    let ground = Ground::new();
    MOUNTS.iter().map(|options| capture(&ground, options, lower, change, But::DirectoryTimes)).collect()
}

fn lower(directory: &Path) {
    sh(
        directory,
        r#"umask 022
        mkdir -p d/sub/deep d/other e empty
        for name in f g d/x d/y d/sub/x d/sub/deep/x d/other/x e/x; do echo $name >$name; done
        ln d/y d/z; ln -s x d/link; ln f h
        chmod 700 d/sub; chmod 600 d/x
        find . -mindepth 1 -depth -exec touch -h -d @1234567890 {} +"#,
    );
}

#[test]
fn privileged_a_directory_and_an_upper_of_the_same_files_are_one_layer() {
    if lacks_mounts() {
        return;
    }
    let fill = |directory: &Path| {
        fill(directory);
        sh(directory, "cp -p script suid && chmod 6755 suid");
        "everything".to_owned()
    };
    let ground = Ground::new();
    let plain = ground.directory("plain");
    fill(&plain);
    let plain = ground.scan(&plain, None);
    assert!(plain.tree.entries().len() > 300);
    assert_eq!(plain.dropped, []);
    for options in MOUNTS {
        let captured = capture(&ground, options, |_| {}, fill, But::Nothing);
        assert_same("everything", &shown(&captured.tree, But::Nothing), &shown(&plain.tree, But::Nothing));
        assert_eq!(LayerId::of(&captured.tree.encode()), LayerId::of(&plain.tree.encode()));
    }
}

#[test]
fn privileged_what_was_removed_stays_removed() {
    if lacks_mounts() {
        return;
    }
    for (change, removed) in [
        ("rm f", &["/f"][..]),
        ("rm -r d", &["/d"]),
        ("rm d/sub/deep/x", &["/d/sub/deep/x"]),
        ("rmdir empty", &["/empty"]),
        ("rm d/y", &["/d/y"]),
        ("rm -r d e empty f g h", &["/d", "/e", "/empty", "/f", "/g", "/h"]),
    ] {
        for captured in check(change) {
            let entries = captured.tree.entries().iter();
            let whiteouts = entries.filter(|entry| entry.kind == Kind::Whiteout);
            assert_eq!(whiteouts.map(|entry| entry.path.to_string()).collect::<Vec<_>>(), removed);
        }
    }
}

#[test]
fn privileged_a_new_directory_hides_the_one_it_replaced() {
    if lacks_mounts() {
        return;
    }
    for change in [
        "rm -r d && mkdir d",
        "rm -r d && mkdir d && echo new >d/x",
        // Of the same modes as below, which must not make them look unchanged.
        "rm -r d && mkdir -p d/sub/deep && chmod 700 d/sub",
        "rm -r d && mkdir -p d/sub && chmod 700 d/sub && echo new >d/sub/new",
        "rm -r d/sub && mkdir d/sub && chmod 700 d/sub",
    ] {
        check(change);
    }
}

#[test]
fn privileged_one_kind_replaces_another() {
    if lacks_mounts() {
        return;
    }
    for change in [
        "rm f && mkdir f && echo new >f/x",
        "rm -r d && echo new >d",
        "rm -r d && ln -s e d",
        "rm d/link && echo new >d/link",
        "rm d/link && mkdir d/link",
        "rm f && ln -s g f",
        "rm f && ln g f",
        "rm -r d && echo new >d && rm d && mkdir -p d/sub && chmod 700 d/sub",
    ] {
        check(change);
    }
}

#[test]
fn privileged_changed_metadata_keeps_the_content() {
    if lacks_mounts() {
        return;
    }
    for change in [
        "chmod 755 f",
        "chmod 755 d/sub/deep/x && touch -d @99 d/sub/deep/x",
        "chown 3:4 d/y",
        "touch -h -d @5 d/link",
        "chmod 711 d/sub",
        "chmod 711 d && chown 7:7 d/sub",
        "chmod 755 f && ln f d/other/f",
        "chmod 755 f && echo more >>f",
        "ln d/x linked && chmod 644 linked",
        "chmod 755 f && mv f d/f",
        "mv f f2 && chmod 755 f2",
        "chmod 700 d/x && mv d/x d/x2 && ln d/x2 e/x2",
        ": >f; chmod 755 f",
    ] {
        check(change);
    }
}

#[test]
fn privileged_changed_attributes_are_captured() {
    if lacks_mounts() {
        return;
    }
    for options in MOUNTS {
        let change = |merged: &Path| {
            for path in ["f", "d", "d/sub/x"] {
                set_xattr(&merged.join(path), b"user.new", b"1");
            }
            "new attributes".to_owned()
        };
        capture(&Ground::new(), options, lower, change, But::DirectoryTimes);
    }
}

#[test]
fn privileged_a_renamed_directory_takes_its_content_along() {
    if lacks_mounts() {
        return;
    }
    for change in [
        "mv d moved",
        "mv d e/moved",
        "mv d moved && rm moved/x && rm -r moved/sub",
        "mv d moved && echo more >>moved/x && chmod 755 moved/sub/x && echo new >moved/sub/new",
        "mv d moved && rm -r moved/sub && mkdir moved/sub && chmod 700 moved/sub",
        "mv d moved && rm moved/x && mkdir moved/x",
        "mv d moved && mv moved/sub moved/renamed",
        "mv d moved && mv moved/sub/deep deep && rm deep/x",
        "mv d/sub sub && mv d moved && mkdir d && mv sub d/sub",
        "mv d moved && chmod 755 moved/x && mv moved/x x",
        "mv d moved && mv moved/x moved/x2 && chmod 755 moved/x2",
        "mv d aside && mv e d && mv aside e",
        "rm -r e && mv d e",
        "rm -r e && mv d e && echo new >e/sub/new && chmod 700 e/other",
        "mv d moved && mkdir -p d/sub && chmod 700 d/sub && echo new >d/x",
        "mv d moved && mv moved d",
        "mv d e/d && mv e moved",
        "mv d/sub e/sub && mv e/sub/deep d/deep && chmod 700 d/deep && touch d/deep/x",
        "mv d moved && rm -r moved",
    ] {
        check(change);
    }
}

#[test]
fn privileged_devices_and_pipes_are_dropped_and_reported() {
    if lacks_mounts() {
        return;
    }
    let change = |merged: &Path| {
        let line = "mkdir new; mkfifo new/pipe d/pipe; mknod null c 1 3; mknod disk b 7 0
            rm f; mkfifo f; rm -r e; mknod e c 1 5; mv d moved";
        sh(merged, line);
        drop(UnixListener::bind(merged.join("socket")).expect("a socket"));
        line.to_owned()
    };
    for options in MOUNTS {
        let captured = capture(&Ground::new(), options, lower, change, But::DirectoryTimes);
        let mut dropped: Vec<String> = captured.dropped.iter().map(TreePath::to_string).collect();
        dropped.sort();
        assert_eq!(dropped, ["/disk", "/e", "/f", "/moved/pipe", "/new/pipe", "/null", "/socket"]);
    }
}

#[test]
fn privileged_random_changes_are_captured() {
    if lacks_mounts() {
        return;
    }
    let ground = Ground::new();
    for seed in 0..rounds(40, 2000) {
        for options in MOUNTS {
            let change = |merged: &Path| {
                let mut chance = Chance::new(seed);
                let changes = 3 + chance.below(12);
                let done: Vec<_> = (0..changes).map(|_| change_something(merged, &mut chance)).collect();
                format!("seed {seed}: {done:#?}")
            };
            // A link between a moved name and one that stayed is lost: a layer links within itself.
            capture(&ground, options, lower, change, But::DirectoryTimesAndLinks);
        }
    }
}

/// Does one thing to the tree at `root`; that it may be impossible is fine. Says what.
fn change_something(root: &Path, chance: &mut Chance) -> String {
    const NAMES: [&str; 8] = ["d", "e", "f", "x", "sub", "deep", "n", "o"];
    // Mostly what is there, or a new name beside or below it.
    let there: Vec<PathBuf> = walk(root).into_keys().collect();
    let mut place = || {
        let below = chance.of(&there).clone();
        match chance.below(4) {
            0 => below.join(chance.of(&NAMES)),
            1 => below.with_file_name(chance.of(&NAMES)),
            _ => below,
        }
    };
    let (below, other) = (place(), place());
    let (one, two) = (root.join(&below), root.join(&other));
    let (words, outcome) = match chance.below(11) {
        0 => ("write", fs::write(&one, format!("new {}", below.display()))),
        1 => ("make", fs::create_dir_all(&one)),
        2 => ("remove", fs::remove_file(&one)),
        3 => ("remove all of", fs::remove_dir_all(&one)),
        4 | 5 => ("rename", fs::rename(&one, &two)),
        6 => ("link", fs::hard_link(&one, &two)),
        7 => ("point", std::os::unix::fs::symlink("x", &one)),
        8 => ("mode", fs::set_permissions(&one, fs::Permissions::from_mode(*chance.of(&[0o700, 0o755])))),
        9 => ("owner", std::os::unix::fs::lchown(&one, Some(chance.below(3) as u32), None)),
        _ => ("replace", fs::remove_dir_all(&one).and_then(|()| fs::create_dir_all(one.join("sub")))),
    };
    format!("{words} {} {}: {outcome:?}", below.display(), other.display())
}
