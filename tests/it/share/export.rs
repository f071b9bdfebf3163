//! Environments for other tools: every format holds the same tree, and the tools themselves say so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Need, Place, SMALL, Seen, TASK, User, image, is_root, lacks, walk, write_small};

/// A place with a built task over an image.
fn built(user: User) -> Option<Place> {
    if lacks(Need::Sandbox) || (user == User::Ordinary && lacks(Need::UserNamespaces)) {
        return None;
    }
    let place = Place::new(user);
    write_small(&place, &format!("oci:{}/layout:one", image().display()));
    place.ok(&["lock", SMALL]);
    place.ok(&["build", SMALL]);
    Some(place)
}

fn export(place: &Place, format: &str, name: &str, more: &[&str]) -> Value {
    let to = place.path(name).display().to_string();
    let arguments = [&["--json", "env", "export", SMALL, "--format", format, "--to", &to], more].concat();
    serde_json::from_str(&place.ok(&arguments)).expect("JSON")
}

/// A walk without the root, whose metadata is nobody's.
fn tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = walk(root);
    seen.remove(Path::new(""));
    seen
}

#[track_caller]
fn same(left: &BTreeMap<PathBuf, Seen>, right: &BTreeMap<PathBuf, Seen>) {
    for (path, seen) in left {
        let other = right.get(path).unwrap_or_else(|| panic!("{} is missing", path.display()));
        assert!(seen == other, "{}: {:?}\n{:?}", path.display(), short(seen), short(other));
    }
    assert_eq!(left.len(), right.len());
}

fn short(seen: &Seen) -> Seen {
    Seen { content: seen.content.iter().copied().take(80).collect(), ..seen.clone() }
}

/// Runs a tool, which must succeed; returns what it said.
#[track_caller]
fn tool(place: &Place, line: &str) -> String {
    let finished = place.finish(place.tool("sh").args(["-euc", line]));
    assert_eq!(finished.status, 0, "{line}\n{}{}", finished.stdout, finished.stderr);
    finished.stdout
}

#[test]
fn a_directory_holds_what_an_environment_shows() {
    for user in [User::Caller, User::Ordinary] {
        let Some(place) = built(user) else { return };
        let said = export(&place, "rootfs", "out", &[]);
        assert!(said["bytes"].as_u64() <= said["peak_disk"].as_u64(), "{said}");
        if user == User::Caller && is_root() {
            let python = place.path("out/opt/env/bin/python");
            assert!(fs::symlink_metadata(python).is_ok());
            let out = place.path("out").display().to_string();
            let printed =
                Command::new("chroot").args([&out, "/opt/env/bin/tool"]).output().expect("chroot runs");
            assert_eq!(String::from_utf8_lossy(&printed.stdout), "tool ran\n");
        }
        let shown = place.ok(&[
            "env",
            "exec",
            SMALL,
            "--",
            "sh",
            "-c",
            "cat /etc/release /workspace/demo/native/out.so",
        ]);
        let read = |path: &str| fs::read_to_string(place.path(path)).expect("a file of the tree");
        assert_eq!(shown, read("out/etc/release") + &read("out/workspace/demo/native/out.so"));
        place.assert_whole();
    }
}

