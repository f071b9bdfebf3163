//! `env diff`: what was written in an environment.

use infradev_layers::{Kind, Tree};
use infradev_store::LayerId;
use serde::Serialize;

use crate::env::capture::capture;
use crate::env::image::known_tree;
use crate::env::state::{Environment, EnvironmentState};
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
    /// The id of what was written as a layer.
    layer: LayerId,
    changes: Vec<Change>,
}

pub(super) fn diff(session: &Session, name: &str) -> CommandResult<u8> {
    let store = session.store()?;
    let environment = Environment::open(store, name)?;
    let below = known_tree(store, &environment.state.stack())?;
    let lease = store.lease(&format!("diff {name}"))?;
    let ingest = store.ingest(&lease)?;
    let EnvironmentState { back_end, mapping, .. } = environment.state;
    let scanned = capture(&environment.upper(), back_end, mapping, &below, &ingest)
        .map_err(|error| CommandError::caused(Failure::Infrastructure, &error))?;
    for path in &scanned.dropped {
        session.ui.note(format!("{path} is a device, FIFO or socket, which no layer can hold"));
    }
    let layer = LayerId::of(&scanned.tree.encode());
    let changes = Changes { layer, changes: changes(&scanned.tree, &below) };
    session.ui.data(&changes, || {
        changes.changes.iter().map(|change| format!("{} {}\n", change.change, change.path)).collect()
    });
    Ok(0)
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
