//! Where an export goes: complete beside its place first, then there at once.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use infradev_store::{Lock, remove_tree};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::Format;
use crate::error::{CommandError, CommandResult, Kind};

/// The place of an export, and the directory beside it that receives what is not yet whole.
#[derive(Debug)]
pub(crate) struct Place {
    target: PathBuf,
    staging: PathBuf,
    /// Two exports to one place, one after the other; and what a killed one left belongs to nobody.
    _lock: Lock,
}

/// Refuses a place that holds something, unless `force` is given and it is an earlier export.
pub(crate) fn check(target: &Path, format: Format, force: bool) -> CommandResult {
    let Ok(found) = fs::symlink_metadata(target) else { return Ok(()) };
    let is_empty = found.is_dir() && fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty && format.mark().is_some() {
        return Ok(());
    }
    let shown = target.display();
    let is_earlier = match format.mark() {
        Some(mark) => found.is_dir() && fs::symlink_metadata(target.join(mark)).is_ok(),
        None => found.is_file() && looks_like(format, target),
    };
    match (force, is_earlier) {
        (true, true) => Ok(()),
        (true, false) => Err(CommandError::usage(format!(
            "{shown} is no earlier export of the format {}, and is not replaced",
            format.word()
        ))
        .hint("remove it yourself, or choose another place")),
        (false, _) => Err(CommandError::usage(format!("{shown} exists already"))
            .hint("choose another place, or give --force to replace an earlier export")),
    }
}

/// Whether a file begins as exports of `format` do: squashfs with `hsqs`, an archive with the header of an entry.
fn looks_like(format: Format, file: &Path) -> bool {
    let mut head = [0; 512];
    let read = fs::File::open(file).and_then(|mut file| io::Read::read_exact(&mut file, &mut head));
    read.is_ok()
        && match format {
            Format::Squashfs => head.starts_with(b"hsqs"),
            _ => head[257..].starts_with(b"ustar"),
        }
}

impl Place {
    /// Makes ready to write to `target`, whose directory must exist.
    pub(crate) fn prepare(target: &Path) -> CommandResult<Self> {
        let (parent, name) = parts(target)?;
        let staging = parent.join(format!(".{}.infradev", name.to_string_lossy()));
        match fs::DirBuilder::new().mode(0o700).create(&staging) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CommandError::file("create", &staging, &error));
            }
            _ => {}
        }
        let Some(lock) = Lock::attempt(&staging.join("lock"))? else {
            let text = format!("another command is exporting to {}", target.display());
            return Err(CommandError::new(Kind::Infrastructure, text).hint("wait for it to end"));
        };
        let place = Self { target: parent.join(name), staging, _lock: lock };
        for left in [place.new_content(), place.old_content()] {
            remove_tree(&left)?;
        }
        Ok(place)
    }

    /// Where the new content is written, under a name that does not exist yet.
    pub(crate) fn new_content(&self) -> PathBuf {
        self.staging.join("new")
    }

    /// Where a tool's talk goes.
    pub(crate) fn log(&self) -> PathBuf {
        self.staging.join("log")
    }

    fn old_content(&self) -> PathBuf {
        self.staging.join("old")
    }

    /// Puts the new content, which is whole, in its place; what is there goes if `force` says so.
    pub(crate) fn publish(&self, force: bool) -> CommandResult {
        let (new, target) = (self.new_content(), &self.target);
        let failed = |error: io::Error| CommandError::file("rename what was written to", target, &error);
        let parent = target.parent().unwrap_or(target);
        let directory = fs::File::open(parent).map_err(failed)?;
        rustix::fs::syncfs(&directory).map_err(|error| failed(error.into()))?;
        match renameat_with(CWD, &new, CWD, target, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // An empty directory, or a file system without this kind of rename.
            Err(_) if fs::symlink_metadata(target).is_err() || is_empty_directory(target) => {
                fs::rename(&new, target).map_err(failed)?;
            }
            Err(_) if force => self.exchange()?,
            Err(error) => return Err(failed(error.into())),
        }
        directory.sync_all().map_err(failed)?;
        Ok(())
    }

    fn exchange(&self) -> CommandResult {
        let (new, target) = (self.new_content(), &self.target);
        let failed = |error: io::Error| CommandError::file("replace", target, &error);
        if renameat_with(CWD, &new, CWD, target, RenameFlags::EXCHANGE).is_err() {
            fs::rename(target, self.old_content()).map_err(failed)?;
            fs::rename(&new, target).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _the_next_export_removes_it = remove_tree(&self.staging);
    }
}

fn is_empty_directory(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns the directory of a place, made real, and its name there.
pub(crate) fn parts(target: &Path) -> CommandResult<(PathBuf, &std::ffi::OsStr)> {
    let wrong = || CommandError::usage(format!("{} names no place for an export", target.display()));
    let name = target.file_name().ok_or_else(wrong)?;
    let parent = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|error| {
        CommandError::usage(format!("{}: {error}", parent.display())).hint("make the directory first")
    })?;
    Ok((parent, name))
}
