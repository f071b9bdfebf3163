//! Waiting for a child in one thread: passing signals on, reaping whatever else ends.
//!
//! A thread would do for this elsewhere; a process whose children live in another process namespace than its
//! own cannot make any (clone(2), CLONE_THREAD).

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Signals caught from now on. Must exist before the child does, so that its end is not missed.
pub(super) struct Attendant {
    signals: Signals,
    from_terminal: bool,
}

impl Attendant {
    /// Begins to catch signals. Those of a terminal reach the whole foreground group, the child included, by
    /// themselves.
    pub(super) fn new(from_terminal: bool) -> io::Result<Self> {
        let caught = [SIGCHLD, SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2];
        Ok(Self { signals: Signals::new(caught)?, from_terminal })
    }

    /// Waits for `child`; returns its status, 128 + N if signal N ended it.
    pub(super) fn wait(mut self, child: Pid) -> i32 {
        loop {
            for signal in self.signals.wait() {
                let already_there = self.from_terminal && matches!(signal, SIGINT | SIGQUIT | SIGHUP);
                if signal != SIGCHLD
                    && !already_there
                    && let Some(signal) = Signal::from_named_raw(signal)
                {
                    let _it_may_have_ended = rustix::process::kill_process(child, signal);
                }
            }
            if let Some(status) = reap(child) {
                return status;
            }
        }
    }
}

/// Collects every child that has ended; returns the status of `child` if it is among them.
pub(super) fn reap(child: Pid) -> Option<i32> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == child {
            let status = ExitStatus::from_raw(status.as_raw());
            found = Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
    }
    found
}
