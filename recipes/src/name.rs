//! Names that identify things: distributions and tasks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a Python distribution in its normalised form (PEP 503): `Foo.Bar_x` is `foo-bar-x`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DistributionName(String);

/// A string that cannot name a distribution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a distribution name: expected letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
)]
pub struct DistributionNameError(pub String);

impl DistributionName {
    /// Returns the normalised text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the form used in file names, such as `foo_bar_x` in `foo_bar_x-1.0.dist-info`.
    pub fn file_form(&self) -> String {
        self.0.replace('-', "_")
    }
}

impl FromStr for DistributionName {
    type Err = DistributionNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let (first, last) = (text.chars().next(), text.chars().next_back());
        if !end(first) || !end(last) || !text.chars().all(inner) {
            return Err(DistributionNameError(text.to_owned()));
        }
        let words = text.split(['-', '_', '.']).filter(|word| !word.is_empty());
        Ok(Self(words.collect::<Vec<_>>().join("-").to_ascii_lowercase()))
    }
}

impl TryFrom<String> for DistributionName {
    type Error = DistributionNameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DistributionName> for String {
    fn from(name: DistributionName) -> Self {
        name.0
    }
}

impl fmt::Display for DistributionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A task by the folders it lives in, written `project/id`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct TaskName {
    /// The folder of the project in the catalog.
    pub project: String,
    /// The folder of the task in the project's `tasks`.
    pub id: String,
}

impl TaskName {
    /// Names the task `id` of `project`.
    pub fn new(project: &str, id: &str) -> Self {
        Self { project: project.to_owned(), id: id.to_owned() }
    }
}

impl From<TaskName> for String {
    fn from(name: TaskName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.project, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_names_are_normalised() {
        let name = |text: &str| text.parse::<DistributionName>().map(String::from);
        assert_eq!(name("Foo._Bar--x"), Ok("foo-bar-x".into()));
        for bad in ["", "-a", "a-", "a b", "é"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
