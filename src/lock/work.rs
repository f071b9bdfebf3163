//! Making locks: what one run of `infradev lock` knows, decides and writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use infradev_recipes::{
    Artifact, Base, BaseLock, Catalog, CatalogError, ImageLock, LockOrigin, Package, PlanError, Pylock,
    Recipe, Target, lock_file,
};
use infradev_store::Store;

use super::base::BaseResolver;
use super::image::lock_image;
use super::requirements::RequirementFiles;
use super::resolve::{Request, Resolver};
use super::siblings::{self, Preference, Siblings};
use super::target::BaseFacts;
use super::{LockError, LockOptions, LockReport, Outcome, Sharing, owner_of, sdist, target};
use crate::build::BuildError;
use crate::hex::unique;
use crate::session::Session;
use crate::ui::counted;

/// A run that makes locks.
pub(super) struct Work<'a> {
    session: &'a Session,
    store: &'a Store,
    catalog: &'a Catalog,
    options: LockOptions,
    resolver: Resolver<'a>,
    siblings: Siblings,
    bases: BTreeMap<(String, String), BaseLock>,
    images: BTreeMap<(String, String), ImageLock>,
}

/// A lock that was made, and what comes with it.
struct Made {
    lock: Pylock,
    build_locks: Vec<(String, Pylock)>,
    sharing: Sharing,
}

impl<'a> Work<'a> {
    /// Reads the locks that there are.
    pub(super) fn new(
        session: &'a Session,
        store: &'a Store,
        catalog: &'a Catalog,
        options: LockOptions,
    ) -> Result<Self, LockError> {
        let resolver = Resolver::new(session, store)?;
        let siblings = Siblings::read(catalog);
        Ok(Self {
            session,
            store,
            catalog,
            options,
            resolver,
            siblings,
            bases: BTreeMap::new(),
            images: BTreeMap::new(),
        })
    }

    /// Makes the lock of `recipe` no sibling of others until it is made anew.
    pub(super) fn forget(&mut self, recipe: &Recipe) {
        self.siblings.remove(&recipe.task.project, &recipe.lock_file());
    }

    /// Locks the image that is the base of `recipe`.
    fn lock_image(&mut self, recipe: &Recipe, reference: &str) -> Result<LockReport, LockError> {
        let (project, file) = (recipe.task.project.as_str(), recipe.base_lock_file());
        let old = optional(self.catalog.image_lock(project, &file))?;
        let kept = old.as_ref().filter(|old| old.answers(reference) && !self.options.refresh_base);
        let (lock, outcome) = match kept {
            Some(kept) => (kept.clone(), Outcome::Kept),
            None => {
                let lock = lock_image(self.session, self.store, recipe, reference)?;
                let outcome = outcome(old.as_ref(), &lock);
                (lock, outcome)
            }
        };
        let path = self.place(recipe, &file);
        self.write(&path, &lock.to_text(), outcome)?;
        let (lock_name, packages) = (format!("{project}/{file}"), lock.layers().len());
        self.images.insert((project.to_owned(), recipe.variant.clone()), lock);
        Ok(LockReport { lock: lock_name, path, outcome, packages, sharing: None })
    }

    /// Locks the base of `recipe`.
    pub(super) fn lock_base(&mut self, recipe: &Recipe) -> Result<LockReport, LockError> {
        if let Base::Image { reference } = &recipe.base {
            return self.lock_image(recipe, reference);
        }
        let Base::Debian { suite, packages } = &recipe.base else {
            return Err(PlanError::NotSupported { what: "a lock of such a base" }.into());
        };
        let (project, file) = (recipe.task.project.as_str(), recipe.base_lock_file());
        let old = optional(self.catalog.base_lock(project, &file))?;
        let kept = old.as_ref().filter(|old| old.answers(suite, packages) && !self.options.refresh_base);
        let (lock, outcome) = match kept {
            Some(kept) => (kept.clone(), Outcome::Kept),
            None => {
                let lock = match self.like_base(suite, packages) {
                    Some(lock) => lock,
                    None => self.resolve_base(recipe, suite, packages)?,
                };
                let outcome = outcome(old.as_ref(), &lock);
                (lock, outcome)
            }
        };
        let path = self.place(recipe, &file);
        self.write(&path, &lock.to_text(), outcome)?;
        let report = LockReport {
            lock: format!("{project}/{file}"),
            path,
            outcome,
            packages: lock.packages().len(),
            sharing: None,
        };
        self.bases.insert((project.to_owned(), recipe.variant.clone()), lock);
        Ok(report)
    }

