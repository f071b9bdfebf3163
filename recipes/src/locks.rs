//! The locks that a recipe is planned with, read from its catalog.

use std::collections::{BTreeMap, BTreeSet};

use crate::base_lock::BaseLock;
use crate::catalog::{Catalog, CatalogError};
use crate::image_lock::ImageLock;
use crate::plan::PlanInputs;
use crate::pylock::{Artifact, Pylock};
use crate::recipe::Base;
use crate::resolve::{Recipe, lock_file};
use crate::target::PythonVersion;

/// The locks that a recipe is planned with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locks {
    /// The packages of the environment.
    pub lock: Pylock,
    /// The packages that build its source distributions, by the name of the lock.
    pub build_locks: BTreeMap<String, Pylock>,
    /// The packages of a Debian base.
    pub base_lock: Option<BaseLock>,
    /// The layers of an image base.
    pub image_lock: Option<ImageLock>,
}

impl Locks {
    /// Lends the locks to a plan; `host_python` is needed only for a host base.
    pub fn inputs(&self, host_python: Option<PythonVersion>) -> PlanInputs<'_> {
        PlanInputs {
            lock: &self.lock,
            build_locks: &self.build_locks,
            base_lock: self.base_lock.as_ref(),
            image_lock: self.image_lock.as_ref(),
            host_python,
        }
    }
}

impl Catalog {
    /// Reads every lock that `recipe` is planned with; one that is not there is an error.
    pub fn locks(&self, recipe: &Recipe) -> Result<Locks, CatalogError> {
        let project = &recipe.task.project;
        let lock = self.pylock(project, &recipe.lock_file())?;
        let mut build_locks = BTreeMap::new();
        let names: BTreeSet<&String> = lock
            .packages()
            .iter()
            .filter_map(|package| match &package.artifact {
                Artifact::Sdist { build_lock, .. } => build_lock.as_ref(),
                Artifact::Wheel(_) => None,
            })
            .collect();
        for name in names {
            build_locks.insert(name.clone(), self.pylock(project, &lock_file(name))?);
        }
        let base_lock = match recipe.base {
            Base::Debian { .. } => Some(self.base_lock(project, &recipe.base_lock_file())?),
            _ => None,
        };
        let image_lock = match recipe.base {
            Base::Image { .. } => Some(self.image_lock(project, &recipe.base_lock_file())?),
            _ => None,
        };
        Ok(Locks { lock, build_locks, base_lock, image_lock })
    }

    /// Reads a package lock; `file` is a name in the project's `locks`.
    pub fn pylock(&self, project: &str, file: &str) -> Result<Pylock, CatalogError> {
        let (path, text) = self.required_lock(project, file)?;
        Ok(Pylock::parse(&path, &text)?)
    }

    /// Reads a base lock; `file` is a name in the project's `locks`.
    pub fn base_lock(&self, project: &str, file: &str) -> Result<BaseLock, CatalogError> {
        let (path, text) = self.required_lock(project, file)?;
        Ok(BaseLock::parse(&path, &text)?)
    }

    /// Reads the lock of an image base; `file` is a name in the project's `locks`.
    pub fn image_lock(&self, project: &str, file: &str) -> Result<ImageLock, CatalogError> {
        let (path, text) = self.required_lock(project, file)?;
        Ok(ImageLock::parse(&path, &text)?)
    }

    fn required_lock(&self, project: &str, file: &str) -> Result<(String, String), CatalogError> {
        let missing = || CatalogError::NoLock { project: project.to_owned(), file: file.to_owned() };
        self.lock_text(project, file)?.ok_or_else(missing)
    }
}
