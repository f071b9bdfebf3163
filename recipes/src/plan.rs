//! The steps that make an environment, each after what it needs.

use std::collections::BTreeMap;

use crate::base_lock::BaseLock;
use crate::installed::installed_files;
use crate::name::DistributionName;
use crate::nearest::nearest;
use crate::pylock::{Artifact, Package, Pylock};
use crate::recipe::{Base, BuildStep, GeneratedFile, Install, Python};
use crate::resolve::{Recipe, lock_file};
use crate::target::PythonVersion;

/// The steps that make an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What they make.
    pub recipe: Recipe,
    /// The interpreter of the environment.
    pub python: PythonVersion,
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
            Self::UnknownNeed { nearest, .. } => Some(format!("did you mean `{}`?", nearest.first()?)),
            _ => Some("run `infradev lock`".to_owned()),
        }
    }
}

impl Plan {
    /// Plans the environment of `recipe`.
    pub fn new(recipe: Recipe, inputs: PlanInputs<'_>) -> Result<Self, PlanError> {
        let python = check_python(&recipe, inputs.lock)?;
        let mut planner = Planner {
            plan: Plan { recipe, python, nodes: Vec::new(), stack: Vec::new() },
            inputs,
            below: Vec::new(),
            wheels: BTreeMap::new(),
            steps: BTreeMap::new(),
        };
        planner.add_base()?;
        let skeleton =
            planner.add(format!("skeleton python{python}"), Action::Skeleton, planner.below.clone());
        planner.below.push(skeleton);
        planner.plan.stack.push(skeleton);
        for package in inputs.lock.packages() {
            let wheel = planner.add_package(package)?;
            planner.plan.stack.push(wheel);
        }
        let label = format!("source {}", planner.plan.recipe.source_label());
        let source = planner.add(label, Action::Source, Vec::new());
        planner.plan.stack.push(source);
        for step in planner.plan.recipe.build.clone() {
            planner.add_build(source, step)?;
        }
        planner.add_files();
        Ok(planner.plan)
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

/// Says for which interpreter an environment of `recipe` with `lock` is, after checking that they agree.
fn check_python(recipe: &Recipe, lock: &Pylock) -> Result<PythonVersion, PlanError> {
    let found = lock.made_for.target.python;
    match recipe.python {
        Python::Base { version: Some(expected) } if expected != found => {
            Err(PlanError::OtherPython { file: recipe.lock_file(), expected, found })
        }
        Python::Base { .. } => Ok(found),
        Python::Standalone { .. } => Err(PlanError::NotSupported { what: "a standalone `python`" }),
    }
}

struct Planner<'a> {
    plan: Plan,
    inputs: PlanInputs<'a>,
    /// The base and the skeleton: below every command that runs.
    below: Vec<NodeIndex>,
    /// The wheel steps by the sha256 of what they start from.
    wheels: BTreeMap<String, NodeIndex>,
    steps: BTreeMap<String, NodeIndex>,
}

impl Planner<'_> {
    fn add(&mut self, what: String, action: Action, needs: Vec<NodeIndex>) -> NodeIndex {
        let label = format!("{} {what}", self.plan.recipe.task);
        self.plan.nodes.push(Node { label, action, needs });
        NodeIndex(self.plan.nodes.len() - 1)
    }

    fn add_base(&mut self) -> Result<(), PlanError> {
        let base = match &self.plan.recipe.base {
            Base::Host => self.add("base host".to_owned(), Action::HostBase, Vec::new()),
            Base::Image { .. } => return Err(PlanError::NotSupported { what: "a base from an `image`" }),
            Base::Rootfs { .. } => return Err(PlanError::NotSupported { what: "a base from a `rootfs`" }),
            Base::Debian { suite, packages } => {
                let file = self.plan.recipe.base_lock_file();
                let Some(lock) = self.inputs.base_lock else { return Err(PlanError::NoLock { file }) };
                if !lock.answers(suite, packages) {
                    return Err(PlanError::StaleBaseLock { file });
                }
                let base = self.add(format!("base {suite}"), Action::DebianBase(lock.clone()), Vec::new());
                self.plan.stack.push(base);
                base
            }
        };
        self.below.push(base);
        Ok(())
    }

