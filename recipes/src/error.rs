//! What is wrong with a document, and exactly where.

use std::fmt;

/// A position in a document of a catalog. Lines and columns start at one; columns count characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file as the user knows it.
    pub file: String,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// The key path, such as `variant.cpu.base`; empty for the document itself.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        Ok(())
    }
}

/// One fault of one document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: expected {expected}, found {found}")]
pub struct RecipeError {
    /// Where it is.
    pub place: Place,
    /// What would be right there.
    pub expected: String,
    /// What stands there.
    pub found: String,
    /// What to do about it, where that is known.
    pub hint: Option<String>,
}

impl RecipeError {
    /// Returns the next step for the user, where there is one to suggest.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// Every fault of one document, in the order of the text; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipeErrors(Vec<RecipeError>);

impl RecipeErrors {
    /// Sorts `errors` by place; returns nothing when there are none.
    pub(crate) fn of(mut errors: Vec<RecipeError>) -> Option<Self> {
        errors.sort_by(|a, b| a.place.cmp(&b.place));
        (!errors.is_empty()).then_some(Self(errors))
    }

    /// Iterates over the faults.
    pub fn iter(&self) -> impl Iterator<Item = &RecipeError> {
        self.0.iter()
    }
}

impl fmt::Display for RecipeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RecipeErrors {}
