//! `task.toml`.

use super::build::{read_steps, read_variant_names};
use super::grading::read_tests;
use super::project::{read_files, read_requirements};
use super::{Document, Fields, Item, ReadSource};
use crate::error::RecipeErrors;
use crate::recipe::{Origin, Project, Source, Task, TaskPython};

/// Parses `text`, the document `file` of a task of `project`.
pub fn parse_task(
    file: &str,
    text: &str,
    project: &Project,
    source: ReadSource<'_>,
) -> Result<Task, RecipeErrors> {
    Document::read(file, text, |fields| read_task(fields, project, source))
}

fn read_task(fields: &mut Fields<'_>, project: &Project, source: ReadSource<'_>) -> Option<Task> {
    let workspace = project.workspace();
    let known: Vec<String> = project.variants.keys().cloned().collect();
    let schema = fields.schema();
    let title = fields.required("title", Item::line);
    let url = fields.optional("url", Item::line);
    let variants = fields.defaulted("variants", |item| read_variant_names(item, &known));
    let tree = fields.required("source", |item| item.table(|fields| read_source(fields, project)));
    let python = fields.defaulted("python", |item| item.table(read_python));
    let files = fields.defaulted("files", |item| read_files(item, &workspace, source));
    let build = fields.defaulted("build", |item| read_steps(item, &workspace, &known));
    let env = fields.defaulted("env", Item::environment);
    let check = fields.optional("check", |item| {
        item.table(|fields| {
            let command = fields.required("command", Item::command);
            fields.close();
            command
        })
    });
    let from_commit = !matches!(&tree, Some(Source { origin: Origin::Sdist { .. }, .. }));
    let tests =
        fields.optional("tests", |item| item.table(|fields| read_tests(fields, &workspace, from_commit)));
    fields.close();
    schema?;
    Some(Task {
        title: title?,
        url: url?,
        variants: variants?,
        source: tree?,
        python: python?,
        files: files?,
        build: build?,
        env: env?,
        check: check?,
        tests: tests?,
    })
}

fn read_source(fields: &mut Fields<'_>, project: &Project) -> Option<Source> {
    let commit = fields.optional("commit", |item| {
        if project.git.is_none() {
            return item.fail("`[source] git` in project.toml", "a commit without a repository");
        }
        item.commit()
    });
    let sdist = fields.optional("sdist", |item| item.table(read_sdist));
    let date = fields.optional("date", Item::timestamp);
    let version = fields.optional("version", Item::version);
    let exclude = fields.defaulted("exclude", |item| item.list(Item::relative_pattern));
    fields.close();
    let (origin, version) = match (commit?, sdist?, version?) {
        (Some(commit), None, Some(version)) => (Origin::Commit(commit), version),
        (Some(_), None, None) => return fields.fail("the key `version`", "no such key"),
        (None, Some((origin, released)), version) => (origin, version.unwrap_or(released)),
        _ => return fields.fail("exactly one of `commit` and `sdist`", "both or neither"),
    };
    let date = date?;
    if date.is_none() && matches!(origin, Origin::Commit(_)) {
        return fields.fail("the key `date`, the commit's own", "no such key");
    }
    Some(Source { origin, date, version, exclude: exclude? })
}

fn read_sdist(fields: &mut Fields<'_>) -> Option<(Origin, String)> {
    let name = fields.required("name", Item::distribution);
    let version = fields.required("version", Item::version);
    let sha256 = fields.required("sha256", Item::sha256);
    fields.close();
    let version = version?;
    Some((Origin::Sdist { name: name?, version: version.clone(), sha256: sha256? }, version))
}

fn read_python(fields: &mut Fields<'_>) -> Option<TaskPython> {
    let requirements = fields.optional("requirements", |item| item.table(read_requirements));
    let lock = fields.optional("lock", Item::plain_name);
    let exclude_newer = fields.optional("exclude-newer", Item::timestamp);
    let align = fields.optional("align", Item::boolean);
    let prefer = fields.defaulted("prefer", |item| {
        let entries = item.entries(|glob, item| {
            let fault = glob.is_empty() || glob.starts_with('/') || glob.split('/').any(|part| part == "..");
            if fault {
                return item.fail("a glob relative to /opt/env", format!("`{glob}`"));
            }
            Some((item.compiled(glob)?, item.distribution()?))
        });
        Some(entries?.into_iter().map(|(_, entry)| entry).collect())
    });
    fields.close();
    Some(TaskPython {
        requirements: requirements?,
        lock: lock?,
        exclude_newer: exclude_newer?,
        align: align?.unwrap_or(true),
        prefer: prefer?,
    })
}
