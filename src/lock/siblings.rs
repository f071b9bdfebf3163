//! The other locks of the catalog: which versions they chose, and what a new lock shares with them.

use std::collections::{BTreeMap, BTreeSet};

use infradev_recipes::{Artifact, Catalog, DistributionName, Package, Pylock, Target, variants_of};

use super::LockError;

/// Locks by project and file.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    locks: BTreeMap<(String, String), Pylock>,
}

/// A version to prefer.
pub(super) type Preference = (DistributionName, String);

impl Siblings {
    /// Reads the locks of every task in the catalog. One that cannot be read is no sibling: it is to be made anew.
    pub(super) fn read(catalog: &Catalog) -> Self {
        let mut siblings = Self::default();
        for name in catalog.tasks() {
            let Ok(project) = catalog.project(&name.project) else { continue };
            let Ok(task) = catalog.task(name, &project) else { continue };
            for variant in variants_of(&project, &task) {
                let Ok(recipe) = catalog.recipe(name, &variant) else { continue };
                if let Ok(lock) = catalog.pylock(&name.project, &recipe.lock_file()) {
                    siblings.insert(&name.project, &recipe.lock_file(), lock);
                }
            }
        }
        siblings
    }

    /// Takes a lock, in place of an older one of the same name.
    pub(super) fn insert(&mut self, project: &str, file: &str, lock: Pylock) {
        self.locks.insert((project.to_owned(), file.to_owned()), lock);
    }

    /// Returns a lock, and takes it out.
    pub(super) fn remove(&mut self, project: &str, file: &str) -> Option<Pylock> {
        self.locks.remove(&(project.to_owned(), file.to_owned()))
    }

    /// Returns the versions that locks for the same interpreter and processor chose.
    pub(super) fn preferences(&self, target: &Target) -> BTreeSet<Preference> {
        self.alike(target).flat_map(preferences_of).collect()
    }

    /// Returns what locks for the same interpreter and processor download: sizes by sha256.
    fn downloads(&self, target: &Target) -> BTreeMap<&str, u64> {
        self.alike(target).flat_map(|lock| downloads_of(lock.packages())).collect()
    }

    fn alike(&self, target: &Target) -> impl Iterator<Item = &Pylock> {
        self.locks.values().filter(move |lock| {
            let other = &lock.made_for.target;
            (other.python, other.architecture) == (target.python, target.architecture)
        })
    }

    /// Says what `packages` share with the siblings, and how many bytes less they add than `unaligned` would.
    pub(super) fn sharing(
        &self,
        target: &Target,
        packages: &[Package],
        unaligned: Option<&[Package]>,
    ) -> Sharing {
        let known = self.downloads(target);
        let shared = |(sha256, _): &(&str, u64)| known.contains_key(sha256);
        let added = |packages: &[Package]| -> u64 {
            downloads_of(packages).filter(|file| !shared(file)).map(|(_, size)| size).sum()
        };
        Sharing {
            wheels: packages.iter().filter(|package| matches!(package.artifact, Artifact::Wheel(_))).count(),
            shared: downloads_of(packages).filter(shared).count(),
            bytes: downloads_of(packages).map(|(_, size)| size).sum(),
            added_bytes: added(packages),
            saved_bytes: unaligned.map(|unaligned| added(unaligned).saturating_sub(added(packages))),
        }
    }
}

/// What a lock has in common with its siblings; bytes are those of the downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Sharing {
    /// Wheels of the lock.
    pub wheels: usize,
    /// Artifacts that a sibling has too.
    pub shared: usize,
    /// All that the lock downloads.
    pub bytes: u64,
    /// What of it no sibling downloads.
    pub added_bytes: u64,
    /// How much more that would be without alignment; nothing when there was nothing to align with.
    pub saved_bytes: Option<u64>,
}

pub(super) fn preferences_of(lock: &Pylock) -> impl Iterator<Item = Preference> {
    lock.packages().iter().map(|package| (package.name.clone(), package.version.clone()))
}

