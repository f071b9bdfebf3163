//! Directories of recipes, laid over each other; the only file of this crate that reads disks.
//!
//! ```text
//! <project>/project.toml   locks/pylock.<name>.toml   locks/base.<variant>.lock
//! <project>/tasks/<id>/task.toml   prompt.md   grading/probes/<name>/probe.toml   grading/mutants/<name>.toml
//! ```
//!
//! Where two directories hold the same file, the later one wins; so probes and mutants can live in a
//! private catalog. Opening lists names; a document is parsed when it is asked for, so one task's
//! mistake does not stop work on another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::RecipeErrors;
use crate::grading::{Mutant, Probe};
use crate::name::TaskName;
use crate::nearest::nearest;
use crate::parse::{is_plain_name, parse_mutant, parse_probe, parse_project, parse_task};
use crate::recipe::{Project, Task};
use crate::resolve::{Recipe, ResolveError, variants_of};

/// Directories of recipes, laid over each other.
#[derive(Debug, Clone)]
pub struct Catalog {
    roots: Vec<PathBuf>,
    projects: BTreeSet<String>,
    tasks: Vec<TaskName>,
}

/// What grades a task besides its official tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grading {
    /// Hidden checks, by name.
    pub probes: Vec<Probe>,
    /// Wrong changes that must be caught, by name.
    pub mutants: Vec<Mutant>,
}

/// A reason why a part of a catalog cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A document has faults.
    #[error("{0}")]
    Invalid(RecipeErrors),
    /// There is no such project.
    #[error("no project `{name}` in the catalog")]
    UnknownProject {
        /// What was asked for.
        name: String,
        /// Names close to it.
        nearest: Vec<String>,
    },
    /// There is no such task.
    #[error("no task `{name}` in the catalog")]
    UnknownTask {
        /// What was asked for.
        name: TaskName,
        /// Names close to it.
        nearest: Vec<String>,
    },
    /// A task stands in no project.
    #[error("{} belongs to no project: there is no {project}/project.toml", path.display())]
    NoProject {
        /// The task document.
        path: PathBuf,
        /// The folder that lacks a project.
        project: String,
    },
    /// A task has no such variant, or not a sound one.
    #[error("{0}")]
    Resolve(ResolveError),
    /// A lock has not been written yet.
    #[error("there is no lock `{project}/locks/{file}`")]
    NoLock {
        /// The folder of the project.
        project: String,
        /// Its file.
        file: String,
    },
}

impl CatalogError {
    /// Returns the next step for the user, where there is one to suggest.
    ///
    /// The faults of an [`Invalid`](Self::Invalid) document have hints of their own.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownProject { nearest, .. } | Self::UnknownTask { nearest, .. } => {
                (!nearest.is_empty()).then(|| format!("did you mean {}?", nearest.join(", ")))
            }
            Self::NoLock { .. } => Some("run `infradev lock`".to_owned()),
            Self::Read { .. } | Self::Invalid(_) | Self::NoProject { .. } | Self::Resolve(_) => None,
        }
    }
}

impl From<RecipeErrors> for CatalogError {
    fn from(errors: RecipeErrors) -> Self {
        Self::Invalid(errors)
    }
}

impl Catalog {
    /// Lists the projects and tasks of `roots`; a later root overlays an earlier one.
    pub fn open(roots: &[PathBuf]) -> Result<Self, CatalogError> {
        let roots = roots.to_vec();
        let mut catalog = Self { roots, projects: BTreeSet::new(), tasks: Vec::new() };
        for root in &catalog.roots {
            // An empty listing of a root that is not there would hide a mistyped option.
            list(root)?;
        }
        for name in catalog.folders("")? {
            let has_project = catalog.find(&format!("{name}/project.toml")).is_some();
            for id in catalog.folders(&format!("{name}/tasks"))? {
                let Some(path) = catalog.find(&format!("{name}/tasks/{id}/task.toml")) else { continue };
                if !has_project {
                    return Err(CatalogError::NoProject { path, project: name });
                }
                catalog.tasks.push(TaskName::new(&name, &id));
            }
            if has_project {
                catalog.projects.insert(name);
            }
        }
        Ok(catalog)
    }

