//! `layer diff`.

use infradev_layers::{Change, Difference, diff};
use infradev_store::LayerId;
use serde::Serialize;

use super::find;
use crate::error::CommandResult;
use crate::session::Session;

#[derive(Serialize)]
struct Compared {
    before: LayerId,
    after: LayerId,
    differences: Vec<ComparedEntry>,
}

#[derive(Serialize)]
struct ComparedEntry {
    change: &'static str,
    path: String,
    aspects: Vec<&'static str>,
}

pub(super) fn compare(session: &Session, before: &str, after: &str) -> CommandResult<u8> {
    let store = session.store_for_reading()?;
    let ((before, old), (after, new)) = (find(store, before)?, find(store, after)?);
    let entry = |Difference { path, change }: Difference| {
        let (change, aspects) = match change {
            Change::Added => ("A", vec![]),
            Change::Removed => ("D", vec![]),
            Change::Changed(aspects) => ("M", aspects),
        };
        ComparedEntry { change, path: path.to_string(), aspects }
    };
    let differences = diff(&old, &new).into_iter().map(entry).collect();
    let compared = Compared { before, after, differences };
    session.ui.data(&compared, || {
        let line = |entry: &ComparedEntry| match entry.aspects.as_slice() {
            [] => format!("{} {}\n", entry.change, entry.path),
            aspects => format!("{} {}  ({})\n", entry.change, entry.path, aspects.join(", ")),
        };
        compared.differences.iter().map(line).collect()
    });
    Ok(0)
}
