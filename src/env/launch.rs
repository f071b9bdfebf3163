//! Starting a run from the outside, and learning how it ended.
//!
//! A run is three processes: this one, a *stage* that enters the new namespaces, and an *init*, process 1 of
//! the run, which mounts everything, gives up all privileges and starts the command. Each dies with the one
//! before it (PR_SET_PDEATHSIG), and the kernel ends a process namespace with its process 1: a run cannot
//! outlive this program, however it dies.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use oci_spec::runtime::Spec;
use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

use super::mount::Overlay;
use super::plan::Mapping;

/// The first word of the command lines by which this program starts itself.
pub(crate) const STAGE: &str = "__stage";
/// Likewise, for process 1 of a run.
pub(crate) const INIT: &str = "__init";
/// Likewise, for entering the namespaces of a holder.
pub(crate) const JOIN: &str = "__join";

/// Likewise, for a command that gets no namespaces.
pub(crate) const BARE: &str = "__bare";

/// Likewise, for trying a back end.
pub(crate) const TRIAL: &str = "__trial";

/// Everything that the stages need to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// What the run sees.
    pub spec: Spec,
    /// Where its root file system comes from.
    pub root: RootFileSystem,
    /// How its user ids are mapped.
    pub mapping: Mapping,
    /// The run can be released to outlive this program; for holders of mounts.
    pub detached: bool,
}

/// Where the root file system of a run comes from.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootFileSystem {
    /// Mounted inside the run, at the root path of the specification.
    Overlay(Overlay),
    /// Mounted already, at the root path of the specification.
    Mounted,
}

/// What the stages tell: one JSON value a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Notice {
    /// The command runs.
    Started,
    /// The surroundings could not be made.
    Failed { action: String, cause: String },
    /// There is no such program.
    NotFound { program: String },
    /// The program cannot be executed.
    NotExecutable { program: String, cause: String },
    /// The run no longer depends on who started it.
    Detached,
    /// The command ended.
    Ended { status: i32, loopback: Option<u64> },
}

/// A run that could not be started or observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// This side failed.
    #[error("cannot start the sandbox")]
    Start(#[source] io::Error),
    /// The stages failed.
    #[error("cannot {action}: {cause}")]
    Stage {
        /// What they were doing.
        action: String,
        /// Why it failed.
        cause: String,
    },
    /// The stages died without a word.
    #[error("the sandbox ended without a result ({0})")]
    Vanished(ExitStatus),
    /// There is no such program.
    #[error("`{0}` is not found in the environment")]
    NotFound(String),
    /// The program cannot be executed.
    #[error("`{program}` cannot be executed: {cause}")]
    NotExecutable {
        /// The program.
        program: String,
        /// Why.
        cause: String,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status; 128 + N if signal N ended it.
    pub status: i32,
    /// What its loopback device received in bytes; `None` if that could not be read, or on the host's network.
    pub loopback_bytes: Option<u64>,
}

/// A run in progress.
#[derive(Debug)]
pub struct Launched {
    /// The stage; its standard streams are the command's.
    pub child: Child,
    notices: io::BufReader<std::fs::File>,
}

/// The standard streams of a run.
#[derive(Debug)]
pub struct Streams {
    /// Standard input.
    pub input: Stdio,
    /// Standard output.
    pub output: Stdio,
    /// Standard error.
    pub error: Stdio,
}

impl Streams {
    /// Those of this program.
    pub fn inherited() -> Self {
        Self { input: Stdio::inherit(), output: Stdio::inherit(), error: Stdio::inherit() }
    }
}

/// Starts the run; returns once the stage process exists.
pub fn launch(plan: &LaunchPlan, streams: Streams) -> Result<Launched, LaunchError> {
    let start = || -> io::Result<Launched> {
        let memory: OwnedFd = rustix::fs::memfd_create("infradev-plan", MemfdFlags::empty())?;
        let mut file = std::fs::File::from(memory);
        file.write_all(&serde_json::to_vec(plan)?)?;
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::empty())?;
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC)?;
        let child = Command::new("/proc/self/exe")
            .args([STAGE, &file.as_raw_fd().to_string(), &writer.as_raw_fd().to_string()])
            .stdin(streams.input)
            .stdout(streams.output)
            .stderr(streams.error)
            .spawn()?;
        Ok(Launched { child, notices: io::BufReader::new(reader.into()) })
    };
    start().map_err(LaunchError::Start)
}

impl Launched {
    /// Waits until the command runs, or could not be started.
    pub fn wait_started(&mut self) -> Result<(), LaunchError> {
        match self.next_notice()? {
            Notice::Started => Ok(()),
            other => Err(self.failure(other)),
        }
    }

    /// Lets a detached run outlive this program; until then it dies with it, so that none is ever forgotten.
    ///
    /// Its standard input must be a pipe.
    pub fn release(&mut self) -> Result<(), LaunchError> {
        if let Some(mut input) = self.child.stdin.take() {
            input.write_all(b".").map_err(LaunchError::Start)?;
        }
        match self.next_notice()? {
            Notice::Detached => Ok(()),
            other => Err(self.failure(other)),
        }
    }

    /// Waits until the command has ended.
    pub fn wait_ended(&mut self) -> Result<Ended, LaunchError> {
        match self.next_notice()? {
            Notice::Ended { status, loopback } => {
                self.child.wait().map_err(LaunchError::Start)?;
                Ok(Ended { status, loopback_bytes: loopback })
            }
            other => Err(self.failure(other)),
        }
    }

    /// Ends the whole run at once, its orphans too.
    pub fn kill(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _nothing_to_learn = self.child.wait();
    }

    fn failure(&mut self, notice: Notice) -> LaunchError {
        let _nothing_to_learn = self.child.wait();
        match notice {
            Notice::NotFound { program } => LaunchError::NotFound(program),
            Notice::NotExecutable { program, cause } => LaunchError::NotExecutable { program, cause },
            Notice::Failed { action, cause } => LaunchError::Stage { action, cause },
            Notice::Started | Notice::Detached | Notice::Ended { .. } => {
                LaunchError::Start(io::Error::other("the sandbox reported out of order"))
            }
        }
    }

    fn next_notice(&mut self) -> Result<Notice, LaunchError> {
        let mut line = vec![];
        // Byte by byte from a buffer: a notice is a few dozen bytes.
        for byte in self.notices.by_ref().bytes() {
            match byte.map_err(LaunchError::Start)? {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
        if line.is_empty() {
            return Err(LaunchError::Vanished(self.child.wait().map_err(LaunchError::Start)?));
        }
        serde_json::from_slice(&line).map_err(|error| LaunchError::Start(error.into()))
    }

    /// Returns the root path of the run, as seen from outside; for holders.
    pub fn root_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.child.id()))
    }
}
