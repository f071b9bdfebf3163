//! `layer import`: one tree is one layer, as a directory and in every form of archive.

use std::fs;
use std::process::Command;

use crate::support::{Place, User};

/// Fills a directory with what a layer can hold; hardlinks whose first name sorts last, too.
const MAKE: &str = r#"
set -eu
umask 022
mkdir -p tree/plain/deep tree/empty tree/private
cd tree
echo content >plain/file; : >plain/nothing; echo other >zz-first; ln zz-first aa-second; ln zz-first plain/third
chmod 0755 plain/file; chmod 0700 private; ln -s ../plain/file private/link; ln -s /nowhere dangling
head -c 3000000 /dev/zero >large
printf 'odd' >"$(printf 'odd \303\244 name\t')"
printf 'latin' >"$(printf 'caf\351')"
long=$(printf 'n%.0s' $(seq 200)); mkdir -p "$long/$long"; echo deep >"$long/$long/file"
find . -exec touch --no-dereference --date=@1234567890 {} +
"#;

fn sh(place: &Place, line: &str) {
    let output =
        Command::new("sh").args(["-euc", line]).current_dir(place.path("")).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_directory_and_its_archives_are_one_layer() {
    let place = Place::new(User::Caller);
    sh(&place, MAKE);
    let tree = place.path("tree").display().to_string();
    let layer = place.ok(&["layer", "import", &tree, "--keep-owners"]);
    for (name, line) in [
        ("gnu", "tar --format=gnu -cf gnu -C tree ."),
        ("pax", "tar --format=pax --numeric-owner -cf pax -C tree ."),
        ("absolute", "tar --format=gnu --transform='s,^\\./,/,S' -Pcf absolute -C tree ."),
        ("gzip", "tar --format=gnu -czf gzip -C tree ."),
        (
            "python",
            "python3 -c \"import tarfile; t = tarfile.open('python', 'w'); t.add('tree', ''); t.close()\"",
        ),
    ] {
        sh(&place, line);
        let archive = place.path(name);
        if name == "gzip" {
            let plain = fs::read(place.path("gnu")).expect("an own file");
            fs::write(place.path("zstd"), zstd::encode_all(&plain[..], 3).expect("memory"))
                .expect("an own file");
            assert_eq!(
                place.ok(&["layer", "import", &place.path("zstd").display().to_string()]),
                layer,
                "zstd"
            );
        }
        assert_eq!(place.ok(&["layer", "import", &archive.display().to_string()]), layer, "{name}");
    }
    // It stays while a pin needs it, and its DiffID is the archive's own sha256.
    let pinned =
        place.ok(&["--json", "layer", "import", &place.path("pax").display().to_string(), "--pin", "mine"]);
    let sum = Command::new("sha256sum").arg(place.path("pax")).output().expect("sha256sum runs");
    let sum = String::from_utf8_lossy(&sum.stdout)[..64].to_owned();
    assert!(pinned.contains(&format!("sha256:{sum}")), "{pinned}");
    place.ok(&["gc"]);
    assert!(place.ok(&["layer", "show", layer.trim()]).contains("/plain/deep"));
    place.ok(&["unpin", "mine"]);
    place.ok(&["gc", "--all"]);
    assert_eq!(place.run(&["layer", "show", layer.trim()]).status, 2);
    place.assert_whole();
}

#[test]
fn a_refused_archive_leaves_nothing() {
    let place = Place::new(User::Caller);
    place.ok(&["gc", "--all"]);
    fs::create_dir(place.path("d")).expect("an own directory");
    sh(
        &place,
        "echo x >d/f; tar -Pcf outside.tar d/../d/f; tar -cf cut.tar d; truncate -s 700 cut.tar; mkfifo d/pipe; tar -cf pipe.tar d",
    );
    let before = place.contents();
    for (name, says) in [
        ("outside.tar", "outside.tar: entry `d/../d/f` has an empty, `.` or `..` component"),
        ("cut.tar", "cut.tar: the archive ends before its end marker"),
        ("pipe.tar", "pipe.tar: entry `d/pipe` is a FIFO"),
        ("missing.tar", "missing.tar: No such file or directory"),
    ] {
        let refused = place.run(&["layer", "import", &place.path(name).display().to_string()]);
        assert_ne!(refused.status, 0, "{name}");
        assert!(refused.stderr.contains(says), "{name}: {}", refused.stderr);
        assert!(place.contents() == before, "{name} left something");
    }
    let dropped =
        place.run(&["layer", "import", "--drop-special", &place.path("pipe.tar").display().to_string()]);
    assert_eq!(dropped.status, 0, "{}", dropped.stderr);
    assert!(dropped.stderr.contains("/d/pipe is a FIFO, which no layer can hold"), "{}", dropped.stderr);
}

/// Bombs of either compression are refused, and take little memory for it.
#[test]
fn a_bomb_is_refused_in_little_memory() {
    const MAKE: &str = "import sys, tarfile; head = tarfile.TarInfo('zeros'); head.size = 10 << 30; \
                        write = sys.stdout.buffer.write; write(head.tobuf()); \
                        [write(bytes(1 << 20)) for _ in range(400)]";
    const MEASURE: &str = "import resource, subprocess, sys; \
                           status = subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL).returncode; \
                           print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let place = Place::new(User::Caller);
    sh(&place, &format!("python3 -c \"{MAKE}\" >plain; gzip -9 <plain >gzip"));
    let plain = fs::File::open(place.path("plain")).expect("an own file");
    fs::write(place.path("zstd"), zstd::encode_all(plain, 3).expect("memory")).expect("an own file");
    for name in ["gzip", "zstd"] {
        let import = place.command(&["layer", "import", &place.path(name).display().to_string()]);
        let mut measured = Command::new("python3");
        measured.args(["-c", MEASURE]).arg(import.get_program()).args(import.get_args());
        measured.envs(import.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let output = measured.output().expect("python3 runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let (status, kilobytes) = text.trim().split_once(' ').expect("two numbers");
        assert_eq!(status, "1", "{name} is refused");
        assert!(
            kilobytes.parse::<u64>().expect("a number") < 64 << 10,
            "{name} took {kilobytes} kB of memory"
        );
    }
}

#[test]
fn what_nobody_can_make_again_is_kept_and_named() {
    let place = Place::new(User::Caller);
    sh(&place, "mkdir a b; echo one >a/f; echo another >b/f");
    let import = |name: &str| {
        place.run(&["layer", "import", &place.path(name).display().to_string(), "--pin", "mine"])
    };
    assert_eq!(import("a").status, 0);
    assert_eq!(import("a").status, 0, "the same again");
    // A name in use keeps what it keeps.
    let refused = import("b");
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains("error: the pin `mine` keeps something else"), "{}", refused.stderr);
    // Damage to what was imported: no step can make it again, so nothing is deleted.
    let object = infradev_store::object_name(&infradev_store::ObjectId::of(b"one\n"));
    let path = place.store().join("objects").join(object);
    let mut bytes = fs::read(&path).expect("an object");
    bytes[0] ^= 1;
    sh(&place, &format!("chmod u+w {}", path.display()));
    fs::write(&path, &bytes).expect("an own file");
    for arguments in
        [&["verify", "--read-data", "--repair", "--dry-run"][..], &["verify", "--read-data", "--repair"]]
    {
        let repaired = place.run(arguments);
        assert_eq!(repaired.status, 1, "{}", repaired.stderr);
        let advice = "import it again, or give it up with `infradev unpin mine`";
        assert!(repaired.stderr.contains(advice), "{}", repaired.stderr);
        assert_eq!(fs::read(&path).expect("it is still there"), bytes);
    }
    let found = place.run(&["verify", "--read-data"]);
    assert!(found.stderr.contains("to mend: `infradev verify --read-data --repair`"), "{}", found.stderr);
}
