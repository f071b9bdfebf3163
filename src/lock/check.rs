//! `infradev lock --check`: locks that no longer say what their recipes or the indexes say.

use std::collections::BTreeSet;

use infradev_recipes::{Archive, Artifact, Base, Catalog, Pylock, Recipe, lock_file};
use infradev_store::Store;
use serde::Serialize;

use super::resolve::Resolver;
use super::work::{facts_of, optional};
use super::{LockError, stale, target};
use crate::build::base::apt::Apt;
use crate::build::image::BaseImage;
use crate::error::CommandResult;
use crate::net::NetError;
use crate::session::Session;

/// Something that is off about a lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The lock, as `project/file`.
    pub lock: String,
    /// The package, where it is about one.
    pub package: Option<String>,
    /// What is off.
    pub problem: String,
}

/// Compares the locks of `recipes` with their requirements and with the indexes; changes nothing.
pub fn check(session: &Session, recipes: &[Recipe]) -> CommandResult<Vec<Finding>> {
    let catalog = session.fresh_catalog()?;
    let store = session.store()?;
    let mut check =
        Check { session, store, catalog: &catalog, findings: BTreeSet::new(), done: BTreeSet::new() };
    let resolver = Resolver::new(session, store)?;
    for recipe in recipes {
        if let Base::Debian { suite, packages } = &recipe.base {
            check.base(recipe, suite, packages, &resolver)?;
        }
        if let Base::Image { reference } = &recipe.base {
            check.image(recipe, reference)?;
        }
        check.packages(recipe)?;
    }
    Ok(check.findings.into_iter().collect())
}

struct Check<'a> {
    session: &'a Session,
    store: &'a Store,
    catalog: &'a Catalog,
    findings: BTreeSet<Finding>,
    done: BTreeSet<String>,
}

impl Check<'_> {
    /// Takes up a lock; `None` if it was looked at already.
    fn begin(&mut self, project: &str, file: &str) -> Option<String> {
        let name = format!("{project}/{file}");
        self.done.insert(name.clone()).then_some(name)
    }

    fn find(&mut self, lock: &str, package: Option<String>, problem: impl Into<String>) {
        self.findings.insert(Finding { lock: lock.to_owned(), package, problem: problem.into() });
    }

    fn base(
        &mut self,
        recipe: &Recipe,
        suite: &str,
        requested: &[String],
        resolver: &Resolver<'_>,
    ) -> Result<(), LockError> {
        let (project, file) = (&recipe.task.project, recipe.base_lock_file());
        let Some(name) = self.begin(project, &file) else { return Ok(()) };
        let Some(lock) = optional(self.catalog.base_lock(project, &file))? else {
            self.find(&name, None, "is missing");
            return Ok(());
        };
        if !lock.answers(suite, requested) {
            self.find(&name, None, "is stale: the recipe asks for other packages");
        }
        let apt = Apt::update(self.session, &resolver.directory()?, &lock.suite, lock.architecture)?;
        let known = apt.known(lock.packages())?;
        for package in lock.packages().iter().filter(|package| !known.contains(package)) {
            let what = format!("{} {}", package.name, package.version);
            self.find(&name, Some(what), "is no longer in the release");
        }
        Ok(())
    }

    fn image(&mut self, recipe: &Recipe, reference: &str) -> Result<(), LockError> {
        let (project, file) = (&recipe.task.project, recipe.base_lock_file());
        let Some(name) = self.begin(project, &file) else { return Ok(()) };
        let Some(lock) = optional(self.catalog.image_lock(project, &file))? else {
            self.find(&name, None, "is missing");
            return Ok(());
        };
        if !lock.answers(reference) {
            self.find(&name, None, "is stale: the recipe names another image");
        }
        let base = BaseImage::open(self.session, project, &lock.image)?;
        let now = base.resolve(lock.architecture)?;
        if now.digest != lock.digest {
            self.find(
                &name,
                None,
                format!("is for {}, and {} is {} now", lock.digest, lock.image, now.digest),
            );
        }
        Ok(())
    }

    fn packages(&mut self, recipe: &Recipe) -> Result<(), LockError> {
        let (project, file) = (&recipe.task.project, recipe.lock_file());
        let Some(name) = self.begin(project, &file) else { return Ok(()) };
        let Some(lock) = optional(self.catalog.pylock(project, &file))? else {
            self.find(&name, None, "is missing");
            return Ok(());
        };
        if stale(self.session, self.store, self.catalog, recipe, &lock)? {
            self.find(&name, None, "is stale: the requirements have changed");
        }
        match target::target_of(recipe, facts_of(self.catalog, recipe)?) {
            Ok(target) if target != lock.made_for.target => {
                self.find(
                    &name,
                    None,
                    format!("is for {}, and the recipe for {target}", lock.made_for.target),
                );
            }
            // The base has its own finding.
            Ok(_) | Err(LockError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
        self.artifacts(&name, &lock)?;
        for package in lock.packages() {
            let Artifact::Sdist { build_lock: Some(build_lock), .. } = &package.artifact else { continue };
            let file = lock_file(build_lock);
            let Some(name) = self.begin(project, &file) else { continue };
            match optional(self.catalog.pylock(project, &file))? {
                Some(lock) => self.artifacts(&name, &lock)?,
                None => self.find(&name, None, "is missing"),
            }
        }
        Ok(())
    }

    fn artifacts(&mut self, name: &str, lock: &Pylock) -> Result<(), LockError> {
        for package in lock.packages() {
            let archive = package.artifact.archive();
            // One from elsewhere is not the index's to judge.
            if archive.url.is_some() {
                continue;
            }
            if let Some(problem) = self.of_index(package.name.as_str(), archive)? {
                self.find(name, Some(format!("{} {}", package.name, package.version)), problem);
            }
        }
        Ok(())
    }

    /// Says what the index has against a file.
    fn of_index(&self, project: &str, archive: &Archive) -> Result<Option<String>, LockError> {
        let found = match self.session.index().find(self.session.client()?, project, &archive.name) {
            Ok(found) => found,
            Err(NetError::NoFile { .. }) => {
                return Ok(Some(format!("{} is gone from the index", archive.name)));
            }
            Err(NetError::Status { status, .. }) if status.as_u16() == 404 => {
                return Ok(Some("the whole project is gone from the index".to_owned()));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(match (found.sha256, found.yanked) {
            (Some(sha256), _) if sha256 != archive.sha256 => {
                Some(format!("{} has other bytes: sha256 {sha256}", archive.name))
            }
            (_, Some(reason)) if reason.is_empty() => Some(format!("{} is yanked", archive.name)),
            (_, Some(reason)) => Some(format!("{} is yanked: {reason}", archive.name)),
            _ => None,
        })
    }
}
