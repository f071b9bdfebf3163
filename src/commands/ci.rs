//! `infradev ci save` and `ci restore`: what one job has built, another need not build.

use std::io::Write;

use clap::{Args, Subcommand};

use crate::build::host::Host;
use crate::build::{Prepared, prepare};
use crate::error::{CommandError, CommandResult, Kind, exit_code};
use crate::session::Session;
use crate::share::steps::{Restored, Saved, Worth, records_of, restore, save};
use crate::ui::{bytes, counted};

/// The commands of `ci`.
#[derive(Debug, Subcommand)]
pub(crate) enum CiCommand {
    /// Keep build steps of tasks in a registry, for later jobs
    Save(SaveArgs),
    /// Fetch the build steps of tasks that an earlier job kept
    Restore(RestoreArgs),
}

/// What both name.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// Tasks, projects, globs, or `all`
    #[arg(required = true)]
    selectors: Vec<String>,
    /// Only this variant
    #[arg(long)]
    variant: Option<String>,
}

/// Arguments of `ci save`.
#[derive(Debug, Args)]
pub(crate) struct SaveArgs {
    #[command(flatten)]
    tasks: TaskArgs,
    /// Where to: HOST/REPOSITORY, best one for this alone, or dir:PATH
    #[arg(long, value_name = "REMOTE")]
    to: String,
    /// Keep a step if building it takes so many seconds more than restoring it would
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    min_gain: f64,
    /// Keep every step: for jobs that can build nothing themselves
    #[arg(long, conflicts_with = "min_gain")]
    all: bool,
    /// Save nothing, and say so: for jobs of strangers
    #[arg(long)]
    read_only: bool,
}

/// Arguments of `ci restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    tasks: TaskArgs,
    /// Where from; it must be trusted, since what it says of build steps is believed
    #[arg(long, value_name = "REMOTE")]
    from: String,
    /// Trust it
    #[arg(long)]
    trust: bool,
    /// Fail if a step is left to build
    #[arg(long)]
    require_hit: bool,
}

pub(crate) fn run(session: &Session, command: &CiCommand) -> CommandResult<u8> {
    match command {
        CiCommand::Save(arguments) => run_save(session, arguments),
        CiCommand::Restore(arguments) => run_restore(session, arguments),
    }
}

fn prepared(session: &Session, arguments: &TaskArgs, host: &Host) -> CommandResult<Vec<Prepared>> {
    let tasks = session.tasks(&arguments.selectors)?;
    let recipes = session.recipes(&tasks, arguments.variant.as_deref())?;
    prepare(session, recipes, host)
}

fn run_save(session: &Session, arguments: &SaveArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let (remote, tag) = session.remote(&arguments.to)?;
    refuse_tag(tag)?;
    let host = Host::inspect();
    let lease = store.lease("ci save")?;
    let records = records_of(store, &prepared(session, &arguments.tasks, &host)?, &host)?;
    if records.is_empty() {
        session.ui.warn("none of the steps of these tasks are in the store: `infradev build` comes first");
    }
    if arguments.read_only {
        let steps = records.len();
        session.ui.note(format!("read-only: none of {} saved", counted(steps, "step")));
        session.ui.data(&Saved { steps, ..Saved::default() }, String::new);
        return Ok(0);
    }
    let worth = if arguments.all { Worth::Everything } else { Worth::Gain(arguments.min_gain) };
    let count = records.len();
    let saved = match save(store, &lease, records, &*remote, worth, &session.ui) {
        Err(error) if error.is_denied() => {
            session.ui.warn(format!("{} may not be written: nothing saved", remote.name()));
            Saved { steps: count, ..Saved::default() }
        }
        other => other?,
    };
    let text = format!(
        "{} saved ({}), {} as records alone, {} there before",
        counted(saved.saved, "step"),
        bytes(saved.uploaded_bytes),
        saved.cheap,
        saved.present
    );
    session.ui.note(&text);
    summarize(session, "infradev ci save", &text);
    session.ui.data(&saved, String::new);
    Ok(0)
}

fn run_restore(session: &Session, arguments: &RestoreArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let (remote, tag) = session.remote(&arguments.from)?;
    refuse_tag(tag)?;
    if !arguments.trust && !session.config.trusts(&remote.name()) {
        return Err(CommandError::usage(format!("{} is not trusted", remote.name())).hint(
            "what it says of build steps would be believed: add it to `trust` in the configuration, or give --trust",
        ));
    }
    let host = Host::inspect();
    let lease = store.lease("ci restore")?;
    let prepared = prepared(session, &arguments.tasks, &host)?;
    let restored = restore(store, &lease, &prepared, &host, &*remote, &session.ui)?;
    let text = said(&restored);
    session.ui.note(&text);
    summarize(session, "infradev ci restore", &text);
    session.ui.data(&restored, String::new);
    if restored.steps > restored.here && restored.restored + restored.cheap == 0 {
        session.ui.warn(format!("{} had none of the steps: is anything saved there?", remote.name()));
    }
    let left = restored.cheap + restored.missing;
    Ok(if arguments.require_hit && left > 0 { exit_code(Kind::Miss) } else { 0 })
}

fn said(restored: &Restored) -> String {
    let Restored { steps, here, restored, cheap, missing, fetched_bytes, seconds_saved, seconds } = restored;
    format!(
        "{restored} of {} restored: {} in {seconds:.1} s, for {seconds_saved:.0} s of building; \
         {here} here before, {cheap} cheap ones and {missing} more left to build",
        counted(*steps, "step"),
        bytes(*fetched_bytes)
    )
}

fn refuse_tag(tag: Option<String>) -> CommandResult {
    match tag {
        Some(tag) => Err(CommandError::usage(format!("leave `{tag}` out: each step has a tag of its own"))),
        None => Ok(()),
    }
}

/// Adds a line to the summary of the job, where there is one.
fn summarize(session: &Session, what: &str, text: &str) {
    let Some(path) = &session.config.step_summary else { return };
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    if let Err(error) = opened.and_then(|mut file| writeln!(file, "**{what}**: {text}\n")) {
        session.ui.warn(format!("the job's summary cannot be written: {error}"));
    }
}
