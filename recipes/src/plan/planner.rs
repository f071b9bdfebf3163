//! Adding the steps of an environment one by one, lowest first.

use std::collections::BTreeMap;

use super::{Action, Node, NodeIndex, Plan, PlanError, PlanInputs};
use crate::installed::installed_files;
use crate::name::DistributionName;
use crate::nearest::nearest;
use crate::pylock::{Artifact, Package};
use crate::recipe::{Base, BuildStep, Install, Python};
use crate::resolve::{Recipe, lock_file};

/// Plans the environment of `recipe`.
pub(super) fn plan(recipe: Recipe, inputs: PlanInputs<'_>) -> Result<Plan, PlanError> {
    check_python(&recipe, inputs)?;
    let target = inputs.lock.made_for.target;
    let mut planner = Planner {
        plan: Plan { recipe, target, nodes: Vec::new(), stack: Vec::new() },
        inputs,
        below: Vec::new(),
        wheels: BTreeMap::new(),
        steps: BTreeMap::new(),
    };
    planner.below = planner.add_base()?;
    let skeleton =
        planner.add(format!("skeleton python{}", target.python), Action::Skeleton, planner.below.clone());
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

/// Checks that the recipe, its lock and a host base mean the same interpreter.
fn check_python(recipe: &Recipe, inputs: PlanInputs<'_>) -> Result<(), PlanError> {
    let Python::Base { version } = recipe.python else {
        return Err(PlanError::NotSupported { what: "a standalone `python`" });
    };
    let found = inputs.lock.made_for.target.python;
    if let Some(expected) = version.filter(|expected| *expected != found) {
        return Err(PlanError::OtherPython { file: recipe.lock_file(), expected, found });
    }
    if recipe.base == Base::Host && inputs.host_python != Some(found) {
        return Err(PlanError::HostPython { expected: found, found: inputs.host_python });
    }
    Ok(())
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

    /// Adds the base: one step, or one for each layer of an image.
    fn add_base(&mut self) -> Result<Vec<NodeIndex>, PlanError> {
        let file = self.plan.recipe.base_lock_file();
        let base = match self.plan.recipe.base.clone() {
            Base::Host => return Ok(vec![self.add("base host".to_owned(), Action::HostBase, Vec::new())]),
            Base::Image { reference } => {
                let Some(lock) = self.inputs.image_lock else { return Err(PlanError::NoLock { file }) };
                if !lock.answers(&reference) || lock.architecture != self.plan.target.architecture {
                    return Err(PlanError::StaleImageLock { file });
                }
                let layers = lock.layers().iter().map(|layer| {
                    let short = layer.diff_id.trim_start_matches("sha256:").get(..12).unwrap_or_default();
                    let image = lock.image.clone();
                    let action = Action::ImageLayer { image, layer: layer.clone() };
                    self.add(format!("base layer {short}"), action, Vec::new())
                });
                layers.collect()
            }
            Base::Debian { suite, packages } => {
                let Some(lock) = self.inputs.base_lock else { return Err(PlanError::NoLock { file }) };
                if !lock.answers(&suite, &packages) || lock.architecture != self.plan.target.architecture {
                    return Err(PlanError::StaleBaseLock { file });
                }
                vec![self.add(format!("base {suite}"), Action::DebianBase(lock.clone()), Vec::new())]
            }
        };
        self.plan.stack.extend(&base);
        Ok(base)
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
        let (expected, found) = (self.plan.target.python, lock.made_for.target.python);
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
            Install::Path => installed_files(recipe, self.plan.target.python),
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
