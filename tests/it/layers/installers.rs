//! The wheel transform against pip: the same files, but for those that installers disagree on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use infradev_layers::{WheelTarget, wheel_tree};

use super::{as_walked, scratch};
use crate::support::{Need, downloaded, lacks, walk};

/// Path below the prefix, with site-packages as `site`, to executability and content.
type Files = BTreeMap<String, (bool, Vec<u8>)>;

/// Files that say who installed, and how: not the wheel's.
fn belongs_to_installer(path: &str) -> bool {
    ["INSTALLER", "RECORD", "REQUESTED", "direct_url.json"]
        .iter()
        .any(|name| path.ends_with(&format!(".dist-info/{name}")))
}

fn files(seen: BTreeMap<PathBuf, crate::support::Seen>, site: &str, prefix: &str) -> Files {
    let mut files = Files::new();
    for (path, seen) in seen.into_iter().filter(|(_, seen)| seen.kind == "file") {
        let path = path.to_string_lossy().into_owned();
        let path = match path.strip_prefix(site) {
            Some(rest) => format!("site{rest}"),
            None => path.strip_prefix(prefix).unwrap_or(&path).trim_start_matches('/').to_owned(),
        };
        let mut content = seen.content;
        if path.starts_with("bin/") && content.starts_with(b"#!") {
            // The interpreter is the environment's own.
            let end = content.iter().position(|&byte| byte == b'\n').unwrap_or(content.len());
            content.drain(..end);
            // A wrapper around an entry point is each installer's own text.
            if content.windows(9).any(|window| window == b"sys.exit(") {
                content.clear();
            }
        }
        if !belongs_to_installer(&path) {
            files.insert(path, (seen.mode & 0o111 != 0, content));
        }
    }
    files
}

fn by_pip(wheel: &Path, prefix: &Path) -> Files {
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--no-index",
        "--ignore-installed",
    ]);
    pip.args([
        "--no-warn-script-location",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
        "--prefix",
    ]);
    let output = pip.arg(prefix).arg(wheel).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen = walk(prefix);
    // Debian's pip says local/lib/python3/dist-packages; wherever the metadata are is where packages go.
    let metadata =
        seen.keys().find(|path| path.extension().is_some_and(|extension| extension == "dist-info"));
    let site = metadata.and_then(|path| path.parent()).expect("pip installed it").display().to_string();
    let local = if site.starts_with("local/") { "local" } else { "" };
    files(seen, &site, local)
}

fn by_us(wheel: &Path) -> Files {
    let (_kept, store) = scratch();
    let lease = store.lease("test").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    let output =
        Command::new("python3").args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).output();
    let python = String::from_utf8_lossy(&output.expect("python3 runs").stdout).trim().to_owned();
    let target = WheelTarget { prefix: "opt/env".parse().expect("a path"), python };
    let site = target.site_packages().to_string();
    let tree = wheel_tree(wheel, &target, &ingest).expect("a wheel");
    files(as_walked(&tree, &ingest), site.trim_start_matches('/'), "opt/env")
}

#[test]
fn the_same_files_as_pip() {
    if lacks(Need::Program("python3")) || lacks(Need::Index) {
        return;
    }
    let wheels = fs::read_dir(downloaded().expect("checked above")).expect("a directory").flatten();
    let mut compared = 0;
    for wheel in
        wheels.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "whl"))
    {
        let prefix = tempfile::tempdir_in(crate::support::work_directory()).expect("a directory");
        let (theirs, ours) = (by_pip(&wheel, prefix.path()), by_us(&wheel));
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&ours), names(&theirs), "{}", wheel.display());
        for (path, theirs) in &theirs {
            assert!(ours[path] == *theirs, "{} of {}: {:?}", path, wheel.display(), (ours[path].0, theirs.0));
        }
        compared += 1;
    }
    assert!(compared >= 4, "only {compared} wheels");
}
