//! Source distributions: what they need to be built, and their files.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::GzDecoder;
use infradev_recipes::{Archive, DistributionName};

use super::LockError;
use crate::build::io;
use crate::session::Session;

/// A downloaded source distribution.
#[derive(Debug)]
pub(super) struct SourceArchive {
    name: DistributionName,
    version: String,
    path: PathBuf,
}

/// What PEP 517 and 518 say of a source distribution that names no build system.
const LEGACY: [&str; 2] = ["setuptools>=40.8.0", "wheel"];

impl SourceArchive {
    /// Fetches the file of the index with this hash to `scratch`.
    pub(super) fn fetch(
        session: &Session,
        name: &DistributionName,
        version: &str,
        sha256: &str,
        scratch: &Path,
    ) -> Result<Self, LockError> {
        let client = session.client()?;
        let found = session.index().find_by_hash(client, name.as_str(), sha256)?;
        let path = scratch.join(&found.name);
        client.download(&found.url, sha256, &path, &|_| {})?;
        Ok(Self { name: name.clone(), version: version.to_owned(), path })
    }

    /// Reads the file at `wanted`, relative to the top directory.
    pub(super) fn file(&self, wanted: &str) -> Result<Option<Vec<u8>>, LockError> {
        let fail = |detail: String| LockError::Sdist {
            name: self.name.clone(),
            version: self.version.clone(),
            detail,
        };
        if self.path.extension().is_some_and(|extension| extension != "gz") {
            return Err(fail(format!("{} is no .tar.gz", self.path.display())));
        }
        let archive = File::open(&self.path).map_err(io("open", &self.path))?;
        let mut archive = tar::Archive::new(GzDecoder::new(BufReader::new(archive)));
        for entry in archive.entries().map_err(|error| fail(error.to_string()))? {
            let mut entry = entry.map_err(|error| fail(error.to_string()))?;
            let path = entry.path_bytes().into_owned();
            let path = path.strip_prefix(b"./").unwrap_or(&path);
            let below_top = path.iter().position(|&byte| byte == b'/').map(|at| &path[at + 1..]);
            if below_top == Some(wanted.as_bytes()) && entry.header().entry_type().is_file() {
                let mut content = vec![];
                entry.read_to_end(&mut content).map_err(|error| fail(error.to_string()))?;
                return Ok(Some(content));
            }
        }
        Ok(None)
    }
}

/// Returns what is needed to build the source distribution `archive`.
pub(super) fn build_requirements(
    session: &Session,
    name: &DistributionName,
    version: &str,
    archive: &Archive,
    scratch: &Path,
) -> Result<Vec<String>, LockError> {
    let archive = SourceArchive::fetch(session, name, version, &archive.sha256, scratch)?;
    let Some(project) = archive.file("pyproject.toml")? else {
        return Ok(LEGACY.map(str::to_owned).to_vec());
    };
    requires(&String::from_utf8_lossy(&project)).map_err(|detail| LockError::Sdist {
        name: name.clone(),
        version: version.to_owned(),
        detail,
    })
}

/// Reads `build-system.requires` of a pyproject.toml.
fn requires(text: &str) -> Result<Vec<String>, String> {
    let project: toml::Table = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let Some(system) = project.get("build-system") else { return Ok(LEGACY.map(str::to_owned).to_vec()) };
    let wrong = || "build-system.requires is no array of strings".to_owned();
    let listed = system.get("requires").and_then(toml::Value::as_array).ok_or_else(wrong)?;
    let listed = listed.iter().map(|requirement| requirement.as_str().map(str::to_owned).ok_or_else(wrong));
    let mut listed = listed.collect::<Result<Vec<String>, String>>()?;
    // Before its version 70.1 setuptools asks for wheel only when it is already building.
    if listed.iter().any(|requirement| requirement.starts_with("setuptools")) {
        listed.push("wheel".to_owned());
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_requirements_are_those_of_pyproject() {
        let check = |text: &str, expected: &[&str]| assert_eq!(requires(text).unwrap(), expected, "{text}");
        check("[tool.x]\n", &LEGACY);
        check("[build-system]\nrequires = [\"hatchling\"]\n", &["hatchling"]);
        check("[build-system]\nrequires = [\"setuptools>=61\"]\n", &["setuptools>=61", "wheel"]);
        assert!(requires("[build-system]\nrequires = \"x\"\n").is_err());
        assert!(requires("[build-system\n").is_err());
    }
}
