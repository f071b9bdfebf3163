//! Environments held by a process: how users without privileges have a mount that lasts.
//!
//! The holder is a run whose command waits. Its process id is in the environment's directory; entering means
//! joining the namespaces of its process 1.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde::{Deserialize, Serialize};

use super::state::Environment;

/// A live holder: the content of an environment's `holder.json`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Holder {
    /// Its stage process, which lives as long as the namespaces do.
    pub stage: i32,
    /// Process 1 of its namespaces, as seen from outside.
    pub init: i32,
    /// When its process 1 was started, in clock ticks since boot: tells it from a later process of the same id.
    pub started: u64,
    /// Whether it was told to outlive its maker. One that was not dies with its maker, or was made by a
    /// command that was killed in between: nobody may count on it.
    pub released: bool,
}

impl Holder {
    /// Looks at the process `init`, started by `stage`.
    pub fn observe(stage: i32, init: i32) -> Option<Self> {
        Some(Self { stage, init, started: start_time(init)?, released: false })
    }

    /// Returns the holder of an environment, if it is alive and released.
    pub fn of(environment: &Environment) -> Option<Self> {
        Self::alive(environment).filter(|holder| holder.released)
    }

    /// Ends a holder that a killed command left behind unreleased. The caller has the environment's lock.
    pub fn end_forgotten(environment: &Environment) -> std::io::Result<()> {
        match Self::alive(environment).filter(|holder| !holder.released) {
            Some(holder) => holder.end(environment),
            None => Ok(()),
        }
    }

    fn alive(environment: &Environment) -> Option<Self> {
        let text = fs::read(path(environment)).ok()?;
        let holder: Self = serde_json::from_slice(&text).ok()?;
        (start_time(holder.init) == Some(holder.started)).then_some(holder)
    }

    /// Writes the holder into its environment.
    pub fn save(&self, environment: &Environment) -> std::io::Result<()> {
        // At once, since readers take no lock.
        let temporary = environment.path.join(".holder.json");
        fs::write(&temporary, serde_json::to_vec(self).expect("plain data"))?;
        fs::rename(&temporary, path(environment))
    }

    /// Ends the holder, and with it every process in its namespaces; waits until they are gone.
    pub fn end(&self, environment: &Environment) -> std::io::Result<()> {
        if let Some(pid) = Pid::from_raw(self.init)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && start_time(self.init) == Some(self.started)
        {
            rustix::process::pidfd_send_signal(&process, Signal::KILL)?;
            let mut poll = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
            rustix::event::poll(&mut poll, Some(&limit))?;
        }
        let _it_may_be_gone = fs::remove_file(path(environment));
        Ok(())
    }

    /// The root directory of the environment, as seen from outside.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.init))
    }
}

fn path(environment: &Environment) -> PathBuf {
    environment.path.join("holder.json")
}

/// Field 22 of /proc/PID/stat (proc_pid_stat(5)); the name in field 2 may hold anything but its last parenthesis.
fn start_time(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
}
