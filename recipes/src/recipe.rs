//! What the documents of a catalog say: projects, variants, tasks and what is built for them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::grading::Tests;
use crate::name::DistributionName;
use crate::pattern::Pattern;
use crate::target::PythonVersion;
use crate::timestamp::Timestamp;

/// A repository whose history the tasks come from: `project.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Project {
    /// The directory below `/workspace`.
    pub name: String,
    /// One line for people.
    pub summary: String,
    /// The distribution that the source tree is.
    pub distribution: DistributionName,
    /// How an environment learns of the source tree.
    pub install: Install,
    /// The repository that the base commits are in.
    pub git: Option<String>,
    /// The kinds of environment, by name.
    pub variants: BTreeMap<String, Variant>,
    /// Files that every environment gets.
    pub files: Vec<GeneratedFile>,
    /// Build steps of every task.
    pub build: Vec<BuildStep>,
}

impl Project {
    /// Returns where the source tree is in an environment.
    pub fn workspace(&self) -> String {
        format!("/workspace/{}", self.name)
    }
}

/// How an environment learns of the source tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Install {
    /// A `.pth` file and a minimal dist-info.
    Path,
    /// The build steps install it.
    Build,
}

/// A kind of environment of a project, such as `cpu`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Variant {
    /// The operating system below everything.
    pub base: Base,
    /// Where the interpreter comes from.
    pub python: Python,
    /// The environment of every command.
    pub env: BTreeMap<String, String>,
    /// What is installed.
    pub requirements: Requirements,
    /// The lock that tasks use unless they name one.
    pub lock: Option<String>,
}

/// The operating system of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// Debian packages, locked one by one.
    Debian {
        /// The release, such as `bookworm`.
        suite: String,
        /// What to install besides the essential packages.
        packages: Vec<String>,
    },
    /// The directories of the machine, shown read-only.
    Host,
    /// A container image, whose layers are locked one by one.
    Image {
        /// A place with a tag or `@sha256:…`; or [`ROOTFS`] and the place of an archive.
        reference: String,
    },
}

/// What references of images begin with that are one archive of a root file system: `base = { rootfs = "PLACE" }`.
pub const ROOTFS: &str = "rootfs:";

/// Where the interpreter comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Python {
    /// `/usr/bin/pythonX.Y` of the base; without a version, what the host has.
    Base {
        /// The version, always given unless the base is the host.
        version: Option<PythonVersion>,
    },
    /// A standalone build.
    Standalone {
        /// Where it is downloaded from.
        url: String,
        /// What its bytes hash to.
        sha256: String,
    },
}

/// What a lock is resolved from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Requirements {
    /// Requirement files of the source tree at the base commit.
    pub files: Vec<String>,
    /// Requirements written in the recipe (PEP 508).
    pub pins: Vec<String>,
}

/// A file that the recipe writes into environments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GeneratedFile {
    /// Where it goes: below `/opt/env` or the source tree.
    pub path: String,
    /// The permission bits.
    pub mode: u32,
    /// What is in it.
    #[serde(skip)]
    pub content: Vec<u8>,
}

/// A command whose outputs are shared by all tasks whose inputs agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BuildStep {
    /// What other steps and the command line call it.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The only files of the source tree that the command sees, relative to it.
    pub inputs: Vec<Pattern>,
    /// What the command must leave, as absolute patterns.
    pub outputs: Vec<Pattern>,
    /// Build steps, or distributions of the lock with their dependencies.
    pub needs: Vec<String>,
    /// The environment of the command; part of the key.
    pub env: BTreeMap<String, String>,
    /// Variables handed through from the caller that cannot change the output.
    pub env_ignored: Vec<String>,
    /// A compile cache kept across builds.
    pub cache: Option<String>,
    /// Whether the command may use the network.
    pub network: bool,
    /// The variants it is for; empty for all.
    pub variants: Vec<String>,
}

/// One change to reimplement: `task.toml` without what grades it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Task {
    /// One line for people.
    pub title: String,
    /// Where the change was discussed.
    pub url: Option<String>,
    /// The variants it exists in; empty for all of the project.
    pub variants: Vec<String>,
    /// The tree that the work starts from.
    pub source: Source,
    /// How its environment differs from the variant's.
    pub python: TaskPython,
    /// Files that its environments get besides the project's.
    pub files: Vec<GeneratedFile>,
    /// Build steps to add; one with a known name replaces it.
    pub build: Vec<BuildStep>,
    /// Environment on top of the variant's.
    pub env: BTreeMap<String, String>,
    /// A command that must succeed in a fresh environment.
    pub check: Option<Vec<String>>,
    /// The tests of the pull request.
    pub tests: Option<Tests>,
}

/// The tree that the work starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Where the tree comes from.
    pub origin: Origin,
    /// The time that source and build layers carry.
    pub date: Option<Timestamp>,
    /// The version that the distribution says it has (PEP 440).
    pub version: String,
    /// What is left out of the tree.
    pub exclude: Vec<Pattern>,
}

/// Where a source tree comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The tree of a commit in the project's repository.
    Commit(String),
    /// A source distribution of the package index.
    Sdist {
        /// The distribution.
        name: DistributionName,
        /// The release.
        version: String,
        /// What its bytes hash to.
        sha256: String,
    },
}

/// How the packages of a task differ from those of the variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TaskPython {
    /// Takes the place of the variant's requirements.
    pub requirements: Option<Requirements>,
    /// The lock to use or write.
    pub lock: Option<String>,
    /// Nothing uploaded later than this is considered; the source's date when absent.
    pub exclude_newer: Option<Timestamp>,
    /// Whether versions chosen for sibling tasks are preferred.
    pub align: bool,
    /// For files that two distributions write differently: which one wins.
    pub prefer: Vec<(Pattern, DistributionName)>,
}

impl Default for TaskPython {
    fn default() -> Self {
        Self { requirements: None, lock: None, exclude_newer: None, align: true, prefer: Vec::new() }
    }
}
