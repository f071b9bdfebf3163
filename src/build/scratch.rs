//! Commands of steps: run in a sandbox over a stack, their output kept in a log, what they wrote captured.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use infradev_layers::{Owners, Tree};
use infradev_recipes::PREFIX;
use infradev_store::Ingest;

use super::unconfined::WhenNeeded;
use super::{BUILD_MTIME, BuildError, Workshop, io};
use crate::env::capture::capture_as;
use crate::env::default_mapping;
use crate::env::image::{Sources, write_metadata, write_upper};
use crate::env::launch::{LaunchPlan, RootFileSystem, Streams, launch};
use crate::env::mount::{Overlay, Upper};
use crate::env::packs::{self, Needs};
use crate::env::plan::{Bind, Mapping, Network, Run, runtime_spec};

/// How large /tmp and /dev/shm of a step may grow, in bytes; they take memory only as they are filled.
const MEMORY_FILES: u64 = 8 << 30;

/// With less room than this beside a failed command, in bytes, the full disk is the better explanation.
const FULL: u64 = 1 << 20;

/// How many lines of a failed command are shown.
const TAIL_LINES: usize = 20;

/// A command of a step.
pub(crate) struct StepCommand<'a> {
    pub(crate) arguments: Vec<String>,
    pub(crate) directory: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) network: Network,
    pub(crate) binds: Vec<Bind>,
    pub(crate) log: &'a Path,
}

/// What a command ran over and wrote.
pub(crate) enum Scratch {
    /// The overlay's upper directory, or the copy.
    Upper(PathBuf),
    /// The real places.
    Places,
}