    /// Returns a lock of another project, or one just made, for the same request: the same packages make one layer.
    fn like_base(&self, suite: &str, packages: &[String]) -> Option<BaseLock> {
        let answers =
            |lock: &BaseLock| lock.answers(suite, packages) && lock.architecture == target::architecture();
        if let Some(made) = self.bases.values().find(|lock| answers(lock)) {
            return Some(made.clone());
        }
        let others = self.catalog.projects().filter(|_| !self.options.refresh_base).flat_map(|name| {
            let variants = self.catalog.project(name).map(|project| project.variants).unwrap_or_default();
            variants
                .into_keys()
                .filter_map(|variant| self.catalog.base_lock(name, &format!("base.{variant}.lock")).ok())
        });
        others.into_iter().find(|lock| answers(lock))
    }

    fn resolve_base(&self, recipe: &Recipe, suite: &str, packages: &[String]) -> Result<BaseLock, LockError> {
        let label = format!("lock {}/{}", recipe.task.project, recipe.base_lock_file());
        self.session.ui.started(&label);
        let directory = self.resolver.directory()?;
        let resolved = BaseResolver::new(self.session, &directory).resolve(suite, packages);
        let resolved = resolved.map_err(|error| match error {
            LockError::Build(BuildError::Tool { detail, .. })
                if detail.contains("Unable to locate package") =>
            {
                let detail = detail.lines().next().unwrap_or_default().trim_start_matches("E: ").to_owned();
                LockError::NoDebianPackage { task: recipe.task.clone(), suite: suite.to_owned(), detail }
            }
            error => error,
        });
        let (word, remark) = match &resolved {
            Ok(lock) => ("resolved", counted(lock.packages().len(), "package")),
            Err(_) => ("failed", String::new()),
        };
        self.session.ui.finished(&label, word, &remark);
        resolved
    }

    /// Locks the packages of `recipe`, unless its lock says what it would say.
    pub(super) fn lock_packages(&mut self, recipe: &Recipe) -> Result<LockReport, LockError> {
        let (project, file) = (recipe.task.project.clone(), recipe.lock_file());
        let old = optional(self.catalog.pylock(&project, &file))?;
        let owner = old.as_ref().and_then(|old| owner_of(self.catalog, recipe, old));
        let recipe = owner.as_ref().unwrap_or(recipe);
        let target = target::target_of(recipe, self.base_of(recipe)?)?;
        let scratch = || self.resolver.directory();
        let files = RequirementFiles::read(self.session, self.store, recipe, &scratch)?;
        let digest = files.digest(recipe);
        let path = self.place(recipe, &file);
        let name = format!("{project}/{file}");
        let own = self.siblings.remove(&project, &file);
        if !self.options.realign
            && let Some(kept) = old.as_ref().filter(|old| siblings::is_current(old, &digest, &target))
            && self.catalog.locks(recipe).is_ok()
        {
            siblings::check_needs(recipe, kept.packages())?;
            let sharing = Some(self.siblings.sharing(&target, kept.packages(), None));
            self.siblings.insert(&project, &file, kept.clone());
            let packages = kept.packages().len();
            return Ok(LockReport { lock: name, path, outcome: Outcome::Kept, packages, sharing });
        }
        let request = Request {
            lock: &name,
            pins: &recipe.requirements.pins,
            files: &files,
            named: recipe.requirements.files.len(),
            target,
            exclude_newer: recipe.exclude_newer,
            only_wheels: false,
        };
        let own = own.filter(|_| !self.options.realign);
        let label = format!("lock {name}");
        self.session.ui.started(&label);
        let made = self.make(recipe, &request, own.as_ref(), digest);
        let (word, remark) = match &made {
            Ok(made) => ("resolved", counted(made.lock.packages().len(), "package")),
            Err(_) => ("failed", String::new()),
        };
        self.session.ui.finished(&label, word, &remark);
        let Made { lock, build_locks, sharing } = made?;
        let outcome = outcome(old.as_ref(), &lock);
        for (name, lock) in build_locks {
            self.write(&self.place(recipe, &lock_file(&name)), &lock.to_text(), Outcome::Changed)?;
        }
        self.write(&path, &lock.to_text(), outcome)?;
        let packages = lock.packages().len();
        self.siblings.insert(&project, &file, lock);
        Ok(LockReport { lock: name, path, outcome, packages, sharing: Some(sharing) })
    }

    fn make(
        &self,
        recipe: &Recipe,
        request: &Request<'_>,
        own: Option<&Pylock>,
        requirement_digest: String,
    ) -> Result<Made, LockError> {
        let target = request.target;
        let preferences = self.preferences(recipe, &target, own);
        let mut packages = self.resolver.resolve(request, &preferences)?;
        let unaligned = if recipe.align && !self.siblings.preferences(&target).is_empty() {
            let own = own.into_iter().flat_map(siblings::preferences_of).collect();
            Some(self.resolver.resolve(request, &own)?)
        } else {
            None
        };
        siblings::check_needs(recipe, &packages)?;
        let build_locks = self.build_locks(recipe, &mut packages, &target)?;
        self.resolver.without_index_urls(&mut packages)?;
        let sharing = self.siblings.sharing(&target, &packages, unaligned.as_deref());
        let made_for = LockOrigin {
            task: Some(recipe.task.to_string()),
            target,
            exclude_newer: recipe.exclude_newer,
            requirement_digest,
        };
        Ok(Made { lock: Pylock::new(made_for, packages), build_locks, sharing })
    }

