//! Recipes: text to plan to step keys.
//!
//! Everything here is pure, except [`Catalog`], which reads directories and writes nothing. The
//! grammar is described for its users in `docs/recipe-reference.md`.

#![forbid(unsafe_code)]

mod base_lock;
mod catalog;
mod error;
mod explain;
mod grading;
mod image_lock;
mod installed;
mod key;
mod locks;
mod marker;
mod name;
mod nearest;
mod order;
mod parse;
mod pattern;
mod plan;
mod pylock;
mod recipe;
mod record;
mod requirement;
mod resolve;
mod runner;
mod select;
mod target;
#[cfg(test)]
mod tests;
mod timestamp;
mod toml_text;
mod wheel_tag;

pub use base_lock::{BaseLock, DebianPackage};
pub use catalog::{Catalog, CatalogError, Grading};
pub use error::{Place, RecipeError, RecipeErrors};
pub use explain::{Change, Difference, differences};
pub use grading::{Edit, Expectation, Limits, Mutant, Probe, ProbeKind, Tests};
pub use image_lock::{ImageLayer, ImageLock};
pub use key::{KeyContext, KeyError, PREFIX, Progress, StepVersions};
pub use locks::Locks;
pub use name::{DistributionName, DistributionNameError, TaskName};
pub use parse::{ReadSource, SCHEMA, parse_mutant, parse_probe, parse_project, parse_task};
pub use pattern::{Pattern, PatternError};
pub use plan::{Action, Node, NodeIndex, Plan, PlanError, PlanInputs};
pub use pylock::{
    Archive, Artifact, LockOrigin, MetadataError, Package, PruneError, Pruning, Pylock, Resolution,
    dependencies_in_metadata,
};
pub use recipe::{
    Base, BuildStep, GeneratedFile, Install, Origin, Project, Python, ROOTFS, Requirements, Source, Task,
    TaskPython, Variant,
};
pub use record::{FieldValue, StepRecord};
pub use resolve::{Recipe, ResolveError, lock_file, variants_of};
pub use runner::{ReadyStep, StepRunner};
pub use select::{SelectError, select};
pub use target::{Architecture, PythonVersion, PythonVersionError, Target};
pub use timestamp::{Timestamp, TimestampError};
pub use wheel_tag::{WheelName, WheelNameError, WheelRank, best_wheel};
