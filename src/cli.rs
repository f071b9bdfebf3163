//! The command line: what may be typed, and which command it means.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::commands;
use crate::config::{Config, Overrides};
use crate::error::{CommandError, CommandResult, exit_code};
use crate::session::Session;
use crate::ui::{ColorChoice, ProgressChoice, Ui, UiOptions};

/// Shared, content-addressed environments for benchmarks of coding agents on AI infrastructure.
#[derive(Debug, Parser)]
#[command(
    name = "infradev",
    version,
    max_term_width = 100,
    propagate_version = true,
    after_help = "\
Exit codes: 0 done, 1 the work failed, 2 usage or configuration, 3 infrastructure or could not check,
4 not here and fetching was forbidden, 130 interrupted. `env exec` passes the command's own status on;
infradev's own failure is 125 there, 126 a program that cannot be executed, 127 one that is not found."
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
    /// A directory of recipes; later ones lie over earlier ones
    #[arg(long = "catalog", global = true, value_name = "DIR")]
    catalogs: Vec<PathBuf>,
    /// Fetch a source repository from elsewhere, say a local copy
    #[arg(long = "mirror", global = true, value_name = "URL=PLACE", value_parser = parse_mirror)]
    mirrors: Vec<(String, String)>,
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
    /// Environments: mount them, run commands in them
    #[command(subcommand)]
    Env(commands::env::EnvCommand),
    /// Decide what environments install: every package with its hash
    Lock(commands::lock::LockArguments),
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command line `arguments`; returns the program's exit code.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match CommandLine::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            let _closed_pipe = error.print();
            return ExitCode::from(code);
        }
    };
    let Global { store, catalogs, mirrors, json, progress, color, quiet, verbose, offline } = parsed.global;
    let config = Config::load(Overrides { store, catalogs, offline, mirrors });
    let (no_color, ci) = config.as_ref().map_or((false, false), |config| (config.no_color, config.ci));
    let ui = Ui::new(UiOptions { json, quiet, verbose, color, progress, no_color, ci });
    let config = match config {
        Ok(config) => config,
        Err(error) => return fail(&ui, &error),
    };
    config.warnings.iter().for_each(|warning| ui.warn(warning));
    let session = Session::new(config, ui);
    match dispatch(&session, parsed.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&session.ui, &error),
    }
}

fn fail(ui: &Ui, error: &CommandError) -> ExitCode {
    ui.error(error);
    ExitCode::from(error.code.unwrap_or_else(|| exit_code(error.kind)))
}

fn dispatch(session: &Session, command: Command) -> CommandResult<u8> {
    match command {
        Command::Env(command) => commands::env::run(session, command),
        Command::Lock(arguments) => commands::lock::run(session, arguments),
        Command::Completions { shell } => {
            let mut script = vec![];
            clap_complete::generate(shell, &mut CommandLine::command(), "infradev", &mut script);
            session.ui.print(&String::from_utf8_lossy(&script));
            Ok(0)
        }
    }
}
