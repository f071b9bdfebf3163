//! Action records: which step made which layers, and at what cost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::{LayerId, StepKey, Store, read_json};

/// What a finished step left behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionRecord {
    /// The key that everything which may change the output went into.
    pub key: StepKey,
    /// The kind of step, such as `wheel`.
    pub kind: String,
    /// What it is for people, such as `torch 2.8.0`.
    pub label: String,
    /// What the key was computed from, for explanations; the recipes crate knows its form.
    pub record: serde_json::Value,
    /// The layers that it made, in stack order.
    pub layers: Vec<LayerId>,
    /// Facts about the output that later steps need, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, String>,
    /// How long it took, in seconds of wall time, downloads included.
    pub seconds: f64,
    /// Bytes downloaded for it.
    pub downloaded: u64,
    /// When it finished, in seconds since 1970.
    pub built: i64,
    /// Layers that the same key gave before: not empty means that the step is not deterministic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nondeterministic: Vec<LayerId>,
}

impl Store {
    /// Returns the record of `key`, if all its layers are in the store, or in the shared store that has the record.
    pub fn step(&self, key: &StepKey) -> Result<Option<ActionRecord>> {
        match self.index()?.step(key)? {
            None => Ok(self.shared_step(key)),
            found => Ok(found),
        }
    }

    /// Lists the keys of all records, readable or not.
    pub fn record_keys(&self) -> Result<Vec<StepKey>> {
        let names = crate::lease::names(&self.layout().directory("steps"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Reads the record of `key` from its file; `None` if there is none.
    pub fn record(&self, key: &StepKey) -> Result<Option<ActionRecord>> {
        read_json(&self.layout().step(key))
    }

    /// Returns every record, those of shared stores too; of each store newest first.
    pub fn steps(&self) -> Result<Vec<ActionRecord>> {
        self.select_steps(None)
    }

    /// Returns the records of one kind and label, those of shared stores too; of each store newest first.
    pub fn steps_labelled(&self, kind: &str, label: &str) -> Result<Vec<ActionRecord>> {
        self.select_steps(Some((kind, label)))
    }

    fn select_steps(&self, only: Option<(&str, &str)>) -> Result<Vec<ActionRecord>> {
        let mut found = vec![];
        for store in self.everywhere() {
            found.extend(store.index()?.steps(only)?);
        }
        Ok(found)
    }
}
