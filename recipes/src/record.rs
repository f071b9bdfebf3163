//! What may change the output of a step, as named fields that hash to its key and stay readable.

use std::collections::BTreeMap;

use infradev_store::StepKey;
use serde::{Deserialize, Serialize};

/// Separates these hashes from all others. A new encoding takes a new text, so that no key of the old
/// one can be met again.
const CONTEXT: &str = "infradev step key v1";

/// The field of steps that run commands: the version of the sandbox's policy, or [`UNCONFINED`].
pub(crate) const SANDBOX: &str = "sandbox";
/// What that field says of a command that ran without a sandbox.
const UNCONFINED: &str = "none";

/// What may change the output of a step; stored with the action, so that `why` can compare two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    kind: String,
    fields: BTreeMap<String, FieldValue>,
}

/// The value of a field of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FieldValue {
    /// One word: a text, number or id.
    Text(String),
    /// Words whose order matters.
    List(Vec<String>),
    /// Words by name.
    Table(BTreeMap<String, String>),
}

impl StepRecord {
    /// Starts the record of a `kind` of step in `version` of its format.
    ///
    /// The version is raised when the meaning of the step changes while its fields do not.
    pub(crate) fn new(kind: &str, version: u32) -> Self {
        let record = Self { kind: kind.to_owned(), fields: BTreeMap::new() };
        record.text("format", version)
    }

    pub(crate) fn text(self, name: &str, value: impl ToString) -> Self {
        self.with(name, FieldValue::Text(value.to_string()))
    }

    pub(crate) fn list(self, name: &str, values: impl IntoIterator<Item = impl ToString>) -> Self {
        self.with(name, FieldValue::List(values.into_iter().map(|value| value.to_string()).collect()))
    }

    pub(crate) fn table(self, name: &str, values: &BTreeMap<String, String>) -> Self {
        self.with(name, FieldValue::Table(values.clone()))
    }

    fn with(mut self, name: &str, value: FieldValue) -> Self {
        self.fields.insert(name.to_owned(), value);
        self
    }

    /// Returns the kind of step, such as `wheel`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the fields by name.
    pub fn fields(&self) -> &BTreeMap<String, FieldValue> {
        &self.fields
    }

    /// Returns the record of the same step when it is run without a sandbox, or `None` if it runs no command.
    ///
    /// Its key is another: what saw the whole machine is never taken for what saw its declared inputs alone.
    pub fn unconfined(&self) -> Option<Self> {
        self.fields.contains_key(SANDBOX).then(|| self.clone().text(SANDBOX, UNCONFINED))
    }

    /// Whether this is the record of a step that was run without a sandbox.
    pub fn is_unconfined(&self) -> bool {
        self.fields.get(SANDBOX) == Some(&FieldValue::Text(UNCONFINED.to_owned()))
    }

    /// Hashes the record.
    ///
    /// Every string is preceded by its length in 8 bytes, little-endian; every collection by its
    /// count; every value by a byte for its shape. So no two records share an encoding.
    pub fn key(&self) -> StepKey {
        let mut encoder = Encoder(blake3::Hasher::new_derive_key(CONTEXT));
        encoder.string(&self.kind);
        encoder.count(self.fields.len());
        for (name, value) in &self.fields {
            encoder.string(name);
            encoder.value(value);
        }
        encoder.0.finalize().into()
    }
}

struct Encoder(blake3::Hasher);

impl Encoder {
    fn count(&mut self, count: usize) {
        self.0.update(&(count as u64).to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        self.count(text.len());
        self.0.update(text.as_bytes());
    }

    fn value(&mut self, value: &FieldValue) {
        match value {
            FieldValue::Text(text) => {
                self.0.update(&[0]);
                self.string(text);
            }
            FieldValue::List(values) => {
                self.0.update(&[1]);
                self.count(values.len());
                values.iter().for_each(|value| self.string(value));
            }
            FieldValue::Table(values) => {
                self.0.update(&[2]);
                self.count(values.len());
                for (name, value) in values {
                    self.string(name);
                    self.string(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> StepRecord {
        let env = BTreeMap::from([("CC".to_owned(), "gcc".to_owned())]);
        StepRecord::new("build", 1).list("command", ["make", "-j"]).table("env", &env).text("network", false)
    }

    /// A change of this value orphans every action that anybody has cached.
    #[test]
    fn the_golden_record_keeps_its_key() {
        let mut bytes = Vec::new();
        let mut string = |text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.bytes());
        };
        // What `key` must hash, spelled out; the markers `#n` and `!n` are counts and shapes.
        for word in [
            "build", "#4", "command", "!1", "#2", "make", "-j", "env", "!2", "#1", "CC", "gcc", "format",
            "!0", "1", "network", "!0", "false",
        ] {
            string(word);
        }
        let bytes = spelled_out(&bytes);
        let expected = StepKey::from(blake3::Hasher::new_derive_key(CONTEXT).update(&bytes).finalize());
        assert_eq!(record().key(), expected);
        assert_eq!(
            record().key().to_hex(),
            "db49473b9ccb4b3e1c4e7ef3a14e423784faf721073da141baaffa747db73428"
        );
    }

    /// Replaces the marker strings by what they stand for.
    fn spelled_out(mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
            let (word, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
            match word {
                [b'#', digit] => out.extend(u64::from(digit - b'0').to_le_bytes()),
                [b'!', digit] => out.push(digit - b'0'),
                word => {
                    out.extend(length);
                    out.extend(word);
                }
            }
            bytes = rest;
        }
        out
    }

    #[test]
    fn every_difference_changes_the_key() {
        let variants = [
            record(),
            record().list("command", ["make-j"]),
            record().list("command", ["make", "-j", ""]),
            record().text("command", "make"),
            record().text("network", true),
            record().text("new", ""),
            StepRecord::new("build", 2).list("command", ["make", "-j"]),
            StepRecord::new("wheel", 1),
        ];
        let keys: std::collections::BTreeSet<_> = variants.iter().map(StepRecord::key).collect();
        assert_eq!(keys.len(), variants.len());
    }

    #[test]
    fn a_step_without_a_sandbox_has_a_key_of_its_own() {
        assert_eq!(record().unconfined(), None);
        let confined = record().text(SANDBOX, 1);
        let unconfined = confined.unconfined().expect("it runs a command");
        assert!(unconfined.is_unconfined() && !confined.is_unconfined() && !record().is_unconfined());
        assert_ne!(confined.key(), unconfined.key());
    }

    #[test]
    fn a_record_survives_storage() {
        let text = toml::to_string(&record()).expect("a record is a TOML document");
        assert_eq!(toml::from_str::<StepRecord>(&text), Ok(record()));
    }
}
