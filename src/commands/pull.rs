//! `infradev pull`.

use clap::Args;
use serde::Serialize;

use crate::build::root::BuiltTask;
use crate::error::{CommandError, CommandResult, Kind};
use crate::session::Session;
use crate::share::grading::pull_grading;
use crate::share::pull::{Pulled, pull};
use crate::share::{Remote, tag_of};
use crate::ui::{bytes, counted};

/// Arguments of `pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Tasks: `project/id`, or `all`; none if the remote is given with a tag or digest
    tasks: Vec<String>,
    /// Where from: HOST/REPOSITORY[:TAG|@DIGEST], or dir:PATH of an image layout
    #[arg(long, value_name = "REMOTE")]
    from: String,
    /// The variant
    #[arg(long, default_value = "cpu")]
    variant: String,
    /// What for: an agent's environment, or evaluation, which needs the grading bundle too
    #[arg(long = "for", value_enum, default_value = "agent", value_name = "WHOM")]
    purpose: Purpose,
    /// Where grading bundles are
    #[arg(long, value_name = "REMOTE", required_if_eq("purpose", "eval"))]
    grader: Option<String>,
    /// Take the records of build steps too, so that builds find them: only from those whom you would let build here
    #[arg(long)]
    trust: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Purpose {
    Agent,
    Eval,
}

#[derive(Serialize)]
struct Report {
    pulled: Vec<Pulled>,
}

pub(crate) fn run(session: &Session, arguments: &PullArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let (remote, tag) = session.remote(&arguments.from)?;
    let references = references(arguments, &*remote, tag)?;
    let grader = match arguments.purpose {
        Purpose::Agent => None,
        Purpose::Eval => super::push::grader(session, arguments.grader.as_deref(), &*remote)?,
    };
    let trusted = arguments.trust || session.config.trusts(&remote.name());
    let mut pulled = vec![];
    for reference in references {
        let lease = store.lease(&format!("pull {reference}"))?;
        let done = pull(store, &lease, &*remote, &reference, trusted, &session.ui)?;
        session.ui.note(said(&done));
        if done.records + done.untrusted_records == 0 {
            session.ui.note(format!("{}: no new action records are beside the image", done.task));
        }
        if let Some(grader) = &grader {
            let (task, variant) = done.task.rsplit_once('@').unwrap_or((&done.task, ""));
            let built = BuiltTask::read(store, task, variant)?.expect("just pulled");
            pull_grading(session, store, &lease, &built, &**grader, &tag_of(task, variant))?;
            session.ui.note(format!("{}: grading bundle", done.task));
        }
        pulled.push(done);
    }
    let untrusted: usize = pulled.iter().map(|done: &Pulled| done.untrusted_records).sum();
    if untrusted > 0 {
        session.ui.note(format!(
            "{} not taken: {} is not trusted (`trust = [\"…\"]` in the configuration, or --trust)",
            counted(untrusted, "action record"),
            remote.name()
        ));
    }
    let report = Report { pulled };
    session.ui.data(&report, || {
        report
            .pulled
            .iter()
            .map(|done| match done.reference.ends_with(&done.digest) {
                true => format!("{} {}\n", done.task, done.reference),
                false => format!("{} {}@{}\n", done.task, done.reference, done.digest),
            })
            .collect()
    });
    Ok(0)
}

fn references(arguments: &PullArgs, remote: &dyn Remote, tag: Option<String>) -> CommandResult<Vec<String>> {
    match (tag, arguments.tasks.as_slice()) {
        (Some(tag), []) => Ok(vec![tag]),
        (Some(_), _) => {
            Err(CommandError::usage("a remote with a tag names one image; leave the tasks or the tag out"))
        }
        (None, []) => {
            Err(CommandError::usage("name the tasks to pull, or `all`").hint("or give the remote with a tag"))
        }
        (None, tasks) if tasks.iter().any(|task| task == "all") => {
            let suffix = format!("-{}", arguments.variant);
            let mut tags = remote.tags()?;
            tags.retain(|tag| tag.ends_with(&suffix));
            match tags.is_empty() {
                true => {
                    let (place, variant) = (remote.name(), &arguments.variant);
                    let text = format!("{place} has no images of the variant `{variant}`");
                    Err(CommandError::new(Kind::Miss, text).hint("`infradev push` publishes what is built"))
                }
                false => Ok(tags),
            }
        }
        (None, tasks) => Ok(tasks.iter().map(|task| tag_of(task, &arguments.variant)).collect()),
    }
}

fn said(done: &Pulled) -> String {
    let Pulled { task, layers, fetched_bytes, image_bytes, records, .. } = done;
    let records =
        if *records > 0 { format!(", {}", counted(*records, "action record")) } else { String::new() };
    if *layers == 0 {
        return format!("{task}: every layer was there{records}");
    }
    format!(
        "{task}: {} new{records}; {} fetched of {}",
        counted(*layers, "layer"),
        bytes(*fetched_bytes),
        bytes(*image_bytes)
    )
}