#[test]
fn privileged_every_format_is_the_same_tree_to_its_tools() {
    if lacks(Need::Root) {
        return;
    }
    let Some(place) = built(User::Caller) else { return };
    export(&place, "rootfs", "rootfs", &[]);
    let rootfs = tree(&place.path("rootfs"));
    if !lacks(Need::Program("mksquashfs")) {
        for compression in ["zstd", "gzip"] {
            let name = format!("{compression}.sqfs");
            let said = export(&place, "squashfs", &name, &["--compression", compression]);
            assert!(said["bytes"].as_u64() < said["content"].as_u64(), "{said}");
            tool(&place, &format!("mkdir -p sqfs && mount -t squashfs -o loop,ro {name} sqfs"));
            let mounted = tree(&place.path("sqfs"));
            tool(&place, "umount sqfs");
            same(&rootfs, &mounted);
        }
    }
    export(&place, "oci", "layout", &["--compression", "gzip"]);
    if !lacks(Need::Program("umoci")) {
        tool(&place, "umoci unpack --image layout:small-one-cpu unpacked");
        same(&rootfs, &tree(&place.path("unpacked/rootfs")));
    }
    let vain =
        ["env", "export", SMALL, "--format", "docker-archive", "--to", "vain", "--compression", "gzip"];
    assert_eq!(place.run(&vain).status, 2);
    export(&place, "docker-archive", "saved.tar", &[]);
    if !lacks(Need::Program("skopeo")) {
        let inspected = tool(&place, "skopeo inspect oci:layout:small-one-cpu");
        let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
        assert_eq!(inspected["Os"], "linux", "{inspected}");
        export(&place, "oci", "zstd", &[]);
        // One image, which needs no name.
        tool(&place, "skopeo copy --insecure-policy oci:zstd dir:copied 2>&1");
        assert_eq!(tool(&place, "ls -A zstd"), "blobs\nindex.json\noci-layout\n");
        tool(&place, "skopeo copy --insecure-policy docker-archive:saved.tar oci:converted:it 2>&1");
        if !lacks(Need::Program("umoci")) {
            tool(&place, "umoci unpack --image converted:it again");
            same(&rootfs, &tree(&place.path("again/rootfs")));
        }
    }
    // What was exported can be a base itself.
    place.edit("small/project.toml", "oci:", "docker-archive:");
    let text = fs::read_to_string(place.path("catalog/small/project.toml")).expect("a project");
    let line = text.lines().find(|line| line.starts_with("base = ")).expect("a base").to_owned();
    let saved = format!("base = {{ image = \"docker-archive:{}\" }}", place.path("saved.tar").display());
    place.edit("small/project.toml", &line, &saved);
    place.ok(&["lock", SMALL]);
    place.ok(&["build", SMALL]);
    assert_eq!(place.ok(&["env", "exec", SMALL, "--", "tool"]), "tool ran\n");
    place.assert_whole();
}

#[test]
fn privileged_a_bundle_runs() {
    if lacks(Need::Root) {
        return;
    }
    let Some(place) = built(User::Caller) else { return };
    let command = ["--", "python", "-c", "import demo, tinypkg; print(demo.VALUE + 1, tinypkg.NAME)"];
    export(&place, "bundle", "bundle", &command);
    for runtime in ["crun", "runc"] {
        if lacks(Need::Program(runtime)) {
            continue;
        }
        let id = format!("infradev-it-{}-{runtime}", std::process::id());
        let finished =
            place.finish(place.tool(runtime).args(["--root", "state", "run", "--bundle", "bundle", &id]));
        if finished.stderr.contains("cgroup") {
            // A machine of continuous integration may have none to give.
            continue;
        }
        assert_eq!(finished.stdout, "2 tiny\n", "{runtime}: {}", finished.stderr);
    }
}

#[test]
fn privileged_podman_loads_and_runs_it() {
    if lacks(Need::Root) || lacks(Need::Program("podman")) {
        return;
    }
    let Some(place) = built(User::Caller) else { return };
    export(&place, "docker-archive", "saved.tar", &[]);
    let podman = "podman --root storage --runroot running --storage-driver vfs --cgroup-manager cgroupfs";
    let loaded = tool(&place, &format!("{podman} load --quiet -i saved.tar 2>&1"));
    assert!(loaded.contains("infradev/small:small-one-cpu"), "{loaded}");
    let run = "run --rm --network=none --cgroups=disabled --ulimit=host --runtime crun localhost/infradev/small:small-one-cpu";
    let line = format!("{podman} {run} python -c 'import demo, toolpkg; toolpkg.main(); print(demo.VALUE)'");
    let ran = place.finish(place.tool("sh").args(["-euc", &line]));
    // Engines need more of a machine than the tests do; what they loaded was checked above.
    let is_refused =
        ["cgroup", "permitted", "mount", "pivot_root"].iter().any(|word| ran.stderr.contains(word));
    assert!(ran.stdout == "tool ran\n1\n" || (ran.status != 0 && is_refused), "{}{}", ran.stdout, ran.stderr);
    tool(&place, &format!("{podman} rmi --all --force >/dev/null"));
}

