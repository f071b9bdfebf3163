//! `infradev layer`: what is in the store.

mod diff;
mod import;

use clap::Subcommand;
use infradev_layers::{Kind, Tree};
use infradev_store::{LayerId, Store};
use serde::Serialize;

use crate::error::{CommandError, CommandResult};
use crate::session::Session;
use crate::ui::{bytes, table};

/// What to do with layers.
#[derive(Debug, Subcommand)]
pub(crate) enum LayerCommand {
    /// List the layers and what made them
    Ls,
    /// Show the entries of a layer
    Show {
        /// The id, or the beginning of one
        layer: String,
    },
    /// Compare two layers entry by entry, and say in what their files differ
    Diff {
        /// The id of the first, or the beginning of it
        before: String,
        /// The id of the second, or the beginning of it
        after: String,
    },
    /// Read a directory, or a layer archive of a container image, into the store
    Import(import::ImportArgs),
}

#[derive(Serialize)]
struct Row {
    layer: LayerId,
    kind: String,
    label: String,
    objects: usize,
    bytes: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct Rows {
    layers: Vec<Row>,
}

pub(crate) fn run(session: &Session, command: LayerCommand) -> CommandResult<u8> {
    match command {
        LayerCommand::Ls => list(session),
        LayerCommand::Show { layer } => show(session, &layer),
        LayerCommand::Import(arguments) => import::import(session, &arguments),
        LayerCommand::Diff { before, after } => diff::compare(session, &before, &after),
    }
}

fn list(session: &Session) -> CommandResult<u8> {
    let store = session.store_for_reading()?;
    let mut rows = vec![];
    for record in store.steps()? {
        for layer in &record.layers {
            let references = store.references(layer)?;
            rows.push(Row {
                layer: *layer,
                kind: record.kind.clone(),
                label: record.label.clone(),
                objects: references.len(),
                bytes: references.iter().map(|reference| reference.size).sum(),
                seconds: record.seconds,
            });
        }
    }
    rows.sort_by(|left, right| right.bytes.cmp(&left.bytes).then_with(|| left.label.cmp(&right.label)));
    let rows = Rows { layers: rows };
    session.ui.data(&rows, || {
        let cells = |row: &Row| {
            vec![
                row.layer.short(),
                row.label.clone(),
                row.objects.to_string(),
                bytes(row.bytes),
                format!("{:.1} s", row.seconds),
            ]
        };
        let lines: Vec<Vec<String>> = rows.layers.iter().map(cells).collect();
        table(&["LAYER", "MADE BY", "OBJECTS", "SIZE", "BUILT IN"], &[false, false, true, true, true], &lines)
    });
    Ok(0)
}

#[derive(Serialize)]
struct Shown {
    layer: LayerId,
    entries: Vec<ShownEntry>,
}

#[derive(Serialize)]
struct ShownEntry {
    path: String,
    kind: &'static str,
    mode: Option<String>,
    size: Option<u64>,
    target: Option<String>,
}

/// Finds the layer whose id begins with `prefix`, and reads it.
fn find(store: &Store, prefix: &str) -> CommandResult<(LayerId, Tree)> {
    let mut found: Vec<LayerId> =
        store.layers()?.into_iter().filter(|layer| layer.to_hex().starts_with(prefix)).collect();
    let layer = match (found.pop(), found.pop()) {
        (Some(layer), None) => layer,
        (None, _) => {
            return Err(CommandError::usage(format!("no layer begins with `{prefix}`"))
                .hint("`infradev layer ls` lists them"));
        }
        (Some(_), Some(_)) => {
            return Err(CommandError::usage(format!("several layers begin with `{prefix}`")));
        }
    };
    let encoding = store.layer(&layer)?;
    let tree =
        Tree::decode(&encoding).map_err(|source| crate::env::image::StackError::Layer { layer, source })?;
    Ok((layer, tree))
}

fn show(session: &Session, prefix: &str) -> CommandResult<u8> {
    let (layer, tree) = find(session.store_for_reading()?, prefix)?;
    let entries: Vec<ShownEntry> = tree.entries().iter().map(shown).collect();
    let shown = Shown { layer, entries };
    session.ui.data(&shown, || {
        let line = |entry: &ShownEntry| {
            let size = entry.size.map(|size| size.to_string()).unwrap_or_default();
            let target = entry.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
            format!(
                "{:9} {:>4} {size:>12} {}{target}\n",
                entry.kind,
                entry.mode.as_deref().unwrap_or("-"),
                entry.path
            )
        };
        shown.entries.iter().map(line).collect()
    });
    Ok(0)
}

fn shown(entry: &infradev_layers::Entry) -> ShownEntry {
    let (size, target) = match &entry.kind {
        Kind::File { content, .. } => (Some(content.size()), None),
        Kind::Symlink { target, .. } => (None, Some(String::from_utf8_lossy(target).into_owned())),
        Kind::Hardlink { first } => (None, Some(first.to_string())),
        _ => (None, None),
    };
    let mode = entry.kind.metadata().map(|metadata| format!("{:o}", metadata.mode));
    ShownEntry { path: entry.path.to_string(), kind: entry.kind.word(), mode, size, target }
}