fn downloads_of(packages: &[Package]) -> impl Iterator<Item = (&str, u64)> {
    packages.iter().map(|package| {
        let archive = package.artifact.archive();
        (archive.sha256.as_str(), archive.size.unwrap_or(0))
    })
}

/// Says whether `lock` was made from what `digest` names, for `target`.
pub(super) fn is_current(lock: &Pylock, digest: &str, target: &Target) -> bool {
    lock.made_for.requirement_digest == digest && lock.made_for.target == *target
}

/// Writes preferences in the form in which a resolver reads its earlier answer.
pub(super) fn as_answer(preferences: &BTreeSet<Preference>) -> String {
    let mut text = "lock-version = \"1.0\"\ncreated-by = \"infradev\"\n".to_owned();
    for (name, version) in preferences {
        text.push_str(&format!("\n[[packages]]\nname = \"{name}\"\nversion = \"{version}\"\n"));
    }
    text
}

/// Says which builds need something that is neither a step nor locked.
pub(super) fn check_needs(recipe: &infradev_recipes::Recipe, packages: &[Package]) -> Result<(), LockError> {
    let steps: BTreeSet<&str> = recipe.build.iter().map(|step| step.name.as_str()).collect();
    let is_locked = |need: &str| {
        let name = need.parse::<DistributionName>();
        name.is_ok_and(|name| packages.iter().any(|package| package.name == name))
    };
    for step in &recipe.build {
        if let Some(need) = step.needs.iter().find(|need| !steps.contains(need.as_str()) && !is_locked(need))
        {
            let (task, step, need) = (recipe.task.clone(), step.name.clone(), need.clone());
            return Err(LockError::UnknownNeed { task, step, need });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use infradev_recipes::{Architecture, Archive, LockOrigin, PythonVersion};

    use super::*;

    const TARGET: Target = Target {
        python: PythonVersion { major: 3, minor: 11 },
        architecture: Architecture::X86_64,
        glibc: (2, 36),
    };

    fn package(name: &str, version: &str, size: u64) -> Package {
        let archive = Archive {
            name: format!("{name}-{version}-py3-none-any.whl"),
            size: Some(size),
            sha256: format!("{name}{version}"),
            url: None,
        };
        Package {
            name: name.parse().unwrap(),
            version: version.to_owned(),
            dependencies: None,
            artifact: Artifact::Wheel(archive),
        }
    }

    fn lock(target: Target, packages: &[Package]) -> Pylock {
        let made_for =
            LockOrigin { task: None, target, exclude_newer: None, requirement_digest: "0".repeat(64) };
        Pylock::new(made_for, packages.to_vec())
    }

    #[test]
    fn only_locks_for_the_same_interpreter_count() {
        let other = Target { python: PythonVersion { major: 3, minor: 13 }, ..TARGET };
        let mut siblings = Siblings::default();
        siblings.insert("a", "1", lock(TARGET, &[package("x", "1", 10)]));
        siblings.insert("b", "1", lock(Target { glibc: (2, 41), ..TARGET }, &[package("y", "1", 20)]));
        siblings.insert("c", "1", lock(other, &[package("z", "1", 40)]));
        let preferences = siblings.preferences(&TARGET);
        assert_eq!(preferences.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        let aligned = [package("x", "1", 10), package("w", "1", 5)];
        let unaligned = [package("x", "2", 11), package("w", "1", 5)];
        let sharing = siblings.sharing(&TARGET, &aligned, Some(&unaligned));
        let expected = Sharing { wheels: 2, shared: 1, bytes: 15, added_bytes: 5, saved_bytes: Some(11) };
        assert_eq!(sharing, expected);
    }

    #[test]
    fn preferences_read_as_a_lock() {
        let preferences = BTreeSet::from([("x".parse().unwrap(), "1.0".to_owned())]);
        let text = as_answer(&preferences);
        assert!(infradev_recipes::Resolution::parse("x", &text).is_ok(), "{text}");
    }
}
