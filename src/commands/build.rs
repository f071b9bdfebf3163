//! `infradev build`.

use clap::Args;
use infradev_recipes::Pattern;

use crate::build::host::Host;
use crate::build::{Again, BuildOptions, BuildSummary, Sandbox, build, prepare};
use crate::error::{CommandError, CommandResult, exit_code};
use crate::session::Session;
use crate::ui::{bytes, counted};

/// Arguments of `build`.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Tasks, projects, globs, or `all`
    #[arg(required = true)]
    selectors: Vec<String>,
    /// Only this variant
    #[arg(long)]
    variant: Option<String>,
    /// How many steps run at once [default: one per processor]
    #[arg(short, long)]
    jobs: Option<usize>,
    /// Go on with what does not need a failed step
    #[arg(short, long)]
    keep_going: bool,
    /// Run nothing: fail if a step is not in the store
    #[arg(long)]
    require_hit: bool,
    /// Run these steps again although they are in the store, and say which give another layer: a glob over their
    /// names as `plan` shows them, without the task ('build *', '**')
    #[arg(long, value_name = "GLOB", conflicts_with = "require_hit")]
    rebuild: Option<String>,
    /// What commands of recipes run in. `none` is for containers that forbid namespaces: tasks over the host's own
    /// system, built at the real /opt/env and /workspace; no other build takes such results for those of a sandbox
    #[arg(long, value_enum, default_value_t)]
    sandbox: Sandbox,
}

pub(crate) fn run(session: &Session, arguments: &BuildArgs) -> CommandResult<u8> {
    let options = BuildOptions {
        jobs: arguments.jobs.unwrap_or(session.config.jobs.value),
        keep_going: arguments.keep_going,
        require_hit: arguments.require_hit,
        again: arguments.rebuild.as_deref().map(pattern).transpose()?.map_or(Again::Nothing, Again::Matching),
        sandbox: arguments.sandbox,
    };
    let summary = build_selected(session, &arguments.selectors, arguments.variant.as_deref(), &options)?;
    session.ui.data(&summary, String::new);
    report(session, &summary)
}

fn pattern(glob: &str) -> CommandResult<Pattern> {
    Pattern::new(glob).map_err(|error| CommandError::usage(format!("--rebuild: {error}")))
}

/// Builds what the selectors name.
pub(crate) fn build_selected(
    session: &Session,
    selectors: &[String],
    variant: Option<&str>,
    options: &BuildOptions,
) -> CommandResult<BuildSummary> {
    // The store comes first: if it cannot be written, nothing else matters.
    session.store()?;
    let tasks = session.tasks(selectors)?;
    let recipes = session.recipes(&tasks, variant)?;
    let host = Host::inspect();
    let prepared = prepare(session, recipes, &host)?;
    build(session, prepared, &host, options)
}

/// Says how a build went; returns the exit code.
pub(crate) fn report(session: &Session, summary: &BuildSummary) -> CommandResult<u8> {
    for error in &summary.errors {
        session.ui.error(error);
    }
    let BuildSummary { hits, built, seconds_saved, seconds_built, downloaded, tasks, failed, errors } =
        summary;
    let steps = |count: usize| counted(count, "step");
    if *built == 0 && failed.is_empty() {
        session
            .ui
            .note(format!("nothing to do: {} found, {seconds_saved:.0} s of building saved", steps(*hits)));
    } else {
        session.ui.note(format!(
            "{} built, {seconds_built:.0} s of work ({} downloaded); {} found, {seconds_saved:.0} s saved",
            steps(*built),
            bytes(*downloaded),
            steps(*hits)
        ));
    }
    if !tasks.is_empty() && *built > 0 {
        session.ui.note(format!("ready: {}", tasks.join(", ")));
    }
    for (task, reason) in failed {
        // What was said above needs no second saying.
        let said = errors.iter().any(|error| error.message == *reason);
        let reason = reason.lines().next().filter(|_| !said).map(|reason| format!(" ({reason})"));
        session.ui.note(format!("not ready: {task}{}", reason.unwrap_or_default()));
    }
    let worst = errors.iter().map(|error| exit_code(error.kind)).max_by_key(|code| severity(*code));
    Ok(worst.unwrap_or(u8::from(!failed.is_empty())))
}

/// Infrastructure failures win over others: they may have caused them.
fn severity(code: u8) -> u8 {
    match code {
        3 => 4,
        4 => 3,
        other => other,
    }
}
