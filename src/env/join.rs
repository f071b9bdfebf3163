//! Running a command in the namespaces of a holder, and passing signals on.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::holder::Holder;
use super::launch::JOIN;
use super::plan::Run;
use crate::error::{CommandError, CommandResult, Kind};

/// The process that gets this program's signals; 0 for none.
static RECEIVER: AtomicI32 = AtomicI32::new(0);

/// Keeps this program alive through SIGINT and its like, which reach the command by themselves or through
/// [`forward_to`].
pub(crate) fn forward_nothing() -> CommandResult {
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]).map_err(|error| {
        CommandError::new(Kind::Infrastructure, format!("cannot handle signals: {error}"))
    })?;
    std::thread::spawn(move || {
        let from_terminal = rustix::termios::isatty(std::io::stdin());
        for signal in signals.forever() {
            // A terminal sends its signals to the whole foreground group.
            let already_there = from_terminal && matches!(signal, SIGINT | SIGQUIT | SIGHUP);
            let receiver = Pid::from_raw(RECEIVER.load(Ordering::SeqCst));
            if let (false, Some(receiver), Some(signal)) =
                (already_there, receiver, Signal::from_named_raw(signal))
            {
                let _it_may_have_ended = rustix::process::kill_process(receiver, signal);
            }
        }
    });
    Ok(())
}

/// Sends this program's signals on to `process` from now on.
pub(crate) fn forward_to(process: Pid) {
    RECEIVER.store(process.as_raw_nonzero().get(), Ordering::SeqCst);
}

/// Runs a command in the namespaces of `holder`; returns its status.
pub(crate) fn join(holder: &Holder, run: &Run, input: Stdio) -> CommandResult<u8> {
    forward_nothing()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(JOIN).arg(holder.init.to_string()).arg(&run.directory).args(&run.command);
    command.env_clear().envs(&run.variables).stdin(input);
    let failed = |error: std::io::Error| {
        CommandError::new(Kind::Infrastructure, format!("cannot enter the environment: {error}"))
    };
    let mut child = command.spawn().map_err(failed)?;
    forward_to(Pid::from_child(&child));
    let status = child.wait().map_err(failed)?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u8)
}
