//! From what a resolver wrote to the one artifact per package that the target installs.

use pep508_rs::{MarkerTree, VerbatimUrl};

use super::read::read_resolution;
use super::{Archive, Artifact, Package};
use crate::error::RecipeErrors;
use crate::marker::environment_of;
use crate::name::DistributionName;
use crate::target::Target;
use crate::wheel_tag::{WheelName, best_wheel};

/// A PEP 751 file as `uv pip compile --format pylock.toml` and `uv export` write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    pub(super) packages: Vec<Candidate>,
}

/// A package of a resolution, with every artifact that the index has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) name: DistributionName,
    pub(super) version: Option<String>,
    pub(super) marker: Option<String>,
    pub(super) wheels: Vec<Archive>,
    pub(super) sdist: Option<Archive>,
    /// The key of a source that is no index.
    pub(super) elsewhere: Option<&'static str>,
}

/// How a resolution is pruned.
#[derive(Debug, Clone)]
pub struct Pruning<'a> {
    /// The machine to choose wheels for.
    pub target: Target,
    /// Where the package index and its mirrors keep files; URLs below are left out of the lock.
    pub index_prefixes: &'a [String],
}

/// A package that cannot be installed on the target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PruneError {
    /// There is neither a wheel that runs there nor an sdist.
    #[error("{name} {version} has no wheel for {target}, and no sdist")]
    NoArtifact {
        /// The distribution.
        name: DistributionName,
        /// Its version.
        version: String,
        /// The machine that it is to run on.
        target: Target,
        /// The wheels that there are.
        wheels: Vec<String>,
    },
    /// A package comes from a repository, directory or archive.
    #[error("{name} comes from `{key}`, and only packages of an index can be locked")]
    NotFromIndex {
        /// The distribution.
        name: DistributionName,
        /// The key that says so.
        key: &'static str,
    },
    /// A marker cannot be evaluated.
    #[error("the marker `{marker}` of {name} cannot be evaluated")]
    Marker {
        /// The distribution.
        name: DistributionName,
        /// The marker.
        marker: String,
    },
}

impl Resolution {
    /// Reads what a resolver wrote; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, RecipeErrors> {
        read_resolution(file, text)
    }

    /// Chooses what is installed on the target: the best wheel of each package, else its sdist.
    ///
    /// Packages whose marker is false there are left out. Dependencies stay unknown: resolvers do not
    /// write them; see [`dependencies_in_metadata`](crate::dependencies_in_metadata).
    pub fn prune(&self, pruning: &Pruning<'_>) -> Result<Vec<Package>, PruneError> {
        let wanted = self.packages.iter().map(|candidate| candidate.prune(pruning));
        wanted.filter_map(Result::transpose).collect()
    }
}

impl Candidate {
    fn prune(&self, pruning: &Pruning<'_>) -> Result<Option<Package>, PruneError> {
        if !self.is_wanted(&pruning.target)? {
            return Ok(None);
        }
        if let Some(key) = self.elsewhere {
            return Err(PruneError::NotFromIndex { name: self.name.clone(), key });
        }
        // An artifact that is no wheel's by its name is of an old or foreign format.
        let wheels: Vec<(&Archive, WheelName)> =
            self.wheels.iter().filter_map(|archive| Some((archive, archive.name.parse().ok()?))).collect();
        let best = best_wheel(wheels.iter().map(|(_, name)| name), &pruning.target);
        let artifact = match (best, &self.sdist) {
            (Some(index), _) => Artifact::Wheel(pruned(wheels[index].0, pruning)),
            (None, Some(sdist)) => Artifact::Sdist { archive: pruned(sdist, pruning), build_lock: None },
            (None, None) => return Err(self.no_artifact(&pruning.target)),
        };
        let version = self.version.clone().ok_or_else(|| self.no_artifact(&pruning.target))?;
        Ok(Some(Package { name: self.name.clone(), version, dependencies: None, artifact }))
    }

    fn is_wanted(&self, target: &Target) -> Result<bool, PruneError> {
        let Some(marker) = &self.marker else { return Ok(true) };
        let fail = |_| PruneError::Marker { name: self.name.clone(), marker: marker.clone() };
        let tree = MarkerTree::parse_str::<VerbatimUrl>(marker).map_err(fail)?;
        Ok(tree.evaluate(&environment_of(target), &[]))
    }

    fn no_artifact(&self, target: &Target) -> PruneError {
        PruneError::NoArtifact {
            name: self.name.clone(),
            version: self.version.clone().unwrap_or_else(|| "of no version".to_owned()),
            target: *target,
            wheels: self.wheels.iter().map(|archive| archive.name.clone()).collect(),
        }
    }
}

fn pruned(archive: &Archive, pruning: &Pruning<'_>) -> Archive {
    let public = ["https://files.index.example/".to_owned()];
    let mut archive = archive.clone();
    archive.url.take_if(|url| {
        public.iter().chain(pruning.index_prefixes).any(|prefix| url.starts_with(prefix.as_str()))
    });
    archive
}