    /// Returns what to prefer: the lock's own earlier versions, and those of siblings for what it did not have.
    fn preferences(&self, recipe: &Recipe, target: &Target, own: Option<&Pylock>) -> BTreeSet<Preference> {
        let mut preferences: BTreeSet<Preference> =
            own.into_iter().flat_map(siblings::preferences_of).collect();
        if recipe.align {
            let named: BTreeSet<_> = preferences.iter().map(|(name, _)| name.clone()).collect();
            let of_siblings = self.siblings.preferences(target).into_iter();
            preferences.extend(of_siblings.filter(|(name, _)| !named.contains(name)));
        }
        preferences
    }

    /// Locks what the source distributions among `packages` are built with.
    fn build_locks(
        &self,
        recipe: &Recipe,
        packages: &mut [Package],
        target: &Target,
    ) -> Result<Vec<(String, Pylock)>, LockError> {
        let mut locks = vec![];
        for package in packages {
            let Artifact::Sdist { archive, build_lock } = &mut package.artifact else { continue };
            // PEP 751 has no dots in the names of locks.
            let name = format!("{}-build-{}", recipe.lock, package.name).replace('.', "-");
            let scratch = self.resolver.directory()?;
            let pins =
                sdist::build_requirements(self.session, &package.name, &package.version, archive, &scratch)?;
            let file = lock_file(&name);
            let request = Request {
                lock: &file,
                pins: &pins,
                files: &RequirementFiles::default(),
                named: 0,
                target: *target,
                exclude_newer: recipe.exclude_newer,
                only_wheels: true,
            };
            let preferences = self.preferences(recipe, target, None);
            let mut packages = self.resolver.resolve(&request, &preferences)?;
            self.resolver.without_index_urls(&mut packages)?;
            let made_for = LockOrigin {
                task: Some(recipe.task.to_string()),
                target: *target,
                exclude_newer: recipe.exclude_newer,
                requirement_digest: blake3::hash(pins.join("\n").as_bytes()).to_hex().to_string(),
            };
            locks.push((name.clone(), Pylock::new(made_for, packages)));
            *build_lock = Some(name);
        }
        Ok(locks)
    }

    fn base_of(&self, recipe: &Recipe) -> Result<BaseFacts, LockError> {
        let made = (recipe.task.project.clone(), recipe.variant.clone());
        match (self.bases.get(&made), self.images.get(&made)) {
            (None, None) => facts_of(self.catalog, recipe),
            (packages, image) => Ok(BaseFacts { packages: packages.cloned(), image: image.cloned() }),
        }
    }

    /// Returns where a lock is written: those over a host base belong to this machine.
    fn place(&self, recipe: &Recipe, file: &str) -> PathBuf {
        let project = &recipe.task.project;
        let machine = || self.session.machine_catalog().join(project).join("locks").join(file);
        match recipe.base {
            Base::Host => machine(),
            _ => self.catalog.lock_path(project, file).unwrap_or_else(machine),
        }
    }

    fn write(&self, path: &Path, text: &str, outcome: Outcome) -> Result<(), LockError> {
        if self.options.dry_run || matches!(outcome, Outcome::Kept | Outcome::Same) {
            return Ok(());
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = directory.join(format!(".{name}.{}", unique()));
        let write = || {
            fs::create_dir_all(directory)?;
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        };
        write().map_err(|source| {
            let _there_may_be_none = fs::remove_file(&temporary);
            BuildError::Io { action: "write", path: path.to_owned(), source }.into()
        })
    }
}

/// Reads what the lock of a base says, if it has one.
pub(super) fn facts_of(catalog: &Catalog, recipe: &Recipe) -> Result<BaseFacts, LockError> {
    let (project, file) = (&recipe.task.project, recipe.base_lock_file());
    Ok(match recipe.base {
        Base::Debian { .. } => {
            BaseFacts { packages: optional(catalog.base_lock(project, &file))?, image: None }
        }
        Base::Image { .. } => {
            BaseFacts { packages: None, image: optional(catalog.image_lock(project, &file))? }
        }
        Base::Host => BaseFacts::default(),
    })
}

fn outcome<T: PartialEq>(old: Option<&T>, new: &T) -> Outcome {
    match old {
        None => Outcome::New,
        Some(old) if old == new => Outcome::Same,
        Some(_) => Outcome::Changed,
    }
}

/// Tells a lock that is not there from one that cannot be read.
pub(super) fn optional<T>(found: Result<T, CatalogError>) -> Result<Option<T>, LockError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(CatalogError::NoLock { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
