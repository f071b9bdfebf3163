//! `infradev test`.

use clap::Args;

use crate::error::CommandResult;
use crate::session::Session;

/// Arguments of `test`.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// The task
    task: String,
}

pub(crate) fn run(_: &Session, _: &TestArgs) -> CommandResult<u8> {
    Ok(0)
}