    /// Iterates over the folder names of projects.
    pub fn projects(&self) -> impl Iterator<Item = &str> {
        self.projects.iter().map(String::as_str)
    }

    /// Returns all tasks, ordered by name.
    pub fn tasks(&self) -> &[TaskName] {
        &self.tasks
    }

    /// Parses the document of a project.
    pub fn project(&self, name: &str) -> Result<Project, CatalogError> {
        if !self.projects.contains(name) {
            let nearest = owned(nearest(name, self.projects(), 3));
            return Err(CatalogError::UnknownProject { name: name.to_owned(), nearest });
        }
        let (path, text) = self.text(&format!("{name}/project.toml"))?;
        let source = |relative: &str| self.source(name, relative);
        Ok(parse_project(&path, &text, &source)?)
    }

    /// Parses the document of a task of `project`, which is the project that it names.
    pub fn task(&self, name: &TaskName, project: &Project) -> Result<Task, CatalogError> {
        if !self.tasks.contains(name) {
            let names: Vec<String> = self.tasks.iter().map(TaskName::to_string).collect();
            let nearest = owned(nearest(&name.to_string(), names.iter().map(String::as_str), 3));
            return Err(CatalogError::UnknownTask { name: name.clone(), nearest });
        }
        let folder = task_folder(name);
        let (path, text) = self.text(&format!("{folder}/task.toml"))?;
        let source = |relative: &str| self.source(&folder, relative);
        Ok(parse_task(&path, &text, project, &source)?)
    }

    /// Returns a task in one variant, with every default and override applied.
    pub fn recipe(&self, name: &TaskName, variant: &str) -> Result<Recipe, CatalogError> {
        let project = self.project(&name.project)?;
        let task = self.task(name, &project)?;
        Recipe::resolve(name, &project, &task, variant).map_err(CatalogError::Resolve)
    }

    /// Reads what an agent is told about a task.
    pub fn prompt(&self, name: &TaskName) -> Result<Option<String>, CatalogError> {
        let relative = format!("{}/prompt.md", task_folder(name));
        match self.find(&relative) {
            Some(_) => self.text(&relative).map(|(_, text)| Some(text)),
            None => Ok(None),
        }
    }

    /// Parses the probes and mutants of a task.
    pub fn grading(&self, name: &TaskName) -> Result<Grading, CatalogError> {
        let folder = format!("{}/grading", task_folder(name));
        let mut grading = Grading::default();
        for probe in self.folders(&format!("{folder}/probes"))? {
            let folder = format!("{folder}/probes/{probe}");
            let (path, text) = self.text(&format!("{folder}/probe.toml"))?;
            let mut parsed = parse_probe(&path, &probe, &text)?;
            self.collect_files(&folder, "", &mut parsed.files)?;
            parsed.files.remove("probe.toml");
            grading.probes.push(parsed);
        }
        for (file, path) in self.entries(&format!("{folder}/mutants"))? {
            let Some(mutant) = file.strip_suffix(".toml").filter(|_| path.is_file()) else { continue };
            let (path, text) = self.text(&format!("{folder}/mutants/{file}"))?;
            grading.mutants.push(parse_mutant(&path, mutant, &text)?);
        }
        Ok(grading)
    }

    /// Reads a lock of a project: its path as the user knows it, and its text.
    pub(crate) fn lock_text(
        &self,
        project: &str,
        file: &str,
    ) -> Result<Option<(String, String)>, CatalogError> {
        let relative = format!("{project}/locks/{file}");
        if self.find(&relative).is_some() { self.text(&relative).map(Some) } else { Ok(None) }
    }

    /// Returns where a lock is to be written: beside the document of the project, unless it exists.
    pub fn lock_path(&self, project: &str, file: &str) -> Option<PathBuf> {
        let relative = format!("{project}/locks/{file}");
        let beside = self.find(&format!("{project}/project.toml"));
        self.find(&relative).or_else(|| Some(beside?.with_file_name("locks").join(file)))
    }

