//! `infradev env`: environments.

mod create;
mod diff;
mod exec;
mod export;
mod list;
mod materialize;
mod mount;
mod patch;
mod remove;

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(crate) use create::find_built;
pub(crate) use exec::run_check;
pub(crate) use patch::APPLY;

use crate::env::plan::Network;
use crate::error::CommandResult;
use crate::session::Session;

/// What to do with environments.
#[derive(Debug, Subcommand)]
pub(crate) enum EnvCommand {
    /// Mount a task's environment, writable, under a name
    ///
    /// As root the environment is mounted for the whole host. Others get a process that holds the mount in its
    /// own namespaces; `env exec NAME` enters it.
    Mount(MountArgs),
    /// Unmount an environment; what was written in it stays
    Umount {
        /// The environment
        name: String,
    },
    /// Run a command in a task's environment, or in a named one
    ///
    /// For a TASK the environment is fresh and discarded afterwards, unless --keep names it. The command's
    /// status is passed on.
    Exec(ExecArgs),
    /// Run an interactive shell in a task's environment, or in a named one
    Shell(Place),
    /// List the environments
    Ls,
    /// Show what was written in an environment
    Diff {
        /// The environment
        name: String,
    },
    /// Apply a patch to the source tree of a named environment, inside it
    Patch {
        /// The environment
        name: String,
        /// The patch, as `git diff` writes it
        file: PathBuf,
    },
    /// Write an environment for other tools: image layout, docker archive, files, squashfs, or runtime bundle
    Export(export::ExportArgs),
    /// Write a task's environment as plain files where nothing can be mounted, say in an unprivileged container
    ///
    /// Prints the variables by which a shell uses it. With `--at /`, what the task adds to its base goes to its real
    /// places, /opt/env and /workspace.
    Materialize(materialize::MaterializeArgs),
    /// Unmount and delete environments, with what was written in them
    Rm {
        /// The environments
        #[arg(required = true)]
        names: Vec<String>,
        /// Only say what would be deleted
        #[arg(long)]
        dry_run: bool,
    },
}

/// Arguments of `env mount`.
#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// The task, such as verl/3567; or an environment that was unmounted
    task: String,
    /// The name of the environment [default: derived from the task]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    which: Which,
}

/// Which build of a task.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The variant [default: the only one built]
    #[arg(long)]
    pub(crate) variant: Option<String>,
    /// Fail if the recipe or its lock changed since the build
    #[arg(long)]
    pub(crate) require_fresh: bool,
}

/// Where a command runs.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The task or environment
    target: String,
    /// Keep the fresh environment under this name
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    surroundings: Surroundings,
}

/// Arguments of `env exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    place: Place,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// What a command sees besides the environment.
#[derive(Debug, Default, Args)]
pub(crate) struct Surroundings {
    /// The network
    #[arg(long, value_enum, default_value_t)]
    network: Network,
    /// Show a file or directory of the host: SOURCE:DESTINATION, with `:rw` to let it be changed
    #[arg(long = "bind", value_name = "SPEC")]
    binds: Vec<String>,
    /// Set a variable; NAME alone takes it over from here
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    variables: Vec<String>,
    /// Where the command starts [default: the source tree]
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Standard input; this program's if it is not given.
    #[arg(skip)]
    input: Option<std::fs::File>,
}

pub(crate) fn run(session: &Session, command: EnvCommand) -> CommandResult<u8> {
    match command {
        EnvCommand::Mount(arguments) => mount::mount(session, &arguments),
        EnvCommand::Umount { name } => mount::unmount(session, &name),
        EnvCommand::Exec(arguments) => exec::exec(session, &arguments),
        EnvCommand::Shell(place) => exec::shell(session, &place),
        EnvCommand::Ls => list::list(session),
        EnvCommand::Diff { name } => diff::diff(session, &name),
        EnvCommand::Patch { name, file } => patch::patch(session, &name, &file),
        EnvCommand::Export(arguments) => export::export(session, &arguments),
        EnvCommand::Materialize(arguments) => materialize::materialize(session, &arguments),
        EnvCommand::Rm { names, dry_run } => remove::remove(session, &names, dry_run),
    }
}
