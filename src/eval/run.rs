//! One run of an evaluation: a fresh environment over given trees, a time limit, measurements.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use infradev_layers::{Tree, merge};

use super::Evaluation;
use super::measure::{Measured, Sampler};
use crate::build::{BuildError, io};
use crate::env::default_mapping;
use crate::env::launch::{LaunchError, LaunchPlan, RootFileSystem, Streams, launch};
use crate::env::memory_files;
use crate::env::plan::{Bind, Network, Run, runtime_spec};

/// What is to run.
pub(super) struct Request<'a> {
    /// Layers over the task's environment, lowest first.
    pub(super) over: &'a [&'a Tree],
    pub(super) command: Vec<String>,
    pub(super) directory: PathBuf,
    /// Variables over the environment's.
    pub(super) variables: BTreeMap<String, String>,
    pub(super) binds: Vec<Bind>,
    /// Standard input; nothing if it is not given.
    pub(super) input: Option<&'a Path>,
    pub(super) limit: Duration,
    /// Receives standard output; standard error too, unless `errors` is given.
    pub(super) output: &'a Path,
    pub(super) errors: Option<&'a Path>,
}

/// How it went.
pub(super) struct Outcome {
    /// `None` if it was ended for taking too long.
    pub(super) status: Option<i32>,
    pub(super) measured: Measured,
    /// What was written.
    pub(super) upper: PathBuf,
}

impl Evaluation<'_> {
    pub(super) fn run(&self, request: Request<'_>) -> Result<Outcome, BuildError> {
        let tree = merge(std::iter::once(&self.below).chain(request.over.iter().copied()));
        let (overlay, root) = self.workshop.overlay(&tree)?;
        let upper = overlay.upper.upper.clone();
        let mut environment = self.built.run_variables();
        environment.extend(request.variables);
        let mut binds = self.workshop.host_binds(&tree);
        binds.extend(request.binds);
        let run = Run {
            command: request.command,
            directory: request.directory,
            variables: environment,
            terminal: false,
            network: Network::None,
            mapping: default_mapping(),
            binds,
            memory_files: memory_files(),
            host_name: "infradev".to_owned(),
        };
        let spec = runtime_spec(&run, &root).expect("every required field is given");
        let plan = LaunchPlan {
            spec,
            root: RootFileSystem::Overlay(overlay),
            mapping: run.mapping,
            detached: false,
        };
        let output = File::create(request.output).map_err(io("create", request.output))?;
        let errors = match request.errors {
            Some(path) => File::create(path).map_err(io("create", path))?,
            None => output.try_clone().map_err(io("open", request.output))?,
        };
        let input = match request.input {
            Some(path) => File::open(path).map_err(io("open", path))?.into(),
            None => Stdio::null(),
        };
        let streams = Streams { input, output: output.into(), error: errors.into() };
        let (status, measured) = attend(&plan, streams, request.limit)?;
        Ok(Outcome { status, measured, upper })
    }
}

fn attend(
    plan: &LaunchPlan,
    streams: Streams,
    limit: Duration,
) -> Result<(Option<i32>, Measured), BuildError> {
    let mut launched = launch(plan, streams)?;
    launched.wait_started()?;
    let began = Instant::now();
    let stage = launched.child.id();
    let sampler = Sampler::default();
    let late = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| sampler.sample(stage));
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let late = &late;
        scope.spawn(move || {
            // Ends early when the sender is dropped.
            if wait.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                late.store(true, Ordering::SeqCst);
                // The stage's death takes process 1 along, and that everything else.
                if let Some(stage) = rustix::process::Pid::from_raw(stage as i32) {
                    let _it_may_have_ended =
                        rustix::process::kill_process(stage, rustix::process::Signal::KILL);
                }
            }
        });
        let ended = launched.wait_ended();
        drop(done);
        sampler.stop();
        ended
    });
    let mut measured = Measured {
        wall_seconds: began.elapsed().as_secs_f64(),
        peak_memory_bytes: sampler.peak(),
        loopback_bytes: None,
    };
    match ended {
        Ok(ended) => {
            measured.loopback_bytes = ended.loopback_bytes;
            Ok((Some(ended.status), measured))
        }
        Err(LaunchError::Vanished(_)) if late.load(Ordering::SeqCst) => Ok((None, measured)),
        Err(error) => Err(error.into()),
    }
}
