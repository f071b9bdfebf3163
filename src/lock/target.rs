//! The machine that a lock is for.

use std::process::Command;
use std::sync::OnceLock;

use infradev_recipes::{
    Architecture, Base, BaseLock, ImageLock, PlanError, Python, PythonVersion, Recipe, Target,
};

use super::LockError;
use crate::build::BuildError;
use crate::build::host::find_python;

/// The interpreter and C library of this machine, as environments over a host base see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostPython {
    pub(super) version: PythonVersion,
    pub(super) glibc: (u16, u16),
}

const ASK: &str = "import os; print(os.confstr('CS_GNU_LIBC_VERSION'))";

/// Returns the processor of this machine.
pub(super) fn architecture() -> Architecture {
    if cfg!(target_arch = "aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 }
}

/// Asks the host's interpreter what it is, once.
pub(super) fn host_python() -> Option<HostPython> {
    static ANSWER: OnceLock<Option<HostPython>> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let (path, version) = find_python()?;
        let output = Command::new(path).env_clear().args(["-I", "-c", ASK]).output().ok()?;
        Some(HostPython { version, glibc: read_glibc(&String::from_utf8(output.stdout).ok()?)? })
    })
}

/// Reads `glibc 2.36`.
fn read_glibc(answer: &str) -> Option<(u16, u16)> {
    let (major, minor) = answer.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// What is known of a base that has a lock.
#[derive(Debug, Clone, Default)]
pub(super) struct BaseFacts {
    /// Of Debian packages.
    pub(super) packages: Option<BaseLock>,
    /// Of an image.
    pub(super) image: Option<ImageLock>,
}

/// Returns what `recipe` is locked for; the C library of a locked base is that of its lock.
pub(super) fn target_of(recipe: &Recipe, base: BaseFacts) -> Result<Target, LockError> {
    let wanted = match &recipe.python {
        Python::Base { version } => *version,
        Python::Standalone { .. } => {
            return Err(PlanError::NotSupported { what: "a standalone Python" }.into());
        }
    };
    let missing = || LockError::Missing { task: recipe.task.clone(), file: recipe.base_lock_file() };
    match &recipe.base {
        Base::Host => {
            let host = host_python();
            let found = host.map(|host| host.version);
            let fits = host.filter(|host| wanted.is_none_or(|wanted| wanted == host.version));
            let Some(host) = fits else {
                let expected = wanted.map_or("3".to_owned(), |wanted| wanted.to_string());
                return Err(LockError::HostPython { task: recipe.task.clone(), expected, found });
            };
            Ok(Target { python: host.version, architecture: architecture(), glibc: host.glibc })
        }
        Base::Debian { .. } => {
            let lock = base.packages.ok_or_else(missing)?;
            let glibc = glibc_of(&lock).ok_or_else(missing)?;
            let python =
                wanted.ok_or(PlanError::NotSupported { what: "a Debian base without a Python version" })?;
            Ok(Target { python, architecture: lock.architecture, glibc })
        }
        Base::Image { reference } => {
            let lock = base.image.ok_or_else(missing)?;
            let glibc = lock.glibc.ok_or_else(|| BuildError::Image {
                image: reference.clone(),
                detail: "it has no glibc, which the wheels of an index are made for".to_owned(),
            })?;
            let python =
                wanted.ok_or(PlanError::NotSupported { what: "an image base without a Python version" })?;
            Ok(Target { python, architecture: lock.architecture, glibc })
        }
    }
}

/// Returns the version of glibc in a Debian base: that of its package, such as `2.36-9+deb12u10`.
fn glibc_of(lock: &BaseLock) -> Option<(u16, u16)> {
    let version = &lock.packages().iter().find(|package| package.name == "libc6")?.version;
    let (major, minor) = version.split('-').next()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use infradev_recipes::DebianPackage;

    use super::*;

    #[test]
    fn glibc_is_read_from_where_it_stands() {
        assert_eq!(read_glibc("glibc 2.36\n"), Some((2, 36)));
        assert_eq!(read_glibc("None\n"), None);
        let package = DebianPackage {
            name: "libc6".to_owned(),
            version: "2.41-12+deb13u5".to_owned(),
            architecture: "amd64".to_owned(),
            file: "pool/libc6.deb".to_owned(),
            size: 1,
            sha256: "0".repeat(64),
        };
        let lock = BaseLock::new("trixie", Architecture::X86_64, &[], vec![package]);
        assert_eq!(glibc_of(&lock), Some((2, 41)));
    }
}
