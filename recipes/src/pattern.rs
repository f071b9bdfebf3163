//! Globs over paths inside an environment or a source tree.

use std::fmt;

use globset::{GlobBuilder, GlobMatcher};
use serde::{Serialize, Serializer};

/// A glob: `*` and `?` stay within one path component, `**` crosses them, `{a,b}` is a choice.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    matcher: GlobMatcher,
}

/// A string that is no glob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}` is not a glob: {reason}")]
pub struct PatternError {
    /// What was written.
    pub pattern: String,
    /// Why it cannot be one.
    pub reason: String,
}

impl Pattern {
    /// Compiles `text`.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let glob = GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build();
        let glob = glob
            .map_err(|error| PatternError { pattern: text.to_owned(), reason: error.kind().to_string() })?;
        Ok(Self { text: text.to_owned(), matcher: glob.compile_matcher() })
    }

    /// Says whether `path`, written with `/`, is meant.
    pub fn matches(&self, path: &str) -> bool {
        self.matcher.is_match(path)
    }

    /// Returns the glob as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_in_its_component() {
        let cases = [
            ("a/*.so", "a/b.so", true),
            ("a/*.so", "a/b/c.so", false),
            ("a/**", "a/b/c.so", true),
            ("**/*.py", "x.py", true),
            ("{a,b}/x", "b/x", true),
        ];
        for (pattern, path, expected) in cases {
            let pattern = Pattern::new(pattern).expect("a valid glob");
            assert_eq!(pattern.matches(path), expected, "{pattern} on {path}");
        }
        assert!(Pattern::new("a[").is_err());
    }
}
