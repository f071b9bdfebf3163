//! `env ls`.

use serde::Serialize;

use crate::env::holder::Holder;
use crate::env::state::Environment;
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::table;

#[derive(Serialize)]
struct Row {
    name: String,
    task: String,
    state: &'static str,
    back_end: &'static str,
    path: String,
}

#[derive(Serialize)]
struct Rows {
    environments: Vec<Row>,
}

pub(super) fn list(session: &Session) -> CommandResult<u8> {
    let store = session.store_for_reading()?;
    let mut rows = vec![];
    for environment in Environment::all(store)? {
        let holder = Holder::of(&environment);
        let state = match (environment.is_mounted(), &holder, &environment.state.discarded_with) {
            (_, _, Some(lease)) if store.is_lease_alive(lease)? => "running",
            // The next command that cleans up removes it.
            (_, _, Some(_)) => "killed",
            (true, _, _) => "mounted",
            (_, Some(_), _) => "held",
            _ => "unmounted",
        };
        let path = holder.map_or_else(|| environment.merged(), |holder| holder.root());
        rows.push(Row {
            name: environment.name,
            task: environment.state.task,
            state,
            back_end: environment.state.back_end.word(),
            path: path.display().to_string(),
        });
    }
    let rows = Rows { environments: rows };
    session.ui.data(&rows, || {
        let cells = |row: &Row| -> Vec<String> {
            [&row.name, &row.task, row.state, row.back_end, &row.path]
                .map(|cell: &str| cell.to_owned())
                .to_vec()
        };
        let lines: Vec<Vec<String>> = rows.environments.iter().map(cells).collect();
        table(&["NAME", "TASK", "STATE", "BACK END", "PATH"], &[false; 5], &lines)
    });
    Ok(0)
}
