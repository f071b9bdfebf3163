//! Images as bases.

use std::fs;

use crate::support::{
    Guard, Need, Place, RealRegistry, SMALL, User, image, image_digest, lacks, write_small,
};

/// A place whose project lies over the image at `reference`, with `IMAGE` for the image's directory.
fn over(reference: &str) -> Option<Place> {
    if lacks(Need::Sandbox) {
        return None;
    }
    let place = Place::new(User::Caller);
    write_small(&place, &reference.replace("IMAGE", &image().display().to_string()));
    Some(place)
}

const LOCK: &str = "catalog/small/locks/base.cpu.lock";

#[test]
fn every_form_of_an_image_is_the_same_base() {
    let forms = [
        "oci:IMAGE/layout:one".to_owned(),
        "dir:IMAGE/layout:many".to_owned(),
        format!("oci:IMAGE/layout@{}", image_digest("list")),
        format!("oci:IMAGE/layout@{}", image_digest("manifest")),
        "docker-archive:IMAGE/archive.tar".to_owned(),
        format!("docker-archive:IMAGE/archive.tar@{}", image_digest("config")),
    ];
    let mut layers = vec![];
    for form in &forms {
        let Some(place) = over(form) else { return };
        let unlocked = place.run(&["build", SMALL]);
        assert!(unlocked.status == 2 && unlocked.stderr.contains("base.cpu.lock"), "{}", unlocked.stderr);
        place.ok(&["lock", SMALL]);
        let lock = fs::read_to_string(place.path(LOCK)).expect("a lock");
        assert!(lock.contains("glibc = \"2."), "{lock}");
        place.ok(&["build", SMALL]);
        let root =
            fs::read_to_string(place.store().join("roots/tasks/small%2Fone@cpu.json")).expect("a root");
        let root: serde_json::Value = serde_json::from_str(&root).expect("JSON");
        layers.push(root["layers"].clone());
        let sees = "tool; cat native/out.so /etc/release; ls /etc/gone /dev/pipe 2>&1; ls -ld /var/mail";
        let shown = place.ok(&["env", "exec", SMALL, "--", "sh", "-c", sees]);
        assert!(shown.starts_with("tool ran\nnative input\nin.txt\nout.so\nsmall\n"), "{shown}");
        assert!(shown.contains("drwxrwxr-x"), "set-user and set-group bits are not kept: {shown}");
        assert_eq!(shown.matches("No such file").count(), 2, "{shown}");
        assert_eq!(place.run(&["lock", "--check", SMALL]).status, 0);
        place.assert_whole();
    }
    layers.dedup();
    assert_eq!(layers.len(), 1, "the layers are the same");
}

#[test]
fn an_image_that_is_not_what_was_locked_is_refused() {
    let Some(place) = over("oci:copy:one") else { return };
    let copy = place.path("catalog/small/copy");
    let status = std::process::Command::new("cp").arg("-r").arg(image().join("layout")).arg(&copy).status();
    assert!(status.expect("cp runs").success());
    place.ok(&["lock", SMALL]);
    // The lock read the layers; without them the build must fetch them again.
    place.ok(&["gc", "--all"]);
    let lock = fs::read_to_string(place.path(LOCK)).expect("a lock");
    let digest = lock.lines().filter_map(|line| line.strip_prefix("digest = \"sha256:")).nth(1);
    let blob = copy.join("blobs/sha256").join(digest.expect("a layer").trim_end_matches('"'));
    let good = fs::read(&blob).expect("a blob");
    for at in [12, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&blob, &bad).expect("an own file");
        let refused = place.run(&["build", SMALL]);
        assert!(refused.status != 0 && refused.stderr.contains("hash to sha256:"), "{}", refused.stderr);
    }
    fs::write(&blob, [&good[..], b"more"].concat()).expect("an own file");
    let refused = place.run(&["build", SMALL]);
    assert!(refused.status != 0 && refused.stderr.contains("bytes came for layer"), "{}", refused.stderr);
    fs::remove_file(&blob).expect("an own file");
    let refused = place.run(&["build", SMALL]);
    assert!(refused.status == 4 && refused.stderr.contains("does not have sha256:"), "{}", refused.stderr);
    assert_eq!(place.listing("roots/tasks"), Vec::<String>::new());
    fs::write(&blob, good).expect("an own file");
    // A diff id that is not the archive's, as a manifest and a configuration that do not belong together have.
    let id = lock.lines().find(|line| line.starts_with("diff-id")).expect("a layer");
    let other = format!("diff-id = \"sha256:{}\"", "0".repeat(64));
    fs::write(place.path(LOCK), lock.replace(id, &other)).expect("an own file");
    let refused = place.run(&["build", SMALL]);
    assert!(refused.status == 1 && refused.stderr.contains("unpacks to"), "{}", refused.stderr);
    fs::write(place.path(LOCK), lock).expect("an own file");
    place.ok(&["build", SMALL]);
    // A tag that moved is found, and changes nothing until the base is locked anew.
    let index = fs::read_to_string(copy.join("index.json")).expect("an index");
    let moved = index.replace("\"one\"", "\"old\"").replace("\"many\"", "\"one\"");
    fs::write(copy.join("index.json"), moved).expect("an own file");
    let found = place.run(&["lock", "--check", SMALL]);
    assert!(found.status == 1 && found.stdout.contains("oci:copy:one is sha256:"), "{}", found.stdout);
    place.ok(&["build", SMALL, "--require-hit"]);
    place.edit("small/project.toml", "oci:copy:one", "oci:copy:old");
    let stale = place.run(&["build", SMALL]);
    assert!(stale.status == 2 && stale.stderr.contains("made for another image"), "{}", stale.stderr);
    place.assert_whole();
}

