//! The skeleton: `/opt/env`, a virtual environment of our own, and the directories that every run needs.

use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder, TreePath};
use infradev_recipes::PythonVersion;
use infradev_store::Ingest;

use super::host::Host;
use super::{BUILD_MTIME, BuildError};

/// How a skeleton looks; raised when that changes.
pub(crate) const SKELETON_VERSION: u32 = 1;

/// Directories that runs mount over or write to, with their modes.
const DIRECTORIES: [(&str, u32); 14] = [
    ("dev", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("opt/env", 0o755),
    ("opt/env/bin", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];

/// Makes the skeleton for the interpreter at `python`. With `over_host`, also the places of the host's directories.
pub(crate) fn skeleton_tree(
    python: &str,
    version: PythonVersion,
    over_host: bool,
    ingest: &Ingest<'_>,
) -> Result<Tree, BuildError> {
    let mut skeleton = Skeleton { builder: TreeBuilder::new(), ingest };
    for (path, mode) in DIRECTORIES {
        skeleton.directory(path, mode)?;
    }
    let versioned = format!("python{version}");
    skeleton.directory(&format!("opt/env/lib/{versioned}/site-packages"), 0o755)?;
    skeleton.symlink("opt/env/bin/python", python)?;
    skeleton.symlink("opt/env/bin/python3", "python")?;
    skeleton.symlink(&format!("opt/env/bin/{versioned}"), "python")?;
    skeleton.symlink("opt/env/lib64", "lib")?;
    // PEP 405: the interpreter finds its standard library through `home`, its packages beside this file.
    let home = python.rsplit_once('/').map_or("/usr/bin", |(home, _)| home);
    let config = format!("home = {home}\ninclude-system-site-packages = false\nversion = {version}\n");
    skeleton.file("opt/env/pyvenv.cfg", config.as_bytes())?;
    if over_host {
        for (name, link) in Host::shown() {
            match link {
                Some(target) => skeleton.symlink(name, &target.to_string_lossy())?,
                None => skeleton.directory(name, 0o755)?,
            }
        }
    }
    Ok(skeleton.builder.finish()?)
}

struct Skeleton<'a> {
    builder: TreeBuilder,
    ingest: &'a Ingest<'a>,
}

fn path(text: &str) -> TreePath {
    text.parse().expect("a relative path of plain names")
}

impl Skeleton<'_> {
    fn directory(&mut self, at: &str, mode: u32) -> Result<(), BuildError> {
        let metadata = Metadata::new(mode, BUILD_MTIME);
        Ok(self.builder.add(path(at), Kind::Directory { metadata, opaque: false })?)
    }

    fn symlink(&mut self, at: &str, target: &str) -> Result<(), BuildError> {
        let metadata = Metadata { mode: 0o777, ..Metadata::new(0, BUILD_MTIME) };
        Ok(self.builder.add(path(at), Kind::Symlink { metadata, target: target.as_bytes().into() })?)
    }

    fn file(&mut self, at: &str, bytes: &[u8]) -> Result<(), BuildError> {
        let content = Content::Object(self.ingest.put_bytes(bytes)?, bytes.len() as u64);
        let metadata = Metadata::new(0o644, BUILD_MTIME);
        Ok(self.builder.add(path(at), Kind::File { metadata, content })?)
    }
}
