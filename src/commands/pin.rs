//! `infradev pin` and `infradev unpin`.

use infradev_store::{LayerId, RootKind, Stack, Store};

use super::env::{Which, find_built};
use crate::error::{CommandError, CommandResult};
use crate::session::Session;

pub(crate) fn pin(session: &Session, task: &str, name: Option<&str>) -> CommandResult<u8> {
    let store = session.store()?;
    let built = find_built(session, store, task, &Which { variant: None, require_fresh: false })?;
    let lease = store.lease(&format!("pin {task}"))?;
    if let Some(layer) = lease.hold(&built.layers)?.first() {
        return Err(infradev_store::Error::NoLayer(*layer).into());
    }
    let name = name.map_or_else(|| built.name(), str::to_owned);
    ensure_free(store, &name, &built.layers)?;
    store.set_root(RootKind::Pin, &name, &built)?;
    session.ui.note(format!("pinned {} as `{name}`", built.name()));
    session.ui.data(&serde_json::json!({ "pinned": name }), String::new);
    Ok(0)
}

/// Refuses the name of a pin that keeps other layers: replacing it would give them up.
pub(crate) fn ensure_free(store: &Store, name: &str, layers: &[LayerId]) -> CommandResult {
    match store.root::<Stack>(RootKind::Pin, name)? {
        Some(pinned) if pinned.layers != layers => {
            Err(CommandError::usage(format!("the pin `{name}` keeps something else"))
                .hint(format!("choose another name, or give that up with `infradev unpin {name}`")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn unpin(session: &Session, name: &str) -> CommandResult<u8> {
    let store = session.store()?;
    if !store.remove_root(RootKind::Pin, name)? {
        let pins = store.root_names(RootKind::Pin)?;
        let error = CommandError::usage(format!("there is no pin `{name}`"));
        return Err(if pins.is_empty() {
            error
        } else {
            error.hint(format!("there are {}", pins.join(", ")))
        });
    }
    session.ui.note(format!("removed the pin `{name}`"));
    session.ui.data(&serde_json::json!({ "unpinned": name }), String::new);
    Ok(0)
}
