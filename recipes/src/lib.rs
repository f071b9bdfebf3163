//! Recipes: text to plan to step keys.
//!
//! Everything here is pure, except [`Catalog`], which reads directories and writes nothing. The
//! grammar is described for its users in `docs/recipe-reference.md`.

#![forbid(unsafe_code)]

mod catalog;
mod error;
mod grading;
mod name;
mod nearest;
mod order;
mod parse;
mod pattern;
mod recipe;
mod select;
mod target;
#[cfg(test)]
mod tests;
mod timestamp;

pub use catalog::{Catalog, CatalogError, Grading};
pub use error::{Place, RecipeError, RecipeErrors};
pub use grading::{Edit, Expectation, Limits, Mutant, Probe, ProbeKind, Tests};
pub use name::{DistributionName, DistributionNameError, TaskName};
pub use parse::{ReadSource, SCHEMA, parse_mutant, parse_probe, parse_project, parse_task};
pub use pattern::{Pattern, PatternError};
pub use recipe::{
    Base, BuildStep, GeneratedFile, Install, Origin, Project, Python, Requirements, Source, Task,
    TaskPython, Variant,
};
pub use select::{SelectError, select};
pub use target::{Architecture, PythonVersion, PythonVersionError, Target};
pub use timestamp::{Timestamp, TimestampError};
