//! A task in one variant, with every default and override applied.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::grading::Tests;
use crate::name::{DistributionName, TaskName};
use crate::order::sort;
use crate::pattern::Pattern;
use crate::recipe::{
    Base, BuildStep, GeneratedFile, Install, Origin, Project, Python, Requirements, Source, Task,
};
use crate::record::StepRecord;
use crate::timestamp::Timestamp;

/// A task in one variant: what its environment is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Recipe {
    /// The task.
    pub task: TaskName,
    /// The variant.
    pub variant: String,
    /// Where the source tree is in the environment.
    pub workspace: String,
    /// The distribution that the source tree is.
    pub distribution: DistributionName,
    /// How the environment learns of the source tree.
    pub install: Install,
    /// The repository of the base commit.
    pub git: Option<String>,
    /// The tree that the work starts from.
    pub source: Source,
    /// The operating system.
    pub base: Base,
    /// Where the interpreter comes from.
    pub python: Python,
    /// The environment of every command.
    pub env: BTreeMap<String, String>,
    /// What the lock is resolved from.
    pub requirements: Requirements,
    /// The name of the lock.
    pub lock: String,
    /// Nothing uploaded later is considered by the lock.
    pub exclude_newer: Option<Timestamp>,
    /// Whether versions chosen for sibling tasks are preferred.
    pub align: bool,
    /// For files that two distributions write differently: which one wins.
    pub prefer: Vec<(Pattern, DistributionName)>,
    /// Files that the recipe writes, ordered by path.
    pub files: Vec<GeneratedFile>,
    /// Build steps, each after those that it needs.
    pub build: Vec<BuildStep>,
    /// A command that must succeed in a fresh environment.
    pub check: Option<Vec<String>>,
    /// The tests of the pull request.
    pub tests: Option<Tests>,
}

/// A reason why a task has no such variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The project or the task lacks the variant.
    #[error("{task} has no variant `{variant}`: it has {}", known.join(", "))]
    NoVariant {
        /// The task.
        task: TaskName,
        /// The variant asked for.
        variant: String,
        /// The variants that there are.
        known: Vec<String>,
    },
    /// With the task's own steps, the needs form a cycle.
    #[error("the build steps of {task} need each other: {}", cycle.join(" needs "))]
    Cycle {
        /// The task.
        task: TaskName,
        /// The steps along the cycle.
        cycle: Vec<String>,
    },
    /// The project is installed by its build steps, but has none here.
    #[error("{task} in variant `{variant}` is installed by build steps, but has none")]
    NothingInstalls {
        /// The task.
        task: TaskName,
        /// The variant.
        variant: String,
    },
}

/// Returns the names of the variants that `task` exists in.
pub fn variants_of(project: &Project, task: &Task) -> Vec<String> {
    if task.variants.is_empty() { project.variants.keys().cloned().collect() } else { task.variants.clone() }
}

impl Recipe {
    /// Applies the overrides of `task` to `variant` of `project`.
    pub fn resolve(
        name: &TaskName,
        project: &Project,
        task: &Task,
        variant: &str,
    ) -> Result<Self, ResolveError> {
        let known = variants_of(project, task);
        let of_project = project.variants.get(variant).filter(|_| known.iter().any(|known| known == variant));
        let Some(settings) = of_project else {
            return Err(ResolveError::NoVariant { task: name.clone(), variant: variant.to_owned(), known });
        };
        let build = steps(name, project, task, variant)?;
        if project.install == Install::Build && build.is_empty() {
            return Err(ResolveError::NothingInstalls { task: name.clone(), variant: variant.to_owned() });
        }
        let mut env = settings.env.clone();
        env.extend(task.env.clone());
        let files = project.files.iter().chain(&task.files).map(|file| (&file.path, file));
        let files: BTreeMap<_, _> = files.collect();
        let lock = task.python.lock.clone().or_else(|| settings.lock.clone());
        Ok(Self {
            task: name.clone(),
            variant: variant.to_owned(),
            workspace: project.workspace(),
            distribution: project.distribution.clone(),
            install: project.install,
            git: project.git.clone(),
            source: task.source.clone(),
            base: settings.base.clone(),
            python: settings.python.clone(),
            env,
            requirements: task.python.requirements.clone().unwrap_or_else(|| settings.requirements.clone()),
            lock: lock.unwrap_or_else(|| format!("{}-{variant}", name.id)),
            exclude_newer: task.python.exclude_newer.or(task.source.date),
            align: task.python.align,
            prefer: task.python.prefer.clone(),
            files: files.into_values().cloned().collect(),
            build,
            check: task.check.clone(),
            tests: task.tests.clone(),
        })
    }

    /// Returns the file of the package lock in the project's `locks`.
    pub fn lock_file(&self) -> String {
        lock_file(&self.lock)
    }

    /// Returns the file of the base lock in the project's `locks`.
    pub fn base_lock_file(&self) -> String {
        format!("base.{}.lock", self.variant)
    }

    /// Names what a lock is resolved from: the pins, and the content of the requirement files, which
    /// the caller reads from the tree in the order of `requirements.files`.
    pub fn requirement_digest(&self, files: &[Vec<u8>]) -> String {
        let contents = files.iter().map(|content| blake3::hash(content));
        let record = StepRecord::new("requirements", 1)
            .list("pins", &self.requirements.pins)
            .list("files", &self.requirements.files)
            .list("contents", contents)
            .list("exclude-newer", self.exclude_newer);
        record.key().to_hex()
    }

    /// Returns the commit or sdist in a few letters, for people.
    pub(crate) fn source_label(&self) -> String {
        match &self.source.origin {
            Origin::Commit(commit) => commit.chars().take(12).collect(),
            Origin::Sdist { name, version, .. } => format!("{name} {version}"),
        }
    }
}

/// Returns the file of the lock called `name`, of an environment or of a build.
pub fn lock_file(name: &str) -> String {
    format!("pylock.{name}.toml")
}

fn steps(
    name: &TaskName,
    project: &Project,
    task: &Task,
    variant: &str,
) -> Result<Vec<BuildStep>, ResolveError> {
    let mut steps: Vec<BuildStep> = project.build.clone();
    for own in &task.build {
        match steps.iter_mut().find(|step| step.name == own.name) {
            Some(step) => *step = own.clone(),
            None => steps.push(own.clone()),
        }
    }
    steps.retain(|step| step.variants.is_empty() || step.variants.iter().any(|of_step| of_step == variant));
    let order = sort(&steps).map_err(|cycle| ResolveError::Cycle { task: name.clone(), cycle })?;
    Ok(order.into_iter().map(|index| steps[index].clone()).collect())
}
