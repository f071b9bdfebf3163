//! The steps that make an environment, each after what it needs.

mod planner;

use std::collections::BTreeMap;

use crate::base_lock::BaseLock;
use crate::image_lock::{ImageLayer, ImageLock};
use crate::name::DistributionName;
use crate::pylock::{Package, Pylock};
use crate::recipe::{BuildStep, GeneratedFile};
use crate::resolve::Recipe;
use crate::target::{PythonVersion, Target};

/// The steps that make an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What they make.
    pub recipe: Recipe,
    /// The machine that it is for: that of the lock.
    pub target: Target,
    nodes: Vec<Node>,
    stack: Vec<NodeIndex>,
}

/// A step by its place in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub(crate) usize);

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What people call it, such as `verl/3567 wheel torch 2.8.0`.
    pub label: String,
    /// What it does.
    pub action: Action,
    /// The steps that must be done before it, in the order in which a sandbox stacks them.
    pub needs: Vec<NodeIndex>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Unpacks the packages of a Debian base into a layer.
    DebianBase(BaseLock),
    /// Fetches and applies a layer of an image base.
    ImageLayer {
        /// The image, as the recipe names it.
        image: String,
        /// The layer.
        layer: ImageLayer,
    },
    /// Stands for the directories of the machine: it makes no layer, only a fingerprint.
    HostBase,
    /// Makes `/opt/env` with its interpreter.
    Skeleton,
    /// Turns a wheel into a layer: one of the index, or what the needed `SdistWheel` made.
    Wheel(Package),
    /// Builds a source distribution into a wheel, which is an object and no layer.
    SdistWheel(Package),
    /// Makes the source tree at the base commit.
    Source,
    /// Runs a build step of the recipe.
    Build(BuildStep),
    /// Writes the files of the recipe and, for `install = "path"`, those that make it importable.
    Files(Vec<GeneratedFile>),
}

/// What a plan is made from, besides the recipe.
#[derive(Debug, Clone, Copy)]
pub struct PlanInputs<'a> {
    /// The lock of the recipe.
    pub lock: &'a Pylock,
    /// The locks that sdists of the lock name, by name.
    pub build_locks: &'a BTreeMap<String, Pylock>,
    /// The lock of a Debian base.
    pub base_lock: Option<&'a BaseLock>,
    /// The lock of an image base.
    pub image_lock: Option<&'a ImageLock>,
    /// The interpreter of the machine; needed only for a host base.
    pub host_python: Option<PythonVersion>,
}

/// A reason why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A part of the grammar that cannot be built yet.
    #[error("{what} is not supported yet")]
    NotSupported {
        /// The part.
        what: &'static str,
    },
    /// A lock is missing.
    #[error("there is no lock `{file}`")]
    NoLock {
        /// Its file in the project's `locks`.
        file: String,
    },
    /// A base lock was made for another request.
    #[error("the lock `{file}` was made for other packages than the recipe asks for")]
    StaleBaseLock {
        /// Its file in the project's `locks`.
        file: String,
    },
    /// The lock of an image base was made for another image.
    #[error("the lock `{file}` was made for another image than the recipe names")]
    StaleImageLock {
        /// Its file in the project's `locks`.
        file: String,
    },
    /// A lock was made for another interpreter.
    #[error("the lock `{file}` is for Python {found}, and the recipe wants {expected}")]
    OtherPython {
        /// Its file in the project's `locks`.
        file: String,
        /// What the recipe wants.
        expected: PythonVersion,
        /// What the lock is for.
        found: PythonVersion,
    },
    /// The host has another interpreter than the recipe wants, or none that is known.
    #[error("the recipe wants Python {expected}, and the host has {}", found.map_or("none".to_owned(), |found| found.to_string()))]
    HostPython {
        /// What the recipe or its lock wants.
        expected: PythonVersion,
        /// What the host has.
        found: Option<PythonVersion>,
    },
    /// A build lock holds a source distribution.
    #[error("the build lock `{file}` holds {name} as a source distribution, and only wheels can build")]
    NestedSdist {
        /// Its file in the project's `locks`.
        file: String,
        /// The distribution.
        name: DistributionName,
    },
    /// An sdist without a build lock.
    #[error("{name} is a source distribution, and the lock names no build lock for it")]
    NoBuildLock {
        /// The distribution.
        name: DistributionName,
    },
    /// A build step needs what is neither a step nor locked.
    #[error("the build step `{step}` needs `{need}`, which is neither a build step nor in the lock")]
    UnknownNeed {
        /// The step.
        step: String,
        /// What it needs.
        need: String,
        /// Names close to it.
        nearest: Vec<String>,
    },
}

impl PlanError {
    /// Returns the next step for the user, where there is one to suggest.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotSupported { .. } | Self::NestedSdist { .. } => None,
            Self::HostPython { expected, .. } => {
                Some(format!("install python{expected} on the host, or lock for its own"))
            }
            Self::UnknownNeed { nearest, .. } => Some(format!("did you mean `{}`?", nearest.first()?)),
            _ => Some("run `infradev lock`".to_owned()),
        }
    }
}

impl Plan {
    /// Plans the environment of `recipe`.
    pub fn new(recipe: Recipe, inputs: PlanInputs<'_>) -> Result<Self, PlanError> {
        planner::plan(recipe, inputs)
    }

    /// Iterates over the steps, each after those that it needs.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeIndex(index), node))
    }

    /// Returns a step of this plan.
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.0]
    }

    /// Returns the steps whose layers make the environment, lowest first.
    pub fn stack(&self) -> &[NodeIndex] {
        &self.stack
    }
}