#[test]
fn what_was_written_in_an_environment_is_the_last_layer() {
    let Some(place) = built(User::Caller) else { return };
    let line = "echo mine >/workspace/demo/mine; rm /etc/release; echo changed >/opt/env/share/demo/note";
    place.ok(&["env", "exec", SMALL, "--keep", "mine", "--", "sh", "-c", line]);
    let to = |name: &str| place.path(name).display().to_string();
    let dry = place.run(&["env", "export", "mine", "--format", "oci", "--to", &to("layout"), "--dry-run"]);
    assert!(dry.status == 0 && dry.stderr.contains("small/one.mine@cpu as oci"), "{}", dry.stderr);
    assert!(!place.path("layout").exists());
    place.assert_whole();
    place.ok(&["env", "export", "mine", "--format", "rootfs", "--to", &to("out")]);
    assert!(!place.path("out/etc/release").exists());
    assert_eq!(fs::read_to_string(place.path("out/workspace/demo/mine")).ok().as_deref(), Some("mine\n"));
    assert_eq!(
        fs::read_to_string(place.path("out/opt/env/share/demo/note")).ok().as_deref(),
        Some("changed\n")
    );
    // Its image is not the task's.
    place.ok(&["env", "export", "mine", "--format", "oci", "--to", &to("layout")]);
    let remote = format!("dir:{}", to("layout"));
    let absent = place.run(&["pull", SMALL, "--from", &remote]);
    assert_eq!(absent.status, 4, "{}", absent.stderr);
    place.assert_whole();
}

#[test]
fn nothing_is_overwritten_or_left_half_written() {
    let Some(place) = built(User::Caller) else { return };
    let names = || -> Vec<String> {
        let entries = fs::read_dir(place.path("")).expect("the place");
        let mut names: Vec<_> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let run = |format: &str, name: &str, more: &[&str]| {
        let to = place.path(name).display().to_string();
        place.run(&[&["env", "export", SMALL, "--format", format, "--to", &to], more].concat())
    };
    fs::create_dir(place.path("mine")).expect("an own directory");
    fs::write(place.path("mine/thing"), "precious").expect("an own file");
    let before = names();
    for (format, name, more, says) in [
        ("rootfs", "mine", &[][..], "exists already"),
        ("rootfs", "mine", &["--force"], "is no earlier export"),
        ("docker-archive", "mine", &["--force"], "is no earlier export"),
        ("oci", "absent/layout", &[], "absent: No such file"),
        ("oci", "layout", &["--", "true"], "only a bundle has a command"),
        ("oci", "layout", &["--variant", "cuda"], "no variant"),
    ] {
        let refused = run(format, name, more);
        assert!(refused.status == 2 && refused.stderr.contains(says), "{format}: {}", refused.stderr);
    }
    let over_host = place.run(&["build", TASK]);
    assert_eq!(over_host.status, 0, "{}", over_host.stderr);
    let to = place.path("layout").display().to_string();
    let host = place.run(&["env", "export", TASK, "--format", "oci", "--to", &to]);
    assert!(host.status == 2 && host.stderr.contains("infradev push demo/one"), "{}", host.stderr);
    // An object that is damaged stops an export before anything has its name.
    let object = infradev_store::object_name(&infradev_store::ObjectId::of(b"a note\n"));
    let path = place.store().join("objects").join(object);
    let good = fs::read(&path).expect("an object");
    let sh =
        |line: String| assert!(Command::new("sh").args(["-c", &line]).status().expect("sh runs").success());
    sh(format!("chmod u+w {0} && printf 'b note\\n' >{0}", path.display()));
    let damaged = run("docker-archive", "saved.tar", &[]);
    assert!(damaged.status == 1 && damaged.stderr.contains("is damaged"), "{}", damaged.stderr);
    assert_eq!(names(), before);
    fs::write(&path, good).expect("an own file");
    sh(format!("touch -d @1 {0}; chmod a-w {0}", path.display()));
    // What a killed export left is removed by the next.
    fs::create_dir_all(place.path(".saved.tar.infradev/new/below")).expect("an own directory");
    for more in [&[][..], &["--force"]] {
        assert_eq!(run("docker-archive", "saved.tar", more).status, 0);
        assert_eq!(run("rootfs", "out", more).status, 0);
    }
    assert_eq!(names().len(), before.len() + 2, "{:?}", names());
}
