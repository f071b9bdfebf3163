//! `infradev prune`.

use clap::Args;

use crate::build::host::Host;
use crate::build::prepare;
use crate::error::CommandResult;
use crate::session::Session;
use crate::share::prune::prune;
use crate::ui::{bytes, counted};

/// Arguments of `prune`.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// The tasks whose steps stay
    #[arg(required = true)]
    selectors: Vec<String>,
    /// Where `ci save` has kept steps
    #[arg(long, value_name = "REMOTE")]
    remote: String,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(session: &Session, arguments: &PruneArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let (remote, _) = session.remote(&arguments.remote)?;
    let host = Host::inspect();
    let tasks = session.tasks(&arguments.selectors)?;
    let prepared = prepare(session, session.recipes(&tasks, None)?, &host)?;
    let pruned = prune(store, &prepared, &host, &*remote, arguments.dry_run, &session.ui)?;
    let word = if arguments.dry_run { "would remove" } else { "removed" };
    session.ui.data(&pruned, || {
        let lines: String = pruned.removed.iter().map(|tag| format!("{word} {tag}\n")).collect();
        let freed = match pruned.freed_bytes {
            0 => String::new(),
            freed => format!(", {} freed", bytes(freed)),
        };
        format!("{lines}kept {}{freed}\n", counted(pruned.kept, "step"))
    });
    Ok(0)
}
