//! What a finished build leaves as a root: the stack of a task variant, and what each layer of it is.

use std::collections::BTreeMap;

use infradev_recipes::TaskName;
use infradev_store::{LayerId, RootKind, Stack, StepKey, Store};
use serde::{Deserialize, Serialize};

/// A built task variant: the content of its root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuiltTask {
    /// The version of this file's form.
    pub schema: u32,
    /// The stack, lowest first; what garbage collection reads.
    pub layers: Vec<LayerId>,
    /// Layers that built it and are not part of it.
    pub also: Vec<LayerId>,
    /// The task, such as `verl/3567`.
    pub task: String,
    /// The variant.
    pub variant: String,
    /// What each step contributed, in build order.
    pub steps: Vec<BuiltStep>,
    /// The Python version.
    pub python: String,
    /// Where the source tree is.
    pub workspace: String,
    /// Variables of every command.
    pub variables: BTreeMap<String, String>,
    /// Whether the host's directories are shown below the stack.
    pub host_base: bool,
    /// The files of the catalog that it was made from.
    #[serde(default)]
    pub catalog_files: Vec<String>,
    /// What they hashed to.
    pub recipe: String,
    /// Seconds since 1970.
    pub built: u64,
}

/// A step of a built task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuiltStep {
    /// The kind of step.
    pub kind: String,
    /// What it is for people.
    pub label: String,
    /// Its key.
    pub key: StepKey,
    /// Its layer.
    pub layer: LayerId,
    /// How long it took when it ran, in seconds.
    pub seconds: f64,
    /// Bytes downloaded for it when it ran.
    pub downloaded: u64,
}

impl BuiltTask {
    /// Returns the stack.
    pub fn stack(&self) -> Stack {
        Stack { layers: self.layers.clone(), also: self.also.clone() }
    }

    /// Returns the variables of every command in the environment: the recipe's over constants.
    pub fn run_variables(&self) -> BTreeMap<String, String> {
        let constants = [
            ("PATH", "/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("VIRTUAL_ENV", "/opt/env"),
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
            ("TZ", "UTC"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            // Every repository in an environment belongs to the environment's root, whoever that is outside.
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "safe.directory"),
            ("GIT_CONFIG_VALUE_0", "*"),
        ];
        let mut variables: BTreeMap<String, String> =
            constants.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        variables.extend(self.variables.clone());
        variables
    }

    /// Returns the task's name.
    pub fn task_name(&self) -> TaskName {
        let (project, id) = self.task.split_once('/').unwrap_or(("", &self.task));
        TaskName::new(project, id)
    }

    /// Returns the name of the root, such as `verl/3567@cpu`.
    pub fn name(&self) -> String {
        root_name(&self.task, &self.variant)
    }

    /// Reads the root of a task variant.
    pub fn read(store: &Store, task: &str, variant: &str) -> infradev_store::Result<Option<Self>> {
        store.root(RootKind::Task, &root_name(task, variant))
    }

    /// Reads the roots of tasks that can be read.
    pub fn readable(store: &Store) -> Vec<Self> {
        let names = store.root_names(RootKind::Task).unwrap_or_default();
        names.iter().filter_map(|name| store.root(RootKind::Task, name).ok()?).collect()
    }

    /// Reads all roots of tasks.
    pub fn all(store: &Store) -> infradev_store::Result<Vec<Self>> {
        Self::all_of(store, |_, _| true)
    }

    /// Reads the roots of those tasks and variants for which `wanted` holds; others may be unreadable.
    pub fn all_of(store: &Store, wanted: impl Fn(&str, &str) -> bool) -> infradev_store::Result<Vec<Self>> {
        let mut all = vec![];
        for name in store.root_names(RootKind::Task)? {
            // The inverse of [`root_name`]: no variant holds an `@`.
            let (task, variant) = name.rsplit_once('@').unwrap_or((&name, ""));
            if wanted(task, variant) {
                all.extend(store.root(RootKind::Task, &name)?);
            }
        }
        Ok(all)
    }
}

/// Returns the name of the root of a task variant.
pub fn root_name(task: &str, variant: &str) -> String {
    format!("{task}@{variant}")
}
