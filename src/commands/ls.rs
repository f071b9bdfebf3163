//! `infradev ls`.

use clap::Args;
use infradev_recipes::{Origin, variants_of};
use serde::Serialize;

use crate::build::root::{BuiltTask, root_name};
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::table;

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Tasks, projects, globs, or `all`
    #[arg(default_value = "all")]
    selectors: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    task: String,
    variant: String,
    built: bool,
    source: String,
    title: String,
}

#[derive(Serialize)]
struct Rows {
    tasks: Vec<Row>,
}

pub(crate) fn run(session: &Session, arguments: &LsArgs) -> CommandResult<u8> {
    let catalog = session.catalog()?;
    let built: Vec<String> = match session.store_if_there()? {
        Some(store) => BuiltTask::all(store)?.iter().map(BuiltTask::name).collect(),
        None => vec![],
    };
    let mut rows = vec![];
    for name in session.tasks(&arguments.selectors)? {
        let project = catalog.project(&name.project)?;
        let task = catalog.task(&name, &project)?;
        let source = match &task.source.origin {
            Origin::Commit(commit) => commit[..12].to_owned(),
            Origin::Sdist { .. } => format!("sdist {}", task.source.version),
        };
        for variant in variants_of(&project, &task) {
            let built = built.contains(&root_name(&name.to_string(), &variant));
            let (source, title) = (source.clone(), task.title.clone());
            rows.push(Row { task: name.to_string(), variant, built, source, title });
        }
    }
    let rows = Rows { tasks: rows };
    session.ui.data(&rows, || {
        let cells = |row: &Row| {
            let built = if row.built { "built" } else { "-" };
            vec![
                row.task.clone(),
                row.variant.clone(),
                built.to_owned(),
                row.source.clone(),
                row.title.clone(),
            ]
        };
        let lines: Vec<Vec<String>> = rows.tasks.iter().map(cells).collect();
        table(&["TASK", "VARIANT", "BUILT", "SOURCE", "TITLE"], &[false; 5], &lines)
    });
    Ok(0)
}
