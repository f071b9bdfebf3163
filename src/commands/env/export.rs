//! `env export`.

use std::path::PathBuf;

use clap::Args;
use infradev_layers::{Compression, Tree};
use infradev_store::{Lease, Store};

use super::Which;
use super::create::find_built;
use crate::build::root::BuiltTask;
use crate::commands::push::CompressionChoice;
use crate::env::capture::capture;
use crate::env::image::{known_tree, read_layers};
use crate::env::state::{Environment, EnvironmentError, EnvironmentState};
use crate::error::{CommandError, CommandResult, Kind};
use crate::export::{Exported, Format, Options, write};
use crate::session::Session;

/// Arguments of `env export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The task, or a named environment with what was written in it
    target: String,
    /// What to write
    #[arg(long, value_enum)]
    format: Format,
    /// Where to: a file or directory that does not exist yet
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
    /// How oci and squashfs are compressed [default: zstd]; gzip is slow, and for tools that cannot read zstd
    #[arg(long, value_enum)]
    compression: Option<CompressionChoice>,
    /// Replace an earlier export
    #[arg(long)]
    force: bool,
    /// Only say what would be written, and how much disk that takes
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    which: Which,
    /// What a bundle runs [default: /bin/sh]
    #[arg(last = true)]
    command: Vec<String>,
}

pub(super) fn export(session: &Session, arguments: &ExportArgs) -> CommandResult<u8> {
    let ExportArgs { target, format, to, .. } = arguments;
    if !arguments.command.is_empty() && *format != Format::Bundle {
        return Err(
            CommandError::usage("only a bundle has a command").hint("give it to whatever runs the export")
        );
    }
    if arguments.compression.is_some() && !matches!(format, Format::Oci | Format::Squashfs) {
        let text = format!("nothing is compressed in the format {}", format.word());
        return Err(CommandError::usage(text).hint("leave --compression out"));
    }
    let store = session.store()?;
    let lease = store.lease(&format!("export {target}"))?;
    let exported = match Environment::open(store, target) {
        Ok(environment) => of_environment(store, &lease, &environment, arguments.dry_run)?,
        Err(EnvironmentError::Absent(_) | EnvironmentError::Name(_)) => {
            let built = find_built(session, store, target, &arguments.which)?;
            ensure_runnable(&built, *format)?;
            let trees = held_trees(store, &lease, &built)?;
            Exported::new(built, trees)
        }
        Err(error) => return Err(error.into()),
    };
    ensure_runnable(&exported.built, *format)?;
    let compression = arguments.compression.map_or(Compression::Zstd, Compression::from);
    let options = Options {
        format: *format,
        compression,
        command: &arguments.command,
        force: arguments.force,
        dry_run: arguments.dry_run,
    };
    let done = write(store, &lease, &exported, to, &options, &session.ui)?;
    if !done.dry_run {
        session.ui.note(&done.hint);
    }
    session.ui.data(&done, || if done.dry_run { String::new() } else { format!("{}\n", done.to) });
    Ok(0)
}

/// Holds the layers of `built`, and reads them.
pub(super) fn held_trees(store: &Store, lease: &Lease, built: &BuiltTask) -> CommandResult<Vec<Tree>> {
    if let Some(layer) = lease.hold(&built.layers)?.first() {
        return Err(infradev_store::Error::NoLayer(*layer).into());
    }
    Ok(read_layers(store, &built.layers)?)
}

/// The host's directories are in no layer, so what lies over them runs nowhere else.
fn ensure_runnable(built: &BuiltTask, format: Format) -> CommandResult {
    if !built.host_base {
        return Ok(());
    }
    let text = format!(
        "{} has this machine's own /usr and /etc as its base, which belong to no layer: as {} it would not run",
        built.name(),
        format.word()
    );
    Err(CommandError::usage(text).hint(format!(
        "`infradev push {} --to dir:PATH` publishes its layers for machines of the same kind; \
         `infradev env materialize` writes it where the same system is installed",
        built.task
    )))
}

/// Takes a named environment as a task of its own, whose last layer is what was written in it.
fn of_environment(
    store: &Store,
    lease: &Lease,
    environment: &Environment,
    dry_run: bool,
) -> CommandResult<Exported> {
    // What still writes there would be caught half-way.
    let _quiet = environment.keep_out()?;
    let EnvironmentState { back_end, mapping, .. } = environment.state;
    let (task, variant) = environment.state.task.rsplit_once('@').unwrap_or((&environment.state.task, ""));
    let known = BuiltTask::read(store, task, variant).unwrap_or(None);
    let state = &environment.state;
    let mut built = BuiltTask {
        schema: 1,
        layers: state.layers.clone(),
        also: vec![],
        // Another name than the task's: whoever pulls it must not take it for that.
        task: format!("{task}.{}", environment.name),
        variant: variant.to_owned(),
        steps: known.filter(|known| known.layers == state.layers).map_or(vec![], |known| known.steps),
        python: String::new(),
        workspace: state.directory.display().to_string(),
        variables: state.variables.clone(),
        host_base: state.host_base,
        catalog_files: vec![],
        recipe: String::new(),
        built: state.created,
    };
    ensure_runnable(&built, Format::Oci)?;
    let mut trees = held_trees(store, lease, &built)?;
    let below = known_tree(store, &state.stack())?;
    let ingest = store.ingest(lease)?;
    let scanned = capture(&environment.upper(), back_end, mapping, &below, &ingest)
        .map_err(|error| CommandError::caused(Kind::Infrastructure, &error))?;
    if scanned.tree.entries().len() > 1 {
        let layer = ingest.put_layer(&scanned.tree.encode())?;
        if !dry_run {
            ingest.commit()?;
            let _stays_until_the_lease_ends = lease.hold(&[layer])?;
        }
        // A layer that is in the stack already would be there twice.
        if !built.layers.contains(&layer) {
            built.layers.push(layer);
            trees.push(scanned.tree);
        }
    }
    Ok(Exported::new(built, trees))
}
