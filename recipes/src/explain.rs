//! Why a step was not found: the fields in which two records differ, in words.

use std::collections::BTreeSet;
use std::fmt;

use crate::record::{FieldValue, StepRecord};

/// A field in which two records differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The field; for a table, the entry too, such as `env.CXXFLAGS`.
    pub field: String,
    /// How it differs.
    pub change: Change,
}

/// How a field differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Only the new record has it.
    Added(String),
    /// Only the old record has it.
    Removed(String),
    /// Both have it, with these values.
    Replaced {
        /// Before.
        old: String,
        /// After.
        new: String,
    },
    /// A list has the same words in another order.
    Reordered,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = &self.field;
        match &self.change {
            Change::Added(new) => write!(f, "{field}: `{new}` is new"),
            Change::Removed(old) => write!(f, "{field}: `{old}` is gone"),
            Change::Replaced { old, new } => write!(f, "{field}: `{old}` became `{new}`"),
            Change::Reordered => write!(f, "{field}: the same, in another order"),
        }
    }
}

/// Returns where `new` differs from `old`, by field; nothing means that their keys are equal.
pub fn differences(old: &StepRecord, new: &StepRecord) -> Vec<Difference> {
    let mut found = Vec::new();
    if old.kind() != new.kind() {
        found.extend(replaced("kind", old.kind(), new.kind()));
    }
    let names: BTreeSet<&String> = old.fields().keys().chain(new.fields().keys()).collect();
    for name in names {
        match (old.fields().get(name), new.fields().get(name)) {
            (Some(FieldValue::List(old)), Some(FieldValue::List(new))) => list(&mut found, name, old, new),
            (Some(FieldValue::Table(old)), Some(FieldValue::Table(new))) => {
                let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
                for key in keys {
                    found.extend(value(
                        &format!("{name}.{key}"),
                        old.get(key).cloned(),
                        new.get(key).cloned(),
                    ));
                }
            }
            (old, new) => found.extend(value(name, old.map(words), new.map(words))),
        }
    }
    found
}

fn list(found: &mut Vec<Difference>, name: &str, old: &[String], new: &[String]) {
    if old == new {
        return;
    }
    // A command is read as a whole; elsewhere the entries that came and went tell more.
    if name == "command" {
        found.extend(replaced(name, &old.join(" "), &new.join(" ")));
        return;
    }
    let count = found.len();
    let missing_in = |words: &[String], word: &String| !words.contains(word);
    let entry = |change| Difference { field: name.to_owned(), change };
    found.extend(
        old.iter().filter(|word| missing_in(new, word)).map(|word| entry(Change::Removed(word.clone()))),
    );
    found.extend(
        new.iter().filter(|word| missing_in(old, word)).map(|word| entry(Change::Added(word.clone()))),
    );
    if found.len() == count {
        found.push(entry(Change::Reordered));
    }
}

fn value(field: &str, old: Option<String>, new: Option<String>) -> Option<Difference> {
    let change = match (old, new) {
        (Some(old), Some(new)) => return replaced(field, &old, &new),
        (Some(old), None) => Change::Removed(old),
        (None, Some(new)) => Change::Added(new),
        (None, None) => return None,
    };
    Some(Difference { field: field.to_owned(), change })
}

fn replaced(field: &str, old: &str, new: &str) -> Option<Difference> {
    let change = Change::Replaced { old: old.to_owned(), new: new.to_owned() };
    (old != new).then(|| Difference { field: field.to_owned(), change })
}

fn words(value: &FieldValue) -> String {
    match value {
        FieldValue::Text(text) => text.clone(),
        FieldValue::List(values) => values.join(" "),
        FieldValue::Table(values) => {
            values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn differing_fields_are_told_in_words() {
        let env = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
            entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let record = |command: &[&str], needs: &[&str], entries: &[(&str, &str)]| {
            StepRecord::new("build", 1)
                .list("command", command)
                .list("needs", needs)
                .table("env", &env(entries))
        };
        let old = record(&["make"], &["a", "b"], &[("A", "1"), ("B", "2")]);
        let new = record(&["make", "-j"], &["b", "c"], &[("A", "3"), ("C", "4")]).text("network", true);
        let told: Vec<String> = differences(&old, &new).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "command: `make` became `make -j`",
                "env.A: `1` became `3`",
                "env.B: `2` is gone",
                "env.C: `4` is new",
                "needs: `a` is gone",
                "needs: `c` is new",
                "network: `true` is new",
            ]
        );
        assert!(differences(&old, &old).is_empty());
        let reordered = record(&["make"], &["b", "a"], &[("A", "1"), ("B", "2")]);
        assert_eq!(differences(&old, &reordered)[0].to_string(), "needs: the same, in another order");
    }
}
