//! Real wheels against pip.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::ground::{Ground, assert_same, text, write};
use super::{layer, python};
use crate::support::{Need, downloaded, lacks, long, walk};

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
    // The highest: setuptools carries others inside.
    let infos = all.keys().filter(|path| path.extension().is_some_and(|extension| extension == "dist-info"));
    let info = infos.min_by_key(|path| path.components().count());
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
fn comparable(files: Files, interpreter: &str) -> Files {
    const OWN: [&str; 4] = ["INSTALLER", "RECORD", "REQUESTED", "direct_url.json"];
    let is_own = |path: &Path| {
        let in_info =
            path.parent().is_some_and(|parent| parent.as_os_str().as_bytes().ends_with(b".dist-info"));
        in_info && OWN.iter().any(|own| path.ends_with(own))
    };
    // pip gives itself a script for the running Python, which no entry point of its wheel asks for.
    let is_pips = |path: &Path| {
        path.parent().is_some_and(|bin| bin.ends_with("opt/env/bin"))
            && path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"pip3."))
    };
    let kept = files.into_iter().filter(|(path, _)| !is_own(path) && !is_pips(path));
    kept.map(|(path, (executable, content))| {
        let is_script = path.starts_with("opt/env/bin");
        let content = if is_script { script(&content, interpreter) } else { content };
        (path, (executable, content))
    })
    .collect()
}

/// A script with the interpreter of its environment in one form; of one that stands for an entry point, only what it
/// imports. Programs, and scripts that name an interpreter of their own, as they are.
fn script(content: &[u8], interpreter: &str) -> Vec<u8> {
    let shebang = format!("#!{interpreter}\n");
    let Some(rest) = content.strip_prefix(shebang.as_bytes()) else { return content.to_vec() };
    let text = String::from_utf8_lossy(rest);
    let import = text.lines().find(|line| line.starts_with("from "));
    let shown = import.filter(|_| text.contains("sys.exit(")).unwrap_or(&text);
    [b"#!python\n", shown.as_bytes()].concat()
}

fn for_each_wheel(check: impl Fn(&Path, &str)) {
    if lacks(Need::Program("python3")) || lacks(Need::Index) {
        return;
    }
    let version = python("import sys; print('%d.%d' % sys.version_info[:2])", &[]);
    // All of them, before the first failure ends the test.
    let fails = |wheel: &&PathBuf| catch_unwind(AssertUnwindSafe(|| check(wheel, &version))).is_err();
    let failed: Vec<&PathBuf> = downloaded().expect("checked above").iter().filter(fails).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// What was compared, for the long run.
#[derive(Debug, Default)]
struct Compared {
    wheels: usize,
    files: usize,
    scripts: usize,
    bytes: usize,
}

#[test]
fn a_wheel_installs_what_pip_installs() {
    let compared = std::cell::RefCell::new(Compared::default());
    for_each_wheel(|wheel, version| {
        let executable = python("import sys; print(sys.executable)", &[]);
        let ground = Ground::new();
        let (tree, _) = layer(&ground, wheel, version);
        let out = ground.directory("out");
        write(&tree, &out, |object| ground.object(object));
        let ours = files(&out, Path::new("opt/env"), Path::new("no other site"), version);
        let expected = comparable(by_pip(&ground, wheel, version), &executable);
        assert_same(text(wheel), &comparable(ours, "/opt/env/bin/python"), &expected);
        let info = tree.entries().iter().filter(|entry| entry.path.file_name().ends_with(b".dist-info"));
        let info = info.map(|entry| entry.path.as_path()).min_by_key(|path| path.components().count());
        let info = out.join(info.expect("a dist-info"));
        assert_eq!(fs::read(info.join("INSTALLER")).expect("it is written"), b"infradev\n");
        assert!(!info.join("REQUESTED").exists() && !info.join("direct_url.json").exists());
        let mut compared = compared.borrow_mut();
        compared.wheels += 1;
        compared.files += expected.len();
        compared.scripts += expected.keys().filter(|path| path.starts_with("opt/env/bin")).count();
        compared.bytes += expected.values().map(|(_, content)| content.len()).sum::<usize>();
    });
    if long() {
        #[expect(clippy::print_stderr, reason = "what the long run compared")]
        {
            eprintln!("as pip installs them: {:?}", compared.into_inner());
        }
    }
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
