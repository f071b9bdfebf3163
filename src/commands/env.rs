//! `infradev env`: environments.

use clap::Subcommand;

use crate::error::CommandResult;
use crate::session::Session;

/// What to do with environments.
#[derive(Debug, Subcommand)]
pub(crate) enum EnvCommand {
    /// List them
    Ls,
}

pub(crate) fn run(session: &Session, command: EnvCommand) -> CommandResult<u8> {
    let _ = session;
    match command {
        EnvCommand::Ls => Ok(0),
    }
}
