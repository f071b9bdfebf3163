//! `infradev rm`.

use clap::Args;
use infradev_store::RootKind;

use crate::build::root::BuiltTask;
use crate::error::{CommandError, CommandResult};
use crate::session::Session;

/// Arguments of `rm`.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Built tasks, such as verl/3567 or verl/3567@cpu; or `all`
    #[arg(required = true)]
    tasks: Vec<String>,
    /// Only say what would be forgotten
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(session: &Session, arguments: &RmArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let all = BuiltTask::all(store)?;
    let mut names = vec![];
    for task in &arguments.tasks {
        let matches = |built: &&BuiltTask| {
            let id = built.task.rsplit_once('/').map(|(_, id)| id);
            built.name() == *task || built.task == *task || id == Some(task) || task == "all"
        };
        let found: Vec<String> = all.iter().filter(matches).map(BuiltTask::name).collect();
        if found.is_empty() {
            return Err(CommandError::usage(format!("`{task}` is not built in this store"))
                .hint("`infradev ls` shows what is"));
        }
        names.extend(found);
    }
    for name in names {
        if arguments.dry_run {
            session.ui.note(format!("would forget {name}"));
        } else if !store.remove_root(RootKind::Task, &name)? {
            return Err(CommandError::usage(format!("{name} is built in a shared store only"))
                .hint("who owns that store can forget it there"));
        } else {
            session.ui.note(format!("forgot {name}; `infradev gc` frees what only it used"));
        }
    }
    Ok(0)
}
