//! The machine as a base: which directories it shows, which Python it has, and what identifies it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use infradev_recipes::{Architecture, PythonVersion};

use crate::env::plan::Bind;

/// Facts about this machine.
#[derive(Debug, Clone)]
pub struct Host {
    /// The processor.
    pub architecture: Architecture,
    /// The interpreter of host bases and its version; `None` if there is none in a directory that is shown.
    pub python: Option<(PathBuf, PythonVersion)>,
    /// What may change the output of a command that sees the host's directories.
    pub fingerprint: Vec<u8>,
}

/// Directories of programs, libraries and their settings; what of them is a directory is shown read-only.
const SHOWN: [&str; 8] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc"];

/// Tools whose versions may change what a build step produces.
const TOOLS: [&str; 4] = ["/usr/bin/cc", "/usr/bin/c++", "/usr/bin/ld", "/usr/bin/make"];

impl Host {
    /// Looks at this machine.
    pub fn inspect() -> Self {
        let architecture =
            if cfg!(target_arch = "aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 };
        let python = find_python();
        let mut fingerprint = vec![];
        let mut add = |text: &[u8]| {
            fingerprint.extend_from_slice(&(text.len() as u64).to_le_bytes());
            fingerprint.extend_from_slice(text);
        };
        add(architecture.as_str().as_bytes());
        add(&fs::read("/etc/os-release").unwrap_or_default());
        // glibc says its version in the name of its dynamic loader's package; ldd prints it everywhere.
        add(first_line("/usr/bin/ldd", "--version").as_bytes());
        if let Some((path, _)) = &python {
            add(path.as_os_str().as_encoded_bytes());
            add(first_line(path, "-VV").as_bytes());
        }
        for tool in TOOLS {
            add(first_line(tool, "--version").as_bytes());
        }
        Self { architecture, python, fingerprint }
    }

    /// Returns the names in the root directory that are shown, with the target of those that are symlinks.
    pub fn shown() -> Vec<(&'static str, Option<PathBuf>)> {
        let look = |name: &'static str| {
            let path = Path::new("/").join(name);
            let metadata = fs::symlink_metadata(&path).ok()?;
            if metadata.is_symlink() {
                return Some((name, Some(fs::read_link(&path).ok()?)));
            }
            metadata.is_dir().then_some((name, None))
        };
        SHOWN.into_iter().filter_map(look).collect()
    }

    /// Returns the host's directories as binds of a run.
    pub fn binds() -> Vec<Bind> {
        let directories = Self::shown().into_iter().filter(|(_, link)| link.is_none());
        directories.map(|(name, _)| Bind::read_only(format!("/{name}"), format!("/{name}"))).collect()
    }
}

/// Finds the host's interpreter where a run can see it: below /usr.
pub(crate) fn find_python() -> Option<(PathBuf, PythonVersion)> {
    const PROGRAM: &str = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)";
    ["/usr/bin/python3", "/usr/local/bin/python3"].iter().find_map(|candidate| {
        let output = Command::new(candidate).args(["-I", "-c", PROGRAM]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let version = text.lines().next()?.parse().ok()?;
        let real = fs::canonicalize(candidate).ok().filter(|real| real.starts_with("/usr"))?;
        Some((real, version))
    })
}

fn first_line(program: impl AsRef<std::ffi::OsStr>, argument: &str) -> String {
    let output = Command::new(program).arg(argument).env("LC_ALL", "C").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
