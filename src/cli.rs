//! The command line: what may be typed, and which command it means.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::commands;
use crate::config::{Config, Overrides};
use crate::env::back_end::BackEnd;
use crate::error::{CommandError, CommandResult, Kind, exit_code};
use crate::session::Session;
use crate::ui::{ColorChoice, ProgressChoice, Ui, UiOptions};

/// Shared, content-addressed environments for benchmarks of coding agents on AI infrastructure.
#[derive(Debug, Parser)]
#[command(
    name = "infradev",
    version,
    max_term_width = 100,
    propagate_version = true,
    after_help = "Exit codes: 0 done · 1 the work failed · 2 usage or configuration · 3 infrastructure, or could not check · 4 not here, and fetching was forbidden · 130 interrupted.
env exec passes the command's status on; there, 125 is infradev's own failure, 126 a program that cannot be executed, 127 one that is not found."
)]
struct CommandLine {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// The store [default: /var/lib/infradev for root, ~/.local/share/infradev for others]
    #[arg(long, global = true, value_name = "DIR")]
    store: Option<PathBuf>,
    /// A shared store that is only read, in place; may be repeated
    #[arg(long, global = true, value_name = "DIR")]
    store_ro: Vec<PathBuf>,
    /// A directory of recipes, instead of the configured ones; may be repeated, later ones lie over earlier ones
    #[arg(long = "catalog", global = true, value_name = "DIR")]
    catalogs: Vec<PathBuf>,
    /// Fetch a source repository from elsewhere, say a local copy
    #[arg(long = "mirror", global = true, value_name = "URL=PLACE", value_parser = parse_mirror)]
    mirrors: Vec<(String, String)>,
    /// How environments are put together [default: the first that works]
    #[arg(long, global = true, value_enum, value_name = "HOW")]
    back_end: Option<BackEnd>,
    /// Write data as JSON
    #[arg(long, global = true)]
    json: bool,
    /// How to show progress
    #[arg(long, global = true, value_enum, default_value_t, value_name = "HOW")]
    progress: ProgressChoice,
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: ColorChoice,
    /// Say nothing but warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Never use the network: what is not in the store is an error
    #[arg(long, global = true)]
    offline: bool,
}

fn parse_mirror(text: &str) -> Result<(String, String), String> {
    // The last sign separates: URLs may have queries, local paths rarely have signs.
    match text.rsplit_once('=') {
        Some((url, place)) if !url.is_empty() && !place.is_empty() => Ok((url.to_owned(), place.to_owned())),
        _ => Err("expected URL=PLACE, such as https://host/repository=/srv/copy".to_owned()),
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the quickstart tasks, check them, and show what they share
    Quickstart(commands::quickstart::QuickstartArgs),
    /// List the tasks of the catalog and which are built
    Ls(commands::ls::LsArgs),
    /// Show a task: its source, base, packages, steps and tests
    Show(commands::show::ShowArgs),
    /// Say what a build would do: hits, downloads, disk
    Plan(commands::plan::PlanArgs),
    /// Build environments: each step once, looked up before it is run
    Build(commands::build::BuildArgs),
    /// Forget built tasks; `gc` then frees what only they used
    Rm(commands::rm::RmArgs),
    /// Say why a step would run: what differs from the one that is there
    Why(commands::why::WhyArgs),
    /// Environments: mount them, run commands in them
    #[command(subcommand)]
    Env(commands::env::EnvCommand),
    /// Decide what environments install: every package with its hash
    Lock(commands::lock::LockArguments),
    /// Apply a patch, run the official tests, then the probes, and print a verdict
    Test(commands::test::TestArgs),
    /// Layers: list them, show what is in one
    #[command(subcommand)]
    Layer(commands::layer::LayerCommand),
    /// Show what uses the disk, and what sharing saved
    Du(commands::du::DuArgs),
    /// Remove what no task, pin or environment needs
    Gc(commands::gc::GcArgs),
    /// Keep the layers of a built task even after `rm`
    Pin {
        /// The task
        task: String,
        /// The name of the pin [default: the task's]
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove a pin
    Unpin {
        /// The name of the pin
        name: String,
    },
    /// Publish built tasks as container images, uploading only what is missing there
    Push(commands::push::PushArgs),
    /// Fetch published tasks, only what is missing here
    Pull(commands::pull::PullArgs),
    /// Keep what one job of a pipeline has built for the next
    #[command(subcommand)]
    Ci(commands::ci::CiCommand),
    /// Remove saved build steps that no task needs any more
    Prune(commands::prune::PruneArgs),
    /// Check that the store is whole
    Verify(commands::verify::VerifyArgs),
    /// Say what this machine and this store allow
    Doctor,
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show the settings
    Show {
        /// Also say where each comes from
        #[arg(long)]
        origin: bool,
    },
}

/// Runs the command line `arguments`; returns the program's exit code.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match CommandLine::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            // What runs commands fails with a status of its own, never with one that a command may have.
            let is_exec = arguments
                .windows(2)
                .any(|pair| pair[0] == "env" && matches!(pair[1].as_str(), "exec" | "shell"));
            let code = match (error.use_stderr(), is_exec) {
                (false, _) => 0,
                (true, true) => 125,
                (true, false) => 2,
            };
            let _closed_pipe = error.print();
            return ExitCode::from(code);
        }
    };
    let Global {
        store,
        store_ro,
        catalogs,
        mirrors,
        back_end,
        json,
        progress,
        color,
        quiet,
        verbose,
        offline,
    } = parsed.global;
    let config = Config::load(Overrides { store, store_ro, catalogs, back_end, offline, mirrors });
    let (no_color, ci) = config.as_ref().map_or((false, false), |config| (config.no_color, config.ci));
    let ui = Ui::new(UiOptions { json, quiet, verbose, color, progress, no_color, ci });
    let config = match config {
        Ok(config) => config,
        Err(error) => return fail(&ui, &error),
    };
    config.warnings.iter().for_each(|warning| ui.warn(warning));
    let session = Session::new(config, ui);
    match dispatch(&session, parsed.command) {
        Ok(code) => match session.ui.unwritten() {
            None => ExitCode::from(code),
            Some(reason) => {
                let text = format!("cannot write to standard output: {reason}");
                fail(&session.ui, &CommandError::new(Kind::Infrastructure, text))
            }
        },
        Err(error) => fail(&session.ui, &error),
    }
}

