//! Locks of Python packages: PEP 751 files that hold exactly one artifact per package.
//!
//! They deviate from the PEP in one point: an artifact has no `url` when it comes from the package
//! index, because its host is a matter of the machine (a mirror), and its name and sha256 find it on
//! any. What infradev adds is in `[tool.infradev]` and `[packages.tool.infradev]`.

mod dependencies;
mod prune;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use dependencies::{MetadataError, dependencies_in_metadata};
pub use prune::{PruneError, Pruning, Resolution};

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::error::RecipeErrors;
use crate::name::DistributionName;
use crate::target::Target;
use crate::timestamp::Timestamp;

/// A lock: what an environment installs, to the byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pylock {
    /// What the lock was made for and from.
    pub made_for: LockOrigin,
    packages: Vec<Package>,
}

/// What a lock was made for and from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LockOrigin {
    /// The first task it was resolved for.
    pub task: Option<String>,
    /// The machine its wheels are for.
    pub target: Target,
    /// Nothing uploaded later was considered.
    pub exclude_newer: Option<Timestamp>,
    /// Names the requirements it was resolved from; another digest means that the lock is stale.
    pub requirement_digest: String,
}

/// A package of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Package {
    /// The distribution.
    pub name: DistributionName,
    /// Its version.
    pub version: String,
    /// The packages of the lock that it needs; nothing when that is not known.
    pub dependencies: Option<Vec<DistributionName>>,
    /// What is downloaded.
    pub artifact: Artifact,
}

/// What is downloaded for a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Artifact {
    /// A wheel that runs on the target.
    Wheel(Archive),
    /// A source distribution, built in an environment of its own.
    Sdist {
        /// The source distribution.
        archive: Archive,
        /// The name of the lock with its build requirements.
        build_lock: Option<String>,
    },
}

impl Artifact {
    /// Returns the file that is downloaded.
    pub fn archive(&self) -> &Archive {
        match self {
            Self::Wheel(archive) | Self::Sdist { archive, .. } => archive,
        }
    }
}

/// A file of a package index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Archive {
    /// The file name.
    pub name: String,
    /// Its bytes, where the index tells.
    pub size: Option<u64>,
    /// What its bytes hash to.
    pub sha256: String,
    /// Where it is, unless it is on the package index.
    pub url: Option<String>,
}

impl Pylock {
    /// Makes a lock of `packages`, in the order of their names.
    pub fn new(made_for: LockOrigin, mut packages: Vec<Package>) -> Self {
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        Self { made_for, packages }
    }

    /// Reads a lock that infradev wrote; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, RecipeErrors> {
        read::read_lock(file, text)
    }

    /// Returns the one text that stands for this lock.
    pub fn to_text(&self) -> String {
        write::write_lock(self)
    }

    /// Returns the packages, ordered by name.
    pub fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// Returns the package called `name`.
    pub fn package(&self, name: &DistributionName) -> Option<&Package> {
        let index = self.packages.binary_search_by(|package| package.name.cmp(name)).ok()?;
        self.packages.get(index)
    }

    /// Returns `name` and everything it needs, ordered by name; all packages where needs are unknown.
    pub fn closure(&self, name: &DistributionName) -> Option<Vec<&Package>> {
        self.package(name)?;
        let by_name: BTreeMap<_, _> = self.packages.iter().map(|package| (&package.name, package)).collect();
        let (mut found, mut next) = (BTreeSet::new(), vec![name]);
        while let Some(name) = next.pop() {
            // A need outside the lock is one of an extra that nobody asked for.
            let Some(package) = by_name.get(name).filter(|_| !found.contains(name)) else { continue };
            found.insert(name);
            match &package.dependencies {
                Some(needs) => next.extend(needs),
                None => return Some(self.packages.iter().collect()),
            }
        }
        Some(self.packages.iter().filter(|package| found.contains(&package.name)).collect())
    }
}
