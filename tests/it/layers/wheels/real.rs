//! Real wheels against pip.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::ground::{Ground, assert_same, text, write};
use super::{layer, python};
use crate::support::{Need, downloaded, lacks, walk};

/// What identifies a file that was installed: whether it is executable, and its bytes.
type Files = BTreeMap<PathBuf, (bool, Vec<u8>)>;

/// The files below `root`, with `base` (below it) as `opt/env` and `site` (below that) as site-packages.
fn files(root: &Path, base: &Path, site: &Path, python: &str) -> Files {
    let ours = Path::new("opt/env/lib").join(format!("python{python}/site-packages"));
    let place = |path: &Path| match (path.strip_prefix(site), path.strip_prefix(base)) {
        (Ok(below), _) => ours.join(below),
        (_, Ok(below)) => Path::new("opt/env").join(below),
        _ => path.to_owned(),
    };
    let files = walk(root).into_iter().filter(|(_, seen)| seen.kind != "directory");
    files
        .map(|(path, seen)| {
            assert_eq!(seen.kind, "file", "{}", path.display());
            (place(&path), (seen.mode & 0o111 != 0, seen.content))
        })
        .collect()
}

/// Installs a wheel with pip.
fn by_pip(ground: &Ground, wheel: &Path, version: &str) -> Files {
    let prefix = ground.directory("pip");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-index"])
        .args(["--no-deps", "--no-compile", "--ignore-installed", "--no-warn-script-location"])
        .args(["--root-user-action=ignore", "--prefix"])
        .args([&prefix, wheel]);
    assert!(pip.status().expect("python3 runs").success(), "{}", wheel.display());
    // Distributions of Linux move what pip installs, to `local/lib/python3.12/dist-packages` and the like.
    let all = walk(&prefix);
    let info = all.keys().find(|path| path.extension().is_some_and(|extension| extension == "dist-info"));
    let site = info.and_then(|info| info.parent()).expect("pip installed a distribution");
    let base = site.ancestors().nth(3).expect("a site directory has a prefix");
    let files = files(&prefix, base, site, version);
    // An environment is a virtual one, where headers have a directory of their own.
    let headers = Path::new("opt/env/include").join(format!("python{version}"));
    let place = |path: PathBuf| match path.strip_prefix(&headers) {
        Ok(below) => Path::new("opt/env/include/site").join(format!("python{version}")).join(below),
        Err(_) => path,
    };
    files.into_iter().map(|(path, file)| (place(path), file)).collect()
}

/// Takes out what a layer writes in its own way, as DESIGN says, after a look at it.
fn comparable(files: Files) -> Files {
    const OWN: [&str; 4] = ["INSTALLER", "RECORD", "REQUESTED", "direct_url.json"];
    let is_own = |path: &Path| {
        let in_info =
            path.parent().is_some_and(|parent| parent.as_os_str().as_bytes().ends_with(b".dist-info"));
        in_info && OWN.iter().any(|own| path.ends_with(own))
    };
    let kept = files.into_iter().filter(|(path, _)| !is_own(path));
    kept.map(|(path, (executable, content))| {
        let content = if path.starts_with("opt/env/bin") { script(&content) } else { content };
        (path, (executable, content))
    })
    .collect()
}

/// A script without its first line; of one that stands for an entry point, only what it imports.
fn script(content: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(content);
    let (shebang, rest) = text.split_once('\n').expect("a script has lines");
    assert!(shebang.starts_with("#!/"), "{shebang}");
    let import = rest.lines().find(|line| line.starts_with("from "));
    match import.filter(|_| rest.contains("sys.exit(")) {
        Some(import) => import.as_bytes().to_vec(),
        None => rest.as_bytes().to_vec(),
    }
}

fn for_each_wheel(check: impl Fn(&Path, &str)) {
    if lacks(Need::Program("python3")) || lacks(Need::Index) {
        return;
    }
    let version = python("import sys; print('%d.%d' % sys.version_info[:2])", &[]);
    for wheel in downloaded().expect("checked above") {
        check(wheel, &version);
    }
}

#[test]
fn a_wheel_installs_what_pip_installs() {
    for_each_wheel(|wheel, version| {
        let ground = Ground::new();
        let (tree, _) = layer(&ground, wheel, version);
        let out = ground.directory("out");
        write(&tree, &out, |object| ground.object(object));
        let ours = files(&out, Path::new("opt/env"), Path::new("no other site"), version);
        for (path, (_, content)) in ours.iter().filter(|(path, _)| path.starts_with("opt/env/bin")) {
            assert!(content.starts_with(b"#!/opt/env/bin/python\n"), "{}", path.display());
        }
        let expected = comparable(by_pip(&ground, wheel, version));
        assert_same(text(wheel), &comparable(ours), &expected);
        let info = tree.entries().iter().filter(|entry| entry.path.file_name().ends_with(b".dist-info"));
        let info = out.join(info.map(|entry| entry.path.as_path()).next().expect("a dist-info"));
        assert_eq!(fs::read(info.join("INSTALLER")).expect("it is written"), b"infradev\n");
        assert!(!info.join("REQUESTED").exists() && !info.join("direct_url.json").exists());
    });
}

#[test]
fn record_lists_exactly_the_files() {
    const CHECK: &str = r#"
import base64, csv, hashlib, os, sys
prefix, site = sys.argv[1:]
info, = (name for name in os.listdir(site) if name.endswith(".dist-info"))
record = os.path.join(info, "RECORD")
rows = list(csv.reader(open(os.path.join(site, record), newline="")))
paths = [row[0] for row in rows]
assert paths == sorted(set(paths)), "sorted, each once"
found = {os.path.relpath(os.path.join(at, name), site) for at, _, names in os.walk(prefix) for name in names}
assert found == set(paths), found ^ set(paths)
for path, digest, size in rows:
    if path == record:
        assert (digest, size) == ("", "")
        continue
    content = open(os.path.join(site, path), "rb").read()
    expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    assert (digest, size) == ("sha256=" + expected, str(len(content))), path
"#;
    for_each_wheel(|wheel, version| {
        let ground = Ground::new();
        let (tree, _) = layer(&ground, wheel, version);
        let out = ground.directory("out");
        write(&tree, &out, |object| ground.object(object));
        let prefix = out.join("opt/env");
        let site = prefix.join(format!("lib/python{version}/site-packages"));
        python(CHECK, &[text(&prefix), text(&site)]);
    });
}

#[test]
fn a_wheel_is_one_layer_in_every_store() {
    for_each_wheel(|wheel, version| {
        let (_, first) = layer(&Ground::new(), wheel, version);
        let (_, second) = layer(&Ground::new(), wheel, version);
        assert_eq!(first, second, "{}", wheel.display());
    });
}