    fn add_package(&mut self, package: &Package) -> Result<NodeIndex, PlanError> {
        let sha256 = &package.artifact.archive().sha256;
        if let Some(index) = self.wheels.get(sha256) {
            return Ok(*index);
        }
        let needs = match &package.artifact {
            // Its bytecode is compiled by the interpreter of the environment.
            Artifact::Wheel(_) => self.below.clone(),
            Artifact::Sdist { build_lock, .. } => {
                let sdist = self.add_sdist(package, build_lock.as_deref())?;
                [self.below.clone(), vec![sdist]].concat()
            }
        };
        let label = format!("wheel {} {}", package.name, package.version);
        let wheel = self.add(label, Action::Wheel(package.clone()), needs);
        self.wheels.insert(sha256.clone(), wheel);
        Ok(wheel)
    }

    fn add_sdist(&mut self, package: &Package, build_lock: Option<&str>) -> Result<NodeIndex, PlanError> {
        let name = build_lock.ok_or_else(|| PlanError::NoBuildLock { name: package.name.clone() })?;
        let file = lock_file(name);
        let Some(lock) = self.inputs.build_locks.get(name) else { return Err(PlanError::NoLock { file }) };
        let (expected, found) = (self.plan.python, lock.made_for.target.python);
        if expected != found {
            return Err(PlanError::OtherPython { file, expected, found });
        }
        let mut needs = self.below.clone();
        for tool in lock.packages() {
            if matches!(tool.artifact, Artifact::Sdist { .. }) {
                return Err(PlanError::NestedSdist { file, name: tool.name.clone() });
            }
            needs.push(self.add_package(tool)?);
        }
        let label = format!("sdist {} {}", package.name, package.version);
        Ok(self.add(label, Action::SdistWheel(package.clone()), needs))
    }

    fn add_build(&mut self, source: NodeIndex, step: BuildStep) -> Result<(), PlanError> {
        let mut packages = Vec::new();
        let mut steps = Vec::new();
        for need in &step.needs {
            if let Some(index) = self.steps.get(need) {
                steps.push(*index);
                continue;
            }
            let name = need.parse::<DistributionName>().ok();
            let closure = name.and_then(|name| self.inputs.lock.closure(&name));
            packages.extend(closure.ok_or_else(|| self.unknown_need(&step, need))?);
        }
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        packages.dedup_by(|a, b| a.name == b.name);
        let mut needs = self.below.clone();
        for package in packages {
            needs.push(self.add_package(package)?);
        }
        needs.push(source);
        needs.extend(steps);
        let name = step.name.clone();
        let index = self.add(format!("build {name}"), Action::Build(step), needs);
        self.steps.insert(name, index);
        self.plan.stack.push(index);
        Ok(())
    }

    fn unknown_need(&self, step: &BuildStep, need: &str) -> PlanError {
        let packages = self.inputs.lock.packages().iter().map(|package| package.name.as_str());
        let names = self.plan.recipe.build.iter().map(|step| step.name.as_str()).chain(packages);
        let nearest = nearest(need, names, 3).into_iter().map(str::to_owned).collect();
        PlanError::UnknownNeed { step: step.name.clone(), need: need.to_owned(), nearest }
    }

    fn add_files(&mut self) {
        let recipe = &self.plan.recipe;
        let mut files = match recipe.install {
            Install::Path => installed_files(recipe, self.plan.python),
            Install::Build => Vec::new(),
        };
        // The recipe may replace what is made for it, say a longer METADATA.
        files.retain(|made| recipe.files.iter().all(|file| file.path != made.path));
        files.extend(recipe.files.iter().cloned());
        if files.is_empty() {
            return;
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let index = self.add("files".to_owned(), Action::Files(files), Vec::new());
        self.plan.stack.push(index);
    }
}
