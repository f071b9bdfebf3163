//! Why a lock could not be made.

use infradev_recipes::{
    CatalogError, DistributionName, PlanError, PruneError, PythonVersion, RecipeErrors, TaskName,
};

use crate::build::BuildError;
use crate::error::{CommandError, Kind};
use crate::net::NetError;

/// A lock that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// A tool or a file failed.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The catalog is wrong, or lacks something.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The base cannot be planned for.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The requirements cannot be met.
    #[error("{lock} cannot be resolved")]
    Resolve {
        /// The file of the lock.
        lock: String,
        /// What the resolver says.
        detail: String,
    },
    /// The resolver's answer cannot be read.
    #[error("{0}")]
    Answer(RecipeErrors),
    /// A package cannot be installed.
    #[error("{lock} cannot be written")]
    Prune {
        /// The file of the lock.
        lock: String,
        /// Why.
        source: PruneError,
    },
    /// The release lacks a package that a base asks for.
    #[error("{task} asks for Debian packages that {suite} does not have: {detail}")]
    NoDebianPackage {
        /// The task.
        task: TaskName,
        /// The release.
        suite: String,
        /// What apt says.
        detail: String,
    },
    /// A requirement file is not in the source tree.
    #[error("{task}: the source tree has no requirement file `{path}`")]
    NoRequirementFile {
        /// The task.
        task: TaskName,
        /// The file.
        path: String,
    },
    /// A build step needs what will not be installed.
    #[error("{task}: the build step `{step}` needs `{need}`, which is neither a build step nor in the lock")]
    UnknownNeed {
        /// The task.
        task: TaskName,
        /// The step.
        step: String,
        /// What it needs.
        need: String,
    },
    /// The host has another interpreter than the recipe wants, or none.
    #[error("{task} wants Python {expected} of the host, which has {}", found.map_or("none".to_owned(), |found| found.to_string()))]
    HostPython {
        /// The task.
        task: TaskName,
        /// What the recipe wants.
        expected: String,
        /// What the host has.
        found: Option<PythonVersion>,
    },
    /// A source distribution does not say how it is built.
    #[error("the build requirements of {name} {version} cannot be read: {detail}")]
    Sdist {
        /// The distribution.
        name: DistributionName,
        /// Its version.
        version: String,
        /// Why.
        detail: String,
    },
    /// A lock is needed that only its maintainer can make.
    #[error("{task} has no lock `{file}`")]
    Missing {
        /// The task.
        task: TaskName,
        /// The file of the lock.
        file: String,
    },
}

impl From<NetError> for LockError {
    fn from(error: NetError) -> Self {
        Self::Build(error.into())
    }
}

impl From<infradev_store::Error> for LockError {
    fn from(error: infradev_store::Error) -> Self {
        Self::Build(error.into())
    }
}

impl From<LockError> for CommandError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Build(error) => error.into(),
            LockError::Catalog(error) => error.into(),
            LockError::Plan(error) => error.into(),
            LockError::Resolve { ref detail, .. } => {
                let indented: Vec<String> = detail.lines().map(|line| format!("  | {line}")).collect();
                Self::new(Kind::Failed, format!("{error}\n{}", indented.join("\n")))
                    .hint("change the pins in the project's or the task's requirements, or `exclude-newer`")
            }
            LockError::Prune { .. } => Self::caused(Kind::Failed, &error)
                .hint("pin another version of it, or one that has a wheel for this target"),
            LockError::NoDebianPackage { .. } => Self::caused(Kind::Usage, &error)
                .hint("correct `packages` in the project's [variant.<name>] base"),
            LockError::NoRequirementFile { .. } => Self::caused(Kind::Usage, &error)
                .hint("`files` below [variant.<name>.requirements] are relative to the source tree"),
            LockError::UnknownNeed { ref need, .. } => {
                let hint = format!("add `{need}` to the pins, or correct `needs`");
                Self::caused(Kind::Usage, &error).hint(hint)
            }
            LockError::HostPython { .. } => Self::caused(Kind::Usage, &error)
                .hint("install it below /usr, or leave `version` out to take the host's own"),
            LockError::Missing { ref task, .. } => {
                let hint = format!("run `infradev lock {task}`");
                Self::caused(Kind::Usage, &error).hint(hint)
            }
            LockError::Answer(_) | LockError::Sdist { .. } => Self::caused(Kind::Failed, &error),
        }
    }
}
