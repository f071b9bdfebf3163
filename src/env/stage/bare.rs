//! The start of a command that gets no namespaces: it dies with this program, and is itself from here on.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::Mode;
use rustix::process::{Pid, Signal};

/// The status of a program that cannot be executed, as a shell would give it.
const NOT_EXECUTABLE: i32 = 126;
/// The status of a program that is not found.
const NOT_FOUND: i32 = 127;

/// Becomes the command in `arguments`, which follows the process id of the program that asks for it.
pub(super) fn run(arguments: &[String]) -> i32 {
    let Some((parent, [program, arguments @ ..])) = arguments.split_first() else { return super::FAILED };
    if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return super::FAILED;
    }
    // Whoever asked may have died before that.
    if rustix::process::getppid().map(Pid::as_raw_nonzero).map(|id| id.to_string()).as_ref() != Some(parent) {
        return super::FAILED;
    }
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let error = Command::new(program).args(arguments).exec();
    let text = format!("{program}: {error}\n");
    let _the_status_says_it_too = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}