    /// Parses every document, and returns what is wrong with any.
    pub fn check(&self) -> Vec<CatalogError> {
        let mut errors = Vec::new();
        for name in &self.projects {
            let project = match self.project(name) {
                Ok(project) => project,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            errors.extend(self.check_locks(name));
            for task in self.tasks.iter().filter(|task| task.project == *name) {
                errors.extend(self.check_task(task, &project));
            }
        }
        errors
    }

    fn check_task(&self, name: &TaskName, project: &Project) -> Vec<CatalogError> {
        let mut errors: Vec<_> =
            self.prompt(name).err().into_iter().chain(self.grading(name).err()).collect();
        match self.task(name, project) {
            Ok(task) => errors.extend(variants_of(project, &task).iter().filter_map(|variant| {
                Recipe::resolve(name, project, &task, variant).err().map(CatalogError::Resolve)
            })),
            Err(error) => errors.push(error),
        }
        errors
    }

    fn check_locks(&self, project: &str) -> Vec<CatalogError> {
        let files = match self.entries(&format!("{project}/locks")) {
            Ok(entries) => entries.into_keys(),
            Err(error) => return vec![error],
        };
        let checked = files.map(|file| match (file.starts_with("pylock."), file.starts_with("base.")) {
            (true, _) => self.pylock(project, &file).err(),
            (_, true) => self.base_lock(project, &file).err(),
            _ => None,
        });
        checked.flatten().collect()
    }

    /// Returns where the winning copy of a file is, by its path relative to a root.
    pub fn find(&self, relative: &str) -> Option<PathBuf> {
        self.roots.iter().rev().map(|root| root.join(relative)).find(|path| path.is_file())
    }

    /// Lists every file below a folder, in any of the directories, by its path relative to a root.
    pub fn files_below(&self, folder: &str) -> Vec<String> {
        let mut files = BTreeSet::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for root in &self.roots {
                for entry in fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
                    let Ok(name) = entry.file_name().into_string() else { continue };
                    let path = format!("{folder}/{name}");
                    match entry.file_type() {
                        Ok(kind) if kind.is_dir() => folders.push(path),
                        Ok(kind) if kind.is_file() => drop(files.insert(path)),
                        _ => {}
                    }
                }
            }
        }
        files.into_iter().collect()
    }

    fn text(&self, relative: &str) -> Result<(String, String), CatalogError> {
        let missing = || self.roots.last().map(|root| root.join(relative)).unwrap_or_default();
        let path = self.find(relative).unwrap_or_else(missing);
        match fs::read_to_string(&path) {
            Ok(text) => Ok((path.display().to_string(), text)),
            Err(source) => Err(CatalogError::Read { path, source }),
        }
    }

    fn source(&self, folder: &str, relative: &str) -> Option<Vec<u8>> {
        fs::read(self.find(&format!("{folder}/{relative}"))?).ok()
    }

    fn folders(&self, relative: &str) -> Result<Vec<String>, CatalogError> {
        let entries = self.entries(relative)?.into_iter();
        let folders = entries.filter(|(name, path)| is_plain_name(name) && path.is_dir());
        Ok(folders.map(|(name, _)| name).collect())
    }

    fn entries(&self, relative: &str) -> Result<BTreeMap<String, PathBuf>, CatalogError> {
        let mut entries = BTreeMap::new();
        for root in &self.roots {
            let path = root.join(relative);
            if path.is_dir() {
                entries.extend(list(&path)?);
            }
        }
        Ok(entries)
    }

    fn collect_files(
        &self,
        folder: &str,
        below: &str,
        files: &mut BTreeMap<String, PathBuf>,
    ) -> Result<(), CatalogError> {
        for (name, path) in self.entries(&format!("{folder}/{below}"))? {
            if path.is_dir() {
                self.collect_files(folder, &format!("{below}{name}/"), files)?;
            } else {
                files.insert(format!("{below}{name}"), path);
            }
        }
        Ok(())
    }
}

fn list(path: &Path) -> Result<Vec<(String, PathBuf)>, CatalogError> {
    let fail = |source| CatalogError::Read { path: path.to_owned(), source };
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        // A name that is not text can be none that a recipe means.
        if let Ok(name) = entry.file_name().into_string() {
            entries.push((name, entry.path()));
        }
    }
    Ok(entries)
}

fn task_folder(name: &TaskName) -> String {
    format!("{}/tasks/{}", name.project, name.id)
}

fn owned(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}
