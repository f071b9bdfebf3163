//! `infradev push`.

use clap::Args;
use infradev_layers::Compression;
use infradev_recipes::{TaskName, select};
use serde::Serialize;

use crate::build::root::BuiltTask;
use crate::error::{CommandError, CommandResult, Kind};
use crate::session::Session;
use crate::share::grading::push_grading;
use crate::share::push::{PushOptions, Pushed, push};
use crate::share::{Remote, tag_of};
use crate::ui::{bytes, counted};

/// Arguments of `push`.
#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// Built tasks: `project/id`, an id, a project, a glob, or `all`
    #[arg(required = true)]
    selectors: Vec<String>,
    /// Where to: HOST/REPOSITORY, or dir:PATH for an image layout
    #[arg(long, value_name = "REMOTE")]
    to: String,
    /// The variant [default: each that is built]
    #[arg(long)]
    variant: Option<String>,
    /// The tag [default: from the task and variant, such as verl-3567-cpu]
    #[arg(long)]
    tag: Option<String>,
    /// Publish what judges the tasks too, in a repository of its own that agents cannot read
    #[arg(long, value_name = "REMOTE")]
    grader: Option<String>,
    /// How blobs are compressed; gzip is slow, and for tools that cannot read zstd
    #[arg(long, value_enum, default_value = "zstd")]
    compression: CompressionChoice,
}

/// How blobs are compressed, as it is typed.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum CompressionChoice {
    Zstd,
    Gzip,
}

impl From<CompressionChoice> for Compression {
    fn from(choice: CompressionChoice) -> Self {
        match choice {
            CompressionChoice::Zstd => Compression::Zstd,
            CompressionChoice::Gzip => Compression::Gzip,
        }
    }
}

#[derive(Serialize)]
struct Report {
    pushed: Vec<Pushed>,
}

pub(crate) fn run(session: &Session, arguments: &PushArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let tasks = built_tasks(session, &arguments.selectors, arguments.variant.as_deref())?;
    let (remote, tag) = session.remote(&arguments.to)?;
    let tag = arguments.tag.clone().or(tag);
    if let Some(tag) = tag.as_ref().filter(|tag| !is_tag(tag)) {
        return Err(CommandError::usage(format!("`{tag}` cannot be a tag"))
            .hint("expected up to 128 letters, digits, `_`, `.` and `-`, not beginning with `.` or `-`"));
    }
    if tag.is_some() && tasks.len() > 1 {
        return Err(CommandError::usage(format!("{} tasks cannot have one tag", tasks.len()))
            .hint("leave the tag out: each task has its own"));
    }
    let grader = grader(session, arguments.grader.as_deref(), &*remote)?;
    let options = PushOptions { compression: arguments.compression.into(), records: true };
    let mut pushed = vec![];
    for built in &tasks {
        let lease = store.lease(&format!("push {}", built.name()))?;
        let tag = tag.clone().unwrap_or_else(|| tag_of(&built.task, &built.variant));
        let done = push(store, &lease, built, &*remote, &tag, options, &session.ui)
            .map_err(|error| CommandError::from(error).during(format!("push {}", built.name())))?;
        session.ui.note(said(&done));
        if let Some(grader) = &grader {
            let new = push_grading(session, store, &lease, built, &**grader, &tag)?;
            let word = if new { "published" } else { "there already" };
            session.ui.note(format!("{}: grading bundle {word} in {}", built.name(), grader.name()));
        }
        pushed.push(done);
    }
    let report = Report { pushed };
    session.ui.data(&report, || {
        report.pushed.iter().map(|done| format!("{}@{}\n", done.reference, done.digest)).collect()
    });
    Ok(0)
}

fn said(done: &Pushed) -> String {
    let Pushed { task, uploaded, uploaded_bytes, mounted, present_bytes, unchanged, .. } = done;
    if *unchanged && *uploaded == 0 {
        return format!("{task}: nothing to do");
    }
    let mounted = if *mounted > 0 {
        format!(", {} taken from another repository", counted(*mounted, "blob"))
    } else {
        String::new()
    };
    format!(
        "{task}: {} uploaded ({}){mounted}, {} there already",
        counted(*uploaded, "blob"),
        bytes(*uploaded_bytes),
        bytes(*present_bytes)
    )
}

/// Opens the place of grading bundles, which is never that of environments: who may read one reads all of it.
pub(super) fn grader(
    session: &Session,
    text: Option<&str>,
    remote: &dyn Remote,
) -> CommandResult<Option<Box<dyn Remote>>> {
    let Some(text) = text else { return Ok(None) };
    let (grader, tag) = session.remote(text)?;
    if grader.name() == remote.name() || tag.is_some() {
        return Err(CommandError::usage(format!("`{text}` is no place for grading bundles"))
            .hint("name a repository of its own, without a tag: agents may read the one of environments"));
    }
    Ok(Some(grader))
}

/// Returns the built tasks that `selectors` name.
fn built_tasks(
    session: &Session,
    selectors: &[String],
    variant: Option<&str>,
) -> CommandResult<Vec<BuiltTask>> {
    let all = BuiltTask::all(session.store()?)?;
    let names: Vec<TaskName> = all.iter().map(BuiltTask::task_name).collect();
    let mut chosen: Vec<BuiltTask> = vec![];
    for selector in selectors {
        let found = select(&names, selector).map_err(|error| {
            match session.tasks(std::slice::from_ref(selector)) {
                Ok(_) => CommandError::new(Kind::Miss, format!("`{selector}` is not built"))
                    .hint(format!("`infradev build {selector}` builds it")),
                Err(_) => {
                    let error = CommandError::from(error);
                    CommandError { kind: Kind::Miss, ..error }
                        .hint("only what is built can be pushed: `infradev ls`, `infradev build`")
                }
            }
        })?;
        let is_it = |built: &&BuiltTask| {
            found.contains(&built.task_name()) && variant.is_none_or(|variant| variant == built.variant)
        };
        chosen.extend(all.iter().filter(is_it).cloned());
    }
    chosen.sort_by_key(BuiltTask::name);
    chosen.dedup_by_key(|built| built.name());
    match (chosen.is_empty(), variant) {
        (true, Some(variant)) => Err(CommandError::new(
            Kind::Miss,
            format!("none of these tasks is built in the variant `{variant}`"),
        )),
        _ => Ok(chosen),
    }
}

/// Whether a registry takes `text` as a tag (OCI distribution specification, "Pulling manifests").
fn is_tag(text: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-');
    !text.is_empty() && text.len() <= 128 && !text.starts_with(['.', '-']) && text.chars().all(plain)
}
