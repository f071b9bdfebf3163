//! The record of each kind of step: exactly what may change its output.
//!
//! No modification time, owner, umask, checkout path, job count or task name is in any of them, so a
//! layer is shared by every task for which these fields agree. The runner owes the other half of the
//! bargain: nothing outside the record may reach the step.

use std::collections::BTreeMap;

use infradev_store::{LayerId, ObjectId};

use crate::base_lock::BaseLock;
use crate::plan::{Action, NodeIndex, Plan};
use crate::pylock::{Artifact, Package};
use crate::recipe::{BuildStep, GeneratedFile, Origin};
use crate::record::{SANDBOX, StepRecord};

/// Where environments are installed.
pub const PREFIX: &str = "/opt/env";

/// What the shell and the machine contribute to keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyContext {
    /// The fingerprint of a host base; needed only for one.
    pub host_fingerprint: Option<Vec<u8>>,
    /// The magic number of the interpreter's bytecode.
    pub pyc_magic: u32,
    /// The versions of what turns inputs into layers.
    pub versions: StepVersions,
}

/// The versions of what turns inputs into layers; a raised one makes new keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepVersions {
    /// How packages become a base.
    pub base: u32,
    /// How a layer of an image becomes one of ours.
    pub image: u32,
    /// How a skeleton looks.
    pub skeleton: u32,
    /// `WHEEL_LAYER_VERSION`.
    pub wheel: u32,
    /// How a commit becomes a source layer.
    pub source: u32,
    /// What a sandbox shows and forbids.
    pub sandbox: u32,
}

/// What is known of the steps that are done, and of the inputs of those that are next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The layers that steps made.
    pub layers: BTreeMap<NodeIndex, LayerId>,
    /// The sha256 of the wheels that `SdistWheel` steps made.
    pub built_wheels: BTreeMap<NodeIndex, String>,
    /// The tree ids of the inputs of `Build` steps: path, kind, executable bit, content.
    pub inputs: BTreeMap<NodeIndex, [u8; 32]>,
}

/// A step whose record cannot be made yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the key of `{label}` needs {missing}")]
pub struct KeyError {
    /// The step.
    pub label: String,
    /// What is not known.
    pub missing: String,
}

impl Plan {
    /// Returns the record of a step, from which its key follows.
    ///
    /// A host base has none, as it makes nothing: it is an error to ask for it.
    pub fn record(
        &self,
        index: NodeIndex,
        context: &KeyContext,
        progress: &Progress,
    ) -> Result<StepRecord, KeyError> {
        let recorder = Recorder { plan: self, index, context, progress };
        match &self.node(index).action {
            Action::HostBase => Err(recorder.missing("a step that makes something")),
            Action::DebianBase(lock) => Ok(recorder.debian_base(lock)),
            Action::ImageLayer { layer, .. } => Ok(layer.record(context.versions.image)),
            Action::Skeleton => recorder.skeleton(),
            Action::Wheel(package) => recorder.wheel(package),
            Action::SdistWheel(package) => recorder.sdist(package),
            Action::Source => Ok(recorder.source()),
            Action::Build(step) => recorder.build(step),
            Action::Files(files) => Ok(files_record(files)),
        }
    }
}

struct Recorder<'a> {
    plan: &'a Plan,
    index: NodeIndex,
    context: &'a KeyContext,
    progress: &'a Progress,
}

