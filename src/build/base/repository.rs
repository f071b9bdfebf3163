//! A flat Debian repository in a directory: `Packages`, and a `Release` that says which suite it is.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use infradev_recipes::{BaseLock, DebianPackage};
use sha2::{Digest, Sha256};

use super::packages::file_name;
use crate::build::{BuildError, io};
use crate::config::Config;
use crate::hex::hex;

/// Writes the indexes of the packages in `directory`.
pub(super) fn write_indexes(lock: &BaseLock, directory: &Path) -> Result<(), BuildError> {
    let mut packages = String::new();
    for package in lock.packages() {
        packages.push_str(&stanza(&control(&directory.join(file_name(package)))?, package));
    }
    let release = release(lock, packages.as_bytes());
    for (name, text) in [("Packages", packages), ("Release", release)] {
        let path = directory.join(name);
        fs::write(&path, text).map_err(io("write", &path))?;
    }
    Ok(())
}

/// Reads the control fields of a package.
fn control(deb: &Path) -> Result<String, BuildError> {
    let failed = |detail: String| BuildError::Tool {
        tool: "dpkg-deb".to_owned(),
        detail,
        hint: Some("Debian bases need dpkg, apt and mmdebstrap on this machine".to_owned()),
    };
    let mut command = Command::new("dpkg-deb");
    Config::clear_for_tool(&mut command);
    let output = command.arg("--field").arg(deb).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn stanza(control: &str, package: &DebianPackage) -> String {
    let DebianPackage { size, sha256, .. } = package;
    let file = file_name(package);
    format!("{}\nFilename: ./{file}\nSize: {size}\nSHA256: {sha256}\n\n", control.trim_end())
}

/// mmdebstrap asks for the essential packages of a suite, which a repository without this file has none of.
fn release(lock: &BaseLock, packages: &[u8]) -> String {
    let sha256 = hex(&Sha256::digest(packages));
    format!(
        "Suite: {0}\nCodename: {0}\nArchitectures: {1}\nSHA256:\n {sha256} {2} Packages\n",
        lock.suite,
        lock.architecture.debian(),
        packages.len()
    )
}

#[cfg(test)]
mod tests {
    use infradev_recipes::Architecture;

    use super::*;

    #[test]
    fn indexes_name_what_is_there() {
        let package = DebianPackage {
            name: "x".to_owned(),
            version: "1".to_owned(),
            architecture: "all".to_owned(),
            file: "pool/x.deb".to_owned(),
            size: 7,
            sha256: "ab".to_owned(),
        };
        let stanza = stanza("Package: x\nVersion: 1\n", &package);
        assert_eq!(stanza, "Package: x\nVersion: 1\nFilename: ./ab.deb\nSize: 7\nSHA256: ab\n\n");
        let release = release(&BaseLock::new("trixie", Architecture::Aarch64, &[], vec![package]), b"");
        let expected = "Suite: trixie\nCodename: trixie\nArchitectures: arm64\nSHA256:\n \
                        e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 Packages\n";
        assert_eq!(release, expected);
    }
}