/// Refuses an argument that is no UTF-8, which the rest of the program could not pass on as it is.
pub fn refuse(argument: &str) -> ExitCode {
    let text = format!("the argument {argument:?} is not valid UTF-8\n");
    let _closed_pipe = CommandLine::command().error(clap::error::ErrorKind::InvalidUtf8, text).print();
    ExitCode::from(2)
}

fn fail(ui: &Ui, error: &CommandError) -> ExitCode {
    ui.error(error);
    ExitCode::from(error.code.unwrap_or_else(|| exit_code(error.kind)))
}

fn dispatch(session: &Session, command: Command) -> CommandResult<u8> {
    match command {
        Command::Quickstart(arguments) => commands::quickstart::run(session, &arguments),
        Command::Ls(arguments) => commands::ls::run(session, &arguments),
        Command::Show(arguments) => commands::show::run(session, &arguments),
        Command::Plan(arguments) => commands::plan::run(session, &arguments),
        Command::Build(arguments) => commands::build::run(session, &arguments),
        Command::Rm(arguments) => commands::rm::run(session, &arguments),
        Command::Why(arguments) => commands::why::run(session, &arguments),
        Command::Env(command) => commands::env::run(session, command),
        Command::Lock(arguments) => commands::lock::run(session, arguments),
        Command::Test(arguments) => commands::test::run(session, &arguments),
        Command::Layer(command) => commands::layer::run(session, command),
        Command::Du(arguments) => commands::du::run(session, &arguments),
        Command::Gc(arguments) => commands::gc::run(session, &arguments),
        Command::Pin { task, name } => commands::pin::pin(session, &task, name.as_deref()),
        Command::Unpin { name } => commands::pin::unpin(session, &name),
        Command::Push(arguments) => commands::push::run(session, &arguments),
        Command::Pull(arguments) => commands::pull::run(session, &arguments),
        Command::Ci(command) => commands::ci::run(session, &command),
        Command::Prune(arguments) => commands::prune::run(session, &arguments),
        Command::Verify(arguments) => commands::verify::run(session, &arguments),
        Command::Doctor => commands::doctor::run(session),
        Command::Completions { shell } => {
            let mut script = vec![];
            clap_complete::generate(shell, &mut CommandLine::command(), "infradev", &mut script);
            session.ui.print(&String::from_utf8_lossy(&script));
            Ok(0)
        }
        Command::Config(ConfigCommand::Show { origin }) => commands::config::show(session, origin),
    }
}
