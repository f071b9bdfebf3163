//! `env rm`.

use std::collections::BTreeSet;

use super::mount::{detach, end_forgotten};
use crate::env::state::Environment;
use crate::error::CommandResult;
use crate::session::Session;

pub(super) fn remove(session: &Session, names: &[String], dry_run: bool) -> CommandResult<u8> {
    let store = session.store()?;
    // All are looked up first: a mistyped name removes nothing.
    let names: BTreeSet<&String> = names.iter().collect();
    let environments =
        names.iter().map(|name| Environment::open_to_remove(store, name)).collect::<Result<Vec<_>, _>>()?;
    let mut deleted = vec![];
    for environment in environments {
        let name = environment.name.clone();
        if dry_run {
            session.ui.note(format!(
                "would delete `{name}` and what was written in {}",
                environment.upper().display()
            ));
            continue;
        }
        detach(&environment)?;
        let _lock = environment.lock()?;
        end_forgotten(&environment)?;
        environment.remove()?;
        session.ui.note(format!("deleted `{name}`"));
        deleted.push(name);
    }
    session.ui.data(&serde_json::json!({ "deleted": deleted }), String::new);
    Ok(0)
}
