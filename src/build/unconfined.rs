//! Commands of steps without a sandbox: at the real /opt/env and /workspace of a machine that has no namespaces.
//!
//! For continuous integration in containers. The two places belong to one build at a time, by a lock that its
//! commands inherit: while anything that a killed build started still runs, nobody else takes them. What lies in
//! them and is noted in a lock that is free was left by such a build, and is removed; anything else there is refused.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use infradev_layers::{
    Kind, Owners, ScanOptions, Supply, Tree, TreeBuilder, TreePath, delta, merge, scan, write_files,
};
use infradev_recipes::StepRecord;
use infradev_store::{ActionRecord, Ingest, Lock};
use rustix::fs::FlockOperation;
use serde::Deserialize;

use super::scratch::StepCommand;
use super::{BuildError, Workshop};
use crate::env::launch::BARE;
use crate::materialize::{below, real_places};
use crate::ui::Ui;

const ENVIRONMENT: &str = "/opt/env";
const WORKSPACE: &str = "/workspace";
/// The lock, and the notes of what was written.
const LOCK: &str = "/workspace/.infradev-build";

/// The real places of environments, for a build of one step at a time that may not need them.
#[derive(Debug, Default)]
pub(crate) struct WhenNeeded(OnceLock<RealPlaces>);

impl WhenNeeded {
    /// Takes the places, the first time.
    pub(crate) fn get(&self, ui: &Ui) -> Result<&RealPlaces, BuildError> {
        if let Some(places) = self.0.get() {
            return Ok(places);
        }
        let places = RealPlaces::take()?;
        ui.warn(
            "commands of recipes run without a sandbox: they see this machine and its network, and nobody else will take their results for those of a sandbox",
        );
        Ok(self.0.get_or_init(|| places))
    }
}

/// The real places of environments, taken for the commands of one build.
#[derive(Debug)]
pub(crate) struct RealPlaces {
    lock: Lock,
}

impl RealPlaces {
    /// Takes them; removes what a build that was killed has left there.
    fn take() -> Result<Self, BuildError> {
        for parent in ["/opt", WORKSPACE] {
            fs::create_dir_all(parent).map_err(at("create", Path::new(parent)))?;
        }
        loop {
            let lock =
                Lock::attempt(Path::new(LOCK)).map_err(|error| at("lock", Path::new(LOCK))(error.into_io()));
            let Some(lock) = lock? else {
                return Err(BuildError::Lent { lock: LOCK.into() });
            };
            // Whoever had it before may have removed it in between.
            if !is_at(lock.file(), Path::new(LOCK)) {
                match fs::symlink_metadata(LOCK) {
                    Ok(found) if found.is_symlink() => {
                        return Err(BuildError::Occupied { path: LOCK.into() });
                    }
                    _ => continue,
                }
            }
            sweep(lock.file())?;
            if let Some(path) = [ENVIRONMENT, WORKSPACE].into_iter().find(|path| !is_empty(path)) {
                fs::remove_file(LOCK).map_err(at("remove", Path::new(LOCK)))?;
                return Err(BuildError::Occupied { path: path.into() });
            }
            return Ok(Self { lock });
        }
    }

    /// Removes everything at the places but the lock.
    fn clear(&self) -> Result<(), BuildError> {
        remove(Path::new(ENVIRONMENT))?;
        let workspace = Path::new(WORKSPACE);
        for entry in fs::read_dir(workspace).map_err(at("list", workspace))?.flatten() {
            if entry.path() != Path::new(LOCK) {
                remove(&entry.path())?;
            }
        }
        self.lock.file().set_len(0).map_err(at("write", Path::new(LOCK)))
    }

    /// Writes `tree` to the places, as files that may be changed.
    pub(crate) fn write(&self, workshop: &Workshop<'_>, tree: &Tree) -> Result<(), BuildError> {
        self.clear()?;
        let objects = workshop.store.object_directories();
        for (place, root) in real_places(tree) {
            if let Some(parent) = place.parent() {
                fs::create_dir_all(parent).map_err(at("create", parent))?;
            }
            // Before and after: what is there may be removed by the next build only if it is this very directory.
            note(self.lock.file(), &place.to_string_lossy())?;
            write_files(&below(tree, &root), &objects, Owners::Root, Supply::Any, &place)
                .map_err(|error| BuildError::Stack(error.into()))?;
            let (device, inode) = identity(&place).map_err(at("look at", &place))?;
            note(self.lock.file(), &format!("{}\t{device}\t{inode}", place.display()))?;
        }
        Ok(())
    }

