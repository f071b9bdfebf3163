//! Archives that no honest tool makes: refused as a whole, with the entry named.

use std::fs;
use std::path::{Path, PathBuf};

use infradev_layers::wheel_tree;

use super::super::ground::{Ground, text};
use super::{python, target};
use crate::support::{Need, lacks};

/// Writes a zip of `name mode text` lines, all parts of a wheel that need no thought given.
const ZIP: &str = r#"
import sys, zipfile
archive = zipfile.ZipFile(sys.argv[1], "w")
for number in range(2, len(sys.argv), 3):
    name, mode, text = sys.argv[number:number + 3]
    entry = zipfile.ZipInfo(name)
    entry.external_attr = int(mode, 8) << 16
    archive.writestr(entry, text)
archive.close()
"#;

type Member = (&'static str, &'static str, &'static str);

const WHEEL: Member = ("bad-1.0.dist-info/WHEEL", "100644", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n");
const METADATA: Member =
    ("bad-1.0.dist-info/METADATA", "100644", "Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n");
const RECORD: Member = ("bad-1.0.dist-info/RECORD", "100644", "bad-1.0.dist-info/RECORD,,\n");

fn zip(ground: &Ground, members: &[Member]) -> PathBuf {
    let path = ground.path("bad-1.0-py3-none-any.whl");
    let fields = members.iter().flat_map(|&(name, mode, content)| [name, mode, content]);
    let arguments: Vec<&str> = std::iter::once(text(&path)).chain(fields).collect();
    python(ZIP, &arguments);
    path
}

/// Names of files below `path`, however deep.
fn files(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).expect("a directory").map(|entry| entry.expect("a name").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Asserts that an archive with these members is refused with a message about `named`, and leaves nothing.
#[track_caller]
fn check(members: &[Member], named: &str) {
    let ground = Ground::new();
    let wheel = zip(&ground, members);
    let made = ground.dry(|ingest| wheel_tree(&wheel, &target("3.11"), ingest));
    let error = match made {
        Ok(tree) => panic!("{named}: became a layer of {:#?}", tree.entries()),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(named), "expected a message about {named}, found: {error}");
    for part in ["objects", "layers", "tmp", "leases"] {
        assert_eq!(files(&ground.path("store").join(part)), Vec::<PathBuf>::new(), "{named}: {part}");
    }
}

#[test]
fn names_that_leave_the_layer_are_refused() {
    if lacks(Need::Program("python3")) {
        return;
    }
    let content = ("ok.py", "100644", "fine\n");
    for name in [
        "../x",
        "/etc/x",
        "a/../../x",
        "a/./x",
        "a//x",
        "bad-1.0.data/scripts/../../../x",
        "bad-1.0.data/data//etc/x",
        "bad-1.0.dist-info/../x",
    ] {
        check(&[content, WHEEL, METADATA, (name, "100644", "x"), RECORD], name);
    }
}

#[test]
fn entries_that_are_no_plain_files_are_refused() {
    if lacks(Need::Program("python3")) {
        return;
    }
    check(&[WHEEL, METADATA, ("bad/link", "120777", "/etc/passwd"), RECORD], "bad/link");
}

#[test]
fn two_entries_of_one_path_are_refused() {
    if lacks(Need::Program("python3")) {
        return;
    }
    let one = ("bad/x.py", "100644", "one\n");
    let two = ("bad/x.py", "100644", "two\n");
    check(&[WHEEL, METADATA, one, two, RECORD], "bad/x.py");
    check(&[WHEEL, METADATA, one, one, RECORD], "bad/x.py");
    check(&[WHEEL, WHEEL, METADATA, RECORD], "WHEEL");
    // By two names that install to one.
    let other = ("bad-1.0.data/purelib/bad/x.py", "100644", "two\n");
    check(&[WHEEL, METADATA, one, other, RECORD], "bad/x.py");
    // A file and a directory.
    check(&[WHEEL, METADATA, ("bad", "100644", "a file\n"), one, RECORD], "bad");
}

#[test]
fn archives_that_are_no_wheels_are_refused() {
    if lacks(Need::Program("python3")) {
        return;
    }
    let file = ("bad.py", "100644", "fine\n");
    check(&[file, METADATA, RECORD], "WHEEL");
    check(&[file, WHEEL, METADATA], "RECORD");
    check(&[file], "WHEEL");
    let second = ("other-1.0.dist-info/WHEEL", "100644", "Wheel-Version: 1.0\n");
    check(&[file, WHEEL, second, METADATA, RECORD], "WHEEL");
    let newer = ("bad-1.0.dist-info/WHEEL", "100644", "Wheel-Version: 2.0\n");
    check(&[file, newer, METADATA, RECORD], "bad-1.0.dist-info/WHEEL");
    check(&[file, WHEEL, METADATA, ("bad-1.0.data/elsewhere/x", "100644", "x"), RECORD], "elsewhere");
    let points = ("bad-1.0.dist-info/entry_points.txt", "100644", "[console_scripts]\n../x = bad:main\n");
    check(&[file, WHEEL, METADATA, points, RECORD], "entry_points.txt");
}

#[test]
fn a_damaged_archive_is_refused() {
    if lacks(Need::Program("python3")) {
        return;
    }
    let ground = Ground::new();
    let wheel = zip(&ground, &[WHEEL, METADATA, ("bad.py", "100644", "the content\n"), RECORD]);
    let mut bytes = fs::read(&wheel).expect("it was written");
    let at = bytes.windows(11).position(|window| window == b"the content").expect("it is not compressed");
    bytes[at] ^= 1;
    fs::write(&wheel, bytes).expect("an own file");
    let made = ground.dry(|ingest| wheel_tree(&wheel, &target("3.11"), ingest));
    let error = made.expect_err("the checksum is wrong").to_string();
    assert!(error.contains("bad.py"), "{error}");
}
