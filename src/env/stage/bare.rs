//! Process 1 of a command that gets no namespaces: it ends everything that the command started, when that has ended
//! or when this program has.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::Mode;
use rustix::process::{Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::attend::reap;
use super::init::{NOT_EXECUTABLE, NOT_FOUND};

/// Runs the command in `arguments`, which follows the process id of the program that asks for it; returns its status.
pub(super) fn run(arguments: &[String]) -> i32 {
    let Some((parent, [program, arguments @ ..])) = arguments.split_first() else { return super::FAILED };
    // Orphans of the command become children of this process (PR_SET_CHILD_SUBREAPER).
    let adopts = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let (Ok(()), Ok(signals)) = (adopts, Signals::new([SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM])) else {
        return super::FAILED;
    };
    if rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).is_err() {
        return super::FAILED;
    }
    // Whoever asked may have died before that.
    if rustix::process::getppid().map(Pid::as_raw_nonzero).map(|id| id.to_string()).as_ref() != Some(parent) {
        return super::FAILED;
    }
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let status = match Command::new(program).args(arguments).arg0(program).spawn() {
        Ok(child) => wait(signals, Pid::from_child(&child)),
        Err(error) => {
            let text = format!("{program}: {error}\n");
            let _the_status_says_it_too = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
            if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
        }
    };
    // What is left in the background would change files under the scan, and under the next command.
    end_all();
    status
}

/// Waits until the command has ended, or this process is told to end.
fn wait(mut signals: Signals, command: Pid) -> i32 {
    loop {
        for signal in signals.wait() {
            if signal != SIGCHLD {
                return 128 + signal;
            }
            if let Some(status) = reap(command) {
                return status;
            }
        }
    }
}

/// Ends the children of this process, and those that it gets by that.
fn end_all() {
    loop {
        let listed = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
        let children: Vec<Pid> =
            listed.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect();
        if children.is_empty() {
            return;
        }
        for child in children {
            let _it_may_have_ended = rustix::process::kill_process(child, Signal::KILL);
            let _nothing_to_learn = rustix::process::waitpid(Some(child), WaitOptions::empty());
        }
    }
}
