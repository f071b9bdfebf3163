//! `env diff`: what was written in an environment.

use infradev_layers::{Kind, Owners, ScanOptions, Tree, scan};
use serde::Serialize;

use crate::env::image::known_tree;
use crate::env::plan::Mapping;
use crate::env::state::Environment;
use crate::error::{CommandError, CommandResult, Kind as Failure};
use crate::session::Session;

#[derive(Serialize)]
struct Change {
    change: &'static str,
    path: String,
    kind: &'static str,
}

#[derive(Serialize)]
struct Changes {
    changes: Vec<Change>,
}

pub(super) fn diff(session: &Session, name: &str) -> CommandResult<u8> {
    let store = session.store()?;
    let environment = Environment::open(store, name)?;
    let below = known_tree(store, &environment.state.stack())?;
    let lease = store.lease(&format!("diff {name}"))?;
    let ingest = store.ingest(&lease)?;
    let options =
        ScanOptions { owners: owners(environment.state.mapping), latest: i64::MAX, upper_of: Some(&below) };
    let scanned = scan(&environment.upper(), options, &ingest)
        .map_err(|error| CommandError::caused(Failure::Infrastructure, &error))?;
    for path in &scanned.dropped {
        session.ui.note(format!("{path} is a device, FIFO or socket, which no layer can hold"));
    }
    let changes = Changes { changes: changes(&scanned.tree, &below) };
    session.ui.data(&changes, || {
        changes.changes.iter().map(|change| format!("{} {}\n", change.change, change.path)).collect()
    });
    Ok(0)
}

/// How the owners in an upper become those of a layer.
pub(crate) fn owners(mapping: Mapping) -> Owners {
    match mapping {
        Mapping::Host => Owners::Keep,
        Mapping::Range(first) => Owners::Shifted(first),
        Mapping::Caller { .. } => Owners::Root,
    }
}

fn changes(upper: &Tree, below: &Tree) -> Vec<Change> {
    let change = |entry: &infradev_layers::Entry| {
        let change = match (&entry.kind, below.get(&entry.path)) {
            (Kind::ImpliedDirectory, _) => return None,
            (Kind::Whiteout, _) => "D",
            (_, None) => "A",
            (kind, Some(before)) if kind == before => return None,
            (_, Some(_)) => "M",
        };
        Some(Change { change, path: entry.path.to_string(), kind: entry.kind.word() })
    };
    upper.entries().iter().filter_map(change).collect()
}
