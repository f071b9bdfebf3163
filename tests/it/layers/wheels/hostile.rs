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

/// Asserts that the honest wheel is refused once `change` went over its bytes.
#[track_caller]
fn check_changed(change: impl FnOnce(&mut Vec<u8>), named: &str) {
    let ground = Ground::new();
    let wheel = zip(&ground, &[WHEEL, METADATA, ("bad.py", "100644", "the content\n"), RECORD]);
    let mut bytes = fs::read(&wheel).expect("it was written");
    change(&mut bytes);
    fs::write(&wheel, bytes).expect("an own file");
    let made = ground.dry(|ingest| wheel_tree(&wheel, &target("3.11"), ingest));
    let error = made.expect_err(named).to_string();
    assert!(error.contains(named), "expected a message about {named}, found: {error}");
}

/// The places of `wanted` in `bytes`.
fn places(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(wanted.len()).enumerate();
    windows.filter(|(_, window)| *window == wanted).map(|(at, _)| at).collect()
}

/// The entry of `bad.py` in the central directory, and where its content stands.
fn entry(bytes: &[u8]) -> (usize, usize) {
    let names = places(bytes, b"bad.py");
    (names[1] - 46, names[0] - 30)
}

#[test]
fn archives_with_two_readings_are_refused() {
    if lacks(Need::Program("python3")) {
        return;
    }
    let local_name = |bytes: &mut Vec<u8>| {
        let at = entry(bytes).1 + 30;
        bytes[at] = b'c';
    };
    check_changed(local_name, "bad.py` has another name");
    let local_size = |bytes: &mut Vec<u8>| {
        let at = entry(bytes).1 + 22;
        bytes[at] += 1;
    };
    check_changed(local_size, "bad.py` has another size or checksum");
    let local_method = |bytes: &mut Vec<u8>| {
        let at = entry(bytes).1 + 8;
        bytes[at] = 8;
    };
    check_changed(local_method, "bad.py` is compressed in another way");
    // Both say that it is one byte shorter; the checksum is of all of it.
    let both_sizes = |bytes: &mut Vec<u8>| {
        let (central, local) = entry(bytes);
        for at in [central + 20, central + 24, local + 18, local + 22] {
            bytes[at] -= 1;
        }
    };
    check_changed(both_sizes, "bad.py");
    // Two names for one place.
    let shared = |bytes: &mut Vec<u8>| {
        let (central, _) = entry(bytes);
        let other =
            places(bytes, b"PK\x01\x02").into_iter().rfind(|at| *at != central).expect("more entries");
        let offset: [u8; 4] = bytes[central + 42..central + 46].try_into().expect("four bytes");
        bytes[other + 42..other + 46].copy_from_slice(&offset);
    };
    check_changed(shared, "has another name");
}

/// Deflated content that goes on after the size that both headers declare.
#[test]
fn content_beyond_the_declared_size_is_refused() {
    const LIAR: &str = r##"
import struct, sys, zipfile
with zipfile.ZipFile(sys.argv[1], "a", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("bad/large.py", b"#" * (64 << 20))
data = bytearray(open(sys.argv[1], "rb").read())
local, central = data.index(b"bad/large.py") - 30, data.rindex(b"bad/large.py") - 46
for at in (local + 22, central + 24):
    data[at:at + 4] = struct.pack("<I", 100)
open(sys.argv[1], "wb").write(data)
"##;
    if lacks(Need::Program("python3")) {
        return;
    }
    let ground = Ground::new();
    let wheel = zip(&ground, &[WHEEL, METADATA, RECORD]);
    python(LIAR, &[text(&wheel)]);
    let (made, written) =
        ground.dry(|ingest| (wheel_tree(&wheel, &target("3.11"), ingest), ingest.written()));
    let error = made.expect_err("it is larger").to_string();
    assert!(error.contains("bad/large.py"), "{error}");
    assert!(written < 1 << 20, "{written} bytes were written");
}

#[test]
fn what_a_wheel_claims_of_itself_is_not_believed() {
    if lacks(Need::Program("python3")) {
        return;
    }
    let ground = Ground::new();
    let lies = (
        "bad-1.0.dist-info/RECORD",
        "100644",
        "bad.py,sha256=AAAA,1\nabsent.py,sha256=BBBB,2\nbad-1.0.dist-info/RECORD,,\n",
    );
    let script = ("bad-1.0.data/scripts/tool", "100755", "#!python\r\nprint(1)\r\n");
    let twin = ("BAD.py", "100644", "another file here\n");
    let wheel = zip(&ground, &[WHEEL, METADATA, ("bad.py", "100644", "content\n"), twin, script, lies]);
    let (tree, _) = super::layer(&ground, &wheel, "3.11");
    let read = |path: &str| match tree.get(&path.parse().expect("a path")) {
        Some(infradev_layers::Kind::File { content, .. }) => {
            String::from_utf8(ground.object(content.object().expect("not empty"))).expect("text")
        }
        other => panic!("{path} is {other:?}"),
    };
    assert_eq!(read("opt/env/lib/python3.11/site-packages/BAD.py"), "another file here\n");
    // The line that names the interpreter ends in no carriage return: the kernel would look for `python\r`.
    assert_eq!(read("opt/env/bin/tool"), "#!/opt/env/bin/python\nprint(1)\r\n");
    let record = read("opt/env/lib/python3.11/site-packages/bad-1.0.dist-info/RECORD");
    let row = record.lines().find(|line| line.starts_with("bad.py,")).expect("it is listed");
    // sha256 of "content\n".
    assert_eq!(row, "bad.py,sha256=Q0copBCnj1b8G1iZw1k0NuYasMcx6QctleltspAgXlM,8");
    assert!(!record.contains("absent.py"), "{record}");
}