/// The variables of every step: constants, so that nothing of the caller reaches a layer.
pub(crate) fn variables() -> BTreeMap<String, String> {
    let constants = [
        ("PATH", format!("{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")),
        ("HOME", "/tmp".to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TZ", "UTC".to_owned()),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("PYTHONHASHSEED", "0".to_owned()),
        ("SOURCE_DATE_EPOCH", BUILD_MTIME.to_string()),
    ];
    constants.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Workshop<'_> {
    /// Runs `command` over the merged `tree`, which it may change.
    pub(crate) fn run(&self, tree: &Tree, command: StepCommand<'_>) -> Result<Scratch, BuildError> {
        if let Some(places) = self.places {
            places.get(&self.session.ui)?.write(self, tree)?;
            self.run_unconfined(places, command)?;
            return Ok(Scratch::Places);
        }
        let (overlay, root) = self.overlay(tree)?;
        let upper = overlay.upper.upper.clone();
        self.launch(overlay, &root, default_mapping(), command)?;
        Ok(Scratch::Upper(upper))
    }

    /// Returns what a command changed in `tree`, as a layer over it.
    pub(crate) fn changes(
        &self,
        scratch: &Scratch,
        tree: &Tree,
        ingest: &Ingest<'_>,
    ) -> Result<Tree, BuildError> {
        match (scratch, self.places) {
            (Scratch::Places, Some(places)) => places.get(&self.session.ui)?.changes(tree, ingest),
            (Scratch::Places, None) => unreachable!("a command ran there"),
            (Scratch::Upper(upper), _) => {
                Ok(capture_as(upper, self.back_end, Owners::Root, tree, ingest)?.tree)
            }
        }
    }

    /// Lends a command the directory `source`, which it finds at the place that is returned.
    pub(crate) fn lend(
        &self,
        binds: &mut Vec<Bind>,
        source: &Path,
        place: &str,
        writable: bool,
    ) -> Result<String, BuildError> {
        if self.places.is_some() {
            return Ok(source.to_string_lossy().into_owned());
        }
        if writable {
            make_reachable(source, default_mapping())?;
        }
        binds.push(Bind { source: source.to_owned(), destination: place.into(), writable });
        Ok(place.to_owned())
    }

    /// Runs `command` with what lies at the real places.
    pub(crate) fn run_unconfined(
        &self,
        places: &WhenNeeded,
        mut command: StepCommand<'_>,
    ) -> Result<(), BuildError> {
        let own = self.lease.new_directory("tmp")?.to_string_lossy().into_owned();
        for name in ["HOME", "TMPDIR"] {
            command.variables.insert(name.to_owned(), own.clone());
        }
        let output = open_log(command.log)?;
        let status = places.get(&self.session.ui)?.run(&command, output)?;
        self.judge(&command.arguments, status, command.log)
    }

    fn judge(&self, arguments: &[String], status: i32, log: &Path) -> Result<(), BuildError> {
        if status == 0 {
            return Ok(());
        }
        // A command that could not write says so in its own words, or not at all where its log is cut off, too.
        let store = self.store.layout().root();
        if self.store.free_bytes()? < FULL {
            return Err(io("write the output of a step below", store)(rustix::io::Errno::NOSPC.into()));
        }
        let (command, log) = (shell_words(arguments), log.to_owned());
        Err(BuildError::Command { command, status, tail: tail(&log), log })
    }

    /// Readies a mount of the merged `tree` with a fresh upper, and the place where it is mounted. Both go with
    /// the lease.
    pub(crate) fn overlay(&self, tree: &Tree) -> Result<(Overlay, PathBuf), BuildError> {
        let directory = self.lease.new_directory("scratch")?;
        let (back_end, mapping) = (self.back_end, default_mapping());
        let metadata = directory.join("metadata");
        let sources = Sources::of(self.store);
        let objects = tree.references();
        let packs = packs::ready(self.store, back_end, Needs::Objects(&objects), self.lease)?;
        write_metadata(tree, back_end, &sources, &metadata)?;
        for name in ["work", "merged"] {
            let path = directory.join(name);
            fs::create_dir(&path).map_err(io("create", &path))?;
            make_reachable(&path, mapping)?;
        }
        let upper = directory.join("upper");
        write_upper(|| Ok(tree.clone()), back_end, &sources.objects, mapping, &upper)?;
        let upper = Upper::on_disk(upper, directory.join("work"));
        let overlay = Overlay { back_end, metadata, objects: sources.objects, packs, upper };
        Ok((overlay, directory.join("merged")))
    }

    fn launch(
        &self,
        overlay: Overlay,
        root: &Path,
        mapping: Mapping,
        command: StepCommand<'_>,
    ) -> Result<(), BuildError> {
        let StepCommand { arguments, directory, variables, network, binds, log } = command;
        let run = Run {
            command: arguments.clone(),
            directory,
            variables,
            terminal: false,
            network,
            mapping,
            binds,
            memory_files: MEMORY_FILES,
            host_name: "infradev".to_owned(),
        };
        let spec = runtime_spec(&run, root).expect("every required field is given");
        let plan = LaunchPlan { spec, root: RootFileSystem::Overlay(overlay), mapping, detached: false };
        let output = open_log(log)?;
        let error = output.try_clone().map_err(io("open", log))?;
        let streams = Streams { input: Stdio::null(), output: output.into(), error: error.into() };
        let mut launched = launch(&plan, streams)?;
        launched.wait_started()?;
        self.judge(&arguments, launched.wait_ended()?.status, log)
    }
}

fn open_log(log: &Path) -> Result<File, BuildError> {
    if let Some(parent) = log.parent() {
        fs::create_dir_all(parent).map_err(io("create", parent))?;
    }
    File::options().create(true).append(true).open(log).map_err(io("open", log))
}

/// Lets the root of a run write to `path`, a directory of this program.
pub(crate) fn make_reachable(path: &Path, mapping: Mapping) -> Result<(), BuildError> {
    match mapping {
        Mapping::Range(first) => {
            std::os::unix::fs::chown(path, Some(first), Some(first)).map_err(io("change the owner of", path))
        }
        Mapping::Host | Mapping::Caller { .. } => Ok(()),
    }
}

/// Returns the last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Returns a command line as a person would type it, cut after its first line.
fn shell_words(arguments: &[String]) -> String {
    let line = arguments.join(" ");
    let first = line.trim().lines().next().unwrap_or_default();
    if first.len() < line.trim().len() { format!("{first} …") } else { first.to_owned() }
}