/// A place whose project lies over the root file system at `place`.
fn over_rootfs(at: &str) -> Option<Place> {
    let place = over("unused:1")?;
    place.edit("small/project.toml", "image = \"unused:1\"", &format!("rootfs = \"{at}\""));
    Some(place)
}

#[test]
fn an_archive_of_a_root_file_system_is_a_base() {
    let archive = image().join("rootfs.tar.gz");
    let digest = image_digest("rootfs");
    let Some(place) = over_rootfs("rootfs.tar.gz") else { return };
    let copy = place.path("catalog/small/rootfs.tar.gz");
    let missing = place.run(&["lock", SMALL]);
    assert!(
        missing.status == 1 && missing.stderr.contains("rootfs.tar.gz: No such file"),
        "{}",
        missing.stderr
    );
    fs::copy(&archive, &copy).expect("an own directory");
    place.ok(&["lock", SMALL]);
    let lock = fs::read_to_string(place.path(LOCK)).expect("a lock");
    assert!(lock.contains(&digest) && lock.contains("glibc = \"2."), "{lock}");
    place.ok(&["gc", "--all"]);
    place.ok(&["build", SMALL]);
    let sees = "tool; cat native/out.so /etc/release; ls /dev/pipe 2>&1; ls -ld /var/mail";
    let shown = place.ok(&["env", "exec", SMALL, "--", "sh", "-c", sees]);
    assert!(shown.starts_with("tool ran\nnative input\nin.txt\nout.so\nsmall\n"), "{shown}");
    assert!(place.ok(&["show", SMALL]).contains("root file system rootfs.tar.gz"));
    // Other bytes than the locked ones are refused, also where the recipe itself names them.
    place.ok(&["rm", SMALL]);
    place.ok(&["gc", "--all"]);
    let mut bad = fs::read(&archive).expect("an archive");
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    fs::write(&copy, bad).expect("an own file");
    let refused = place.run(&["build", SMALL]);
    assert!(refused.status == 1 && refused.stderr.contains("hash to sha256:"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--refresh-base"), "{}", refused.stderr);
    let checked = place.run(&["lock", "--check", SMALL]);
    assert_ne!(checked.status, 0, "{}", checked.stdout);
    fs::copy(&archive, &copy).expect("an own directory");
    place.edit("small/project.toml", "rootfs.tar.gz", &format!("rootfs.tar.gz@sha256:{}", "0".repeat(64)));
    let refused = place.run(&["lock", SMALL]);
    assert!(refused.status == 1 && refused.stderr.contains("and the recipe says"), "{}", refused.stderr);
    for (bytes, said) in
        [(&b"\xfd7zXZ\0..."[..], "compressed with xz"), (b"no archive\n", "cannot become a layer")]
    {
        fs::write(&copy, bytes).expect("an own file");
        place.edit("small/project.toml", &format!("@sha256:{}", "0".repeat(64)), "");
        let refused = place.run(&["lock", SMALL, "--refresh-base"]);
        assert!(refused.status == 1 && refused.stderr.contains(said), "{said}: {}", refused.stderr);
        place.edit(
            "small/project.toml",
            "rootfs.tar.gz",
            &format!("rootfs.tar.gz@sha256:{}", "0".repeat(64)),
        );
    }
    fs::remove_file(&copy).expect("an own file");
    fs::create_dir(&copy).expect("an own directory");
    let refused = place.run(&["lock", SMALL]);
    assert!(
        refused.status == 1 && refused.stderr.contains("is a directory: make an archive"),
        "{}",
        refused.stderr
    );
    place.assert_whole();
}

#[test]
fn a_root_file_system_comes_from_a_url_by_its_hash() {
    let Some(place) = over_rootfs("https://example.invalid/rootfs.tar.gz") else { return };
    for url in ["https://example.invalid/rootfs.tar.gz", "ftp://example.invalid/rootfs.tar.gz"] {
        place.edit("small/project.toml", "https://example.invalid/rootfs.tar.gz", url);
        let vague = place.run(&["ls"]);
        assert!(
            vague.status == 2 && vague.stderr.contains("project.toml:") && vague.stderr.contains("URL"),
            "{}",
            vague.stderr
        );
        place.edit("small/project.toml", url, "https://example.invalid/rootfs.tar.gz");
    }
    // From the index's server, which serves every file by its name.
    let (digest, archive) =
        (image_digest("rootfs"), fs::read(image().join("rootfs.tar.gz")).expect("an archive"));
    place.index.add(&crate::support::Package {
        project: "rootfs".to_owned(),
        version: "1".to_owned(),
        file: "rootfs.tar.gz".to_owned(),
        bytes: archive,
    });
    let url = place.index.url().replace("/simple", "/files/rootfs/rootfs.tar.gz");
    place.edit("small/project.toml", "https://example.invalid/rootfs.tar.gz", &format!("{url}@{digest}"));
    place.ok(&["lock", SMALL]);
    let built = place.run(&["build", SMALL]);
    assert_eq!(built.status, 0, "{}", built.stderr);
    assert_eq!(place.ok(&["env", "exec", SMALL, "--", "tool"]), "tool ran\n");
    place.edit("small/project.toml", &digest, &format!("sha256:{}", "0".repeat(64)));
    let refused = place.run(&["lock", SMALL]);
    assert!(refused.status == 1 && refused.stderr.contains("and the recipe says"), "{}", refused.stderr);
    place.assert_whole();
}

/// An image that another tool published, of an architecture of several, taken from Debian's registry.
#[test]
fn an_image_of_a_registry_is_a_base() {
    if lacks(Need::Program("skopeo")) {
        return;
    }
    let Some(registry) = RealRegistry::start(Guard::Open) else { return };
    let name = registry.name("base/small");
    let Some(place) = over(&format!("{name}:one")) else { return };
    let from = format!("oci:{}:one", image().join("layout").display());
    let copied = place.finish(place.tool("skopeo").args([
        "copy",
        "--insecure-policy",
        "--dest-tls-verify=false",
        &from,
        &format!("docker://{name}:one"),
    ]));
    assert_eq!(copied.status, 0, "{}", copied.stderr);
    place.ok(&["lock", SMALL]);
    place.ok(&["gc", "--all"]);
    let built = place.run(&["build", SMALL]);
    assert_eq!(built.status, 0, "{}", built.stderr);
    assert_eq!(place.ok(&["env", "exec", SMALL, "--", "tool"]), "tool ran\n");
    assert_eq!(place.run(&["lock", "--check", SMALL]).status, 0);
    // What is pushed to the same registry takes the base's blobs as they are.
    place.ok(&["push", SMALL, "--to", &registry.name("base/small")]);
    let other = Place::new(User::Caller);
    other.ok(&["pull", SMALL, "--from", &registry.name("base/small"), "--trust"]);
    assert_eq!(other.ok(&["env", "exec", SMALL, "--", "tool"]), "tool ran\n");
    // Gone: a miss with the name, and what is built stays good.
    drop(registry);
    place.ok(&["build", SMALL, "--require-hit"]);
    place.assert_whole();
}