    /// Returns what was changed there since `tree` was written, as a layer over it.
    pub(crate) fn changes(&self, tree: &Tree, ingest: &Ingest<'_>) -> Result<Tree, BuildError> {
        let mut changes = TreeBuilder::new();
        for (place, root) in real_places(tree) {
            let before = below(tree, &root);
            let options = ScanOptions { copy_of: Some(&before), ..ScanOptions::plain(Owners::Root) };
            let after = merge([&scan(&place, options, ingest)?.tree]);
            for entry in delta(&before, &after).entries().iter().filter(|entry| !entry.path.is_root()) {
                let kind = match &entry.kind {
                    Kind::Hardlink { first } => Kind::Hardlink { first: moved_below(&root, first) },
                    kind => kind.clone(),
                };
                changes.add(moved_below(&root, &entry.path), kind)?;
            }
        }
        Ok(changes.finish()?)
    }

    /// Runs a command as it stands, with what is at the places; its output goes to `log`.
    pub(crate) fn run(&self, command: &StepCommand<'_>, log: File) -> Result<i32, BuildError> {
        let failed = |error| BuildError::Launch(crate::env::launch::LaunchError::Start(error));
        let error = log.try_clone().map_err(failed)?;
        rustix::io::fcntl_setfd(self.lock.file(), rustix::io::FdFlags::empty())
            .map_err(|error| failed(error.into()))?;
        let mut child = Command::new("/proc/self/exe")
            .arg(BARE)
            .arg(std::process::id().to_string())
            .args(&command.arguments)
            .env_clear()
            .envs(&command.variables)
            .current_dir(&command.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(error)
            .spawn()
            .map_err(failed)?;
        let status = child.wait().map_err(failed)?;
        Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    }
}

impl Drop for RealPlaces {
    fn drop(&mut self) {
        // If something cannot be removed, the lock's file stays, and the next build tries again.
        if self.clear().is_ok() {
            let _it_was_ours = fs::remove_file(LOCK);
        }
        // For every process that inherited it, too.
        let _it_is_held = rustix::fs::flock(self.lock.file(), FlockOperation::Unlock);
    }
}

/// Whether a step was run without a sandbox; then only the store in which it ran believes it.
pub(crate) fn is_unconfined(record: &ActionRecord) -> bool {
    StepRecord::deserialize(&record.record).is_ok_and(|record| record.is_unconfined())
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BuildError + use<> {
    let path = path.to_owned();
    move |source| BuildError::Place { action, path, source }
}

/// Adds a line to the lock's file.
fn note(mut lock: &File, line: &str) -> Result<(), BuildError> {
    let written = lock.seek(SeekFrom::End(0)).and_then(|_| lock.write_all(format!("{line}\n").as_bytes()));
    written.map_err(at("write", Path::new(LOCK)))
}

/// Removes the directories that a killed build has noted, unless others are in their places by now.
fn sweep(mut lock: &File) -> Result<(), BuildError> {
    let mut text = String::new();
    lock.read_to_string(&mut text).map_err(at("read", Path::new(LOCK)))?;
    let noted: BTreeMap<&str, Option<&str>> = text
        .lines()
        .map(|line| line.split_once('\t').map_or((line, None), |(path, id)| (path, Some(id))))
        .collect();
    for (path, noted) in noted {
        let found = identity(Path::new(path)).ok().map(|(device, inode)| format!("{device}\t{inode}"));
        // One that was begun and not finished is noted by its name alone.
        if is_real_place(path) && (noted.is_none() || noted == found.as_deref()) {
            remove(Path::new(path))?;
        }
    }
    lock.set_len(0).map_err(at("write", Path::new(LOCK)))
}

fn remove(path: &Path) -> Result<(), BuildError> {
    infradev_store::remove_tree(path).map_err(|error| at("remove", path)(error.into_io()))
}

fn is_real_place(path: &str) -> bool {
    let name = path.strip_prefix(WORKSPACE).and_then(|name| name.strip_prefix('/'));
    path == ENVIRONMENT || name.is_some_and(|name| !name.contains('/') && !matches!(name, "" | "." | ".."))
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn is_empty(path: &str) -> bool {
    // A link is somebody's, wherever it leads; only the workspace may be one, to a larger disk.
    if path == ENVIRONMENT && fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        return false;
    }
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().all(|entry| entry.path() == Path::new(LOCK)),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(there)) = (file.metadata(), identity(path)) else { return false };
    (held.dev(), held.ino()) == there
}

fn moved_below(root: &TreePath, path: &TreePath) -> TreePath {
    path.components().try_fold(root.clone(), |at, name| at.join(name)).expect("names of a tree")
}
