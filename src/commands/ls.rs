//! `infradev ls`.

use clap::Args;
use infradev_recipes::{Catalog, Origin, TaskName, select, variants_of};
use serde::Serialize;

use crate::build::root::BuiltTask;
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
    let built = match session.store_if_any()? {
        Some(store) => BuiltTask::all(store)?,
        None => vec![],
    };
    // A task that was pulled need not be in any catalog here.
    let catalog = match session.catalog() {
        Err(_) if session.config.catalogs.value.is_empty() && !built.is_empty() => None,
        catalog => Some(catalog?),
    };
    let listed = catalog.map_or(&[][..], |catalog| catalog.tasks());
    let mut rows = vec![];
    for name in chosen(listed, &built, &arguments.selectors)? {
        let task = name.to_string();
        if let Some(catalog) = catalog.filter(|_| listed.contains(&name)) {
            rows.extend(rows_of(catalog, &name, &built)?);
        }
        let beside = built.iter().filter(|found| found.task == task);
        let listed: Vec<String> =
            rows.iter().filter(|row| row.task == task).map(|row| row.variant.clone()).collect();
        rows.extend(beside.filter(|found| !listed.contains(&found.variant)).map(|found| Row {
            task: found.task.clone(),
            variant: found.variant.clone(),
            built: true,
            source: "-".to_owned(),
            title: "(not in the catalog)".to_owned(),
        }));
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

/// Returns the tasks of the catalog and those that are built which `selectors` name, in order, each once.
fn chosen(listed: &[TaskName], built: &[BuiltTask], selectors: &[String]) -> CommandResult<Vec<TaskName>> {
    let mut names = listed.to_vec();
    names.extend(built.iter().map(BuiltTask::task_name));
    names.sort();
    names.dedup();
    let mut chosen = vec![];
    for selector in selectors {
        chosen.extend(select(&names, selector)?);
    }
    chosen.sort();
    chosen.dedup();
    Ok(chosen)
}

fn rows_of(catalog: &Catalog, name: &TaskName, built: &[BuiltTask]) -> CommandResult<Vec<Row>> {
    let project = catalog.project(&name.project)?;
    let task = catalog.task(name, &project)?;
    let source = match &task.source.origin {
        Origin::Commit(commit) => commit[..12].to_owned(),
        Origin::Sdist { .. } => format!("sdist {}", task.source.version),
    };
    let row = |variant: String| {
        let built = built.iter().any(|found| found.task == name.to_string() && found.variant == variant);
        Row { task: name.to_string(), variant, built, source: source.clone(), title: task.title.clone() }
    };
    Ok(variants_of(&project, &task).into_iter().map(row).collect())
}