impl Recorder<'_> {
    fn missing(&self, what: impl Into<String>) -> KeyError {
        KeyError { label: self.plan.node(self.index).label.clone(), missing: what.into() }
    }

    fn debian_base(&self, lock: &BaseLock) -> StepRecord {
        let packages = lock.packages().iter();
        let packages =
            packages.map(|deb| format!("{} {} {} {}", deb.name, deb.version, deb.architecture, deb.sha256));
        StepRecord::new("base", self.context.versions.base)
            .text("architecture", lock.architecture)
            .text("suite", &lock.suite)
            .list("packages", packages)
    }

    fn skeleton(&self) -> Result<StepRecord, KeyError> {
        let record = StepRecord::new("skeleton", self.context.versions.skeleton)
            .text("prefix", PREFIX)
            .text("python", self.plan.target.python);
        let needs = self.plan.node(self.index).needs.iter();
        let on_host = needs.into_iter().any(|need| matches!(self.plan.node(*need).action, Action::HostBase));
        // Over a host it also holds the links and empty directories that the host's are shown at.
        Ok(if on_host { record.text("base", self.host()?) } else { record })
    }

    fn host(&self) -> Result<String, KeyError> {
        let fingerprint = self.context.host_fingerprint.as_ref();
        let fingerprint = fingerprint.ok_or_else(|| self.missing("the fingerprint of the host"))?;
        Ok(format!("host {}", blake3::hash(fingerprint)))
    }

    fn wheel(&self, package: &Package) -> Result<StepRecord, KeyError> {
        let sha256 = match &package.artifact {
            Artifact::Wheel(archive) => &archive.sha256,
            Artifact::Sdist { .. } => {
                let needs = self.plan.node(self.index).needs.iter();
                let mut built = needs.filter_map(|need| self.progress.built_wheels.get(need));
                built.next().ok_or_else(|| self.missing("the wheel that its sdist makes"))?
            }
        };
        let record = StepRecord::new("wheel", self.context.versions.wheel)
            .text("sha256", sha256)
            .text("prefix", PREFIX)
            .text("python", self.plan.target.python.tag())
            .text("pyc-magic", self.context.pyc_magic);
        Ok(record)
    }

    fn sdist(&self, package: &Package) -> Result<StepRecord, KeyError> {
        let record = StepRecord::new("sdist", 1).text("sha256", &package.artifact.archive().sha256);
        self.sandboxed(record)
    }

    fn source(&self) -> StepRecord {
        let recipe = &self.plan.recipe;
        let origin = match &recipe.source.origin {
            Origin::Commit(commit) => ("commit", commit),
            Origin::Sdist { sha256, .. } => ("sdist", sha256),
        };
        StepRecord::new("source", self.context.versions.source)
            .text(origin.0, origin.1)
            .list("date", recipe.source.date)
            .list("exclude", &recipe.source.exclude)
            .text("path", &recipe.workspace)
    }

    fn build(&self, step: &BuildStep) -> Result<StepRecord, KeyError> {
        let tree = self.progress.inputs.get(&self.index);
        let tree = tree.ok_or_else(|| self.missing("the tree of its inputs"))?;
        // A variable that cannot change the output is not in `env`: the parser refuses both.
        let record = StepRecord::new("build", 1)
            .list("command", &step.command)
            .text("workdir", &self.plan.recipe.workspace)
            .table("env", &step.env)
            .text("inputs", ObjectId::from_bytes(*tree))
            .list("outputs", &step.outputs)
            .text("network", step.network);
        self.sandboxed(record)
    }

    /// Adds what every command that runs can see besides its own inputs.
    fn sandboxed(&self, record: StepRecord) -> Result<StepRecord, KeyError> {
        let mut needs = Vec::new();
        let mut base = Vec::new();
        for index in &self.plan.node(self.index).needs {
            let node = self.plan.node(*index);
            let layer =
                || self.progress.layers.get(index).ok_or_else(|| self.missing(format!("`{}`", node.label)));
            match &node.action {
                Action::DebianBase(_) | Action::ImageLayer { .. } => base.push(layer()?.to_hex()),
                Action::HostBase => base.push(self.host()?),
                // The declared inputs stand for the tree.
                Action::Source => {}
                Action::Skeleton => needs.push(format!("skeleton {}", layer()?)),
                Action::Wheel(package) => {
                    needs.push(format!("{} {} {}", package.name, package.version, layer()?))
                }
                Action::Build(step) => needs.push(format!("{} {}", step.name, layer()?)),
                Action::SdistWheel(_) | Action::Files(_) => {}
            }
        }
        if base.is_empty() {
            return Err(self.missing("a base"));
        }
        let record = record
            .text("architecture", self.plan.target.architecture)
            .text("base", base.join(" "))
            .list("needs", needs)
            .text(SANDBOX, self.context.versions.sandbox);
        Ok(record)
    }
}

fn files_record(files: &[GeneratedFile]) -> StepRecord {
    let files = files.iter().map(|file| {
        let content = format!("{:04o} {}", file.mode, ObjectId::of(&file.content));
        (file.path.clone(), content)
    });
    StepRecord::new("files", 1).table("files", &files.collect())
}
