//! The storage seam: every change of the store's files is a value that passes here before it is made.
//!
//! In production nothing listens, and a change costs one look at an `Option`. Tests listen: they fail the n-th
//! change, tear it, or kill the process before it ([`crate::Store::open_with`]). What does not pass: the bytes
//! that SQLite writes (a transaction is announced as one [`Change::Index`]), and lock files, which hold nothing.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::RenameFlags;

use crate::error::{Context, Result};

/// A change that is about to be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Change<'a> {
    /// A file is made.
    Create {
        /// Where.
        path: &'a Path,
    },
    /// Bytes are added to the end of a file.
    Write {
        /// The file's name.
        path: &'a Path,
        /// The file, so that a test can tear the write.
        file: &'a File,
        /// What is written.
        bytes: &'a [u8],
    },
    /// The end of a file is cut off.
    Cut {
        /// The file's name.
        path: &'a Path,
    },
    /// A directory is made.
    MakeDirectory {
        /// Where.
        path: &'a Path,
    },
    /// A file or directory gets another name.
    Rename {
        /// Its name.
        from: &'a Path,
        /// Its new name.
        to: &'a Path,
    },
    /// A file, a link or an empty directory is removed.
    Remove {
        /// Its name.
        path: &'a Path,
    },
    /// A file or directory is synced.
    Sync {
        /// Its name.
        path: &'a Path,
    },
    /// The whole file system is synced.
    SyncFileSystem {
        /// The store's root.
        path: &'a Path,
    },
    /// A transaction of the index begins, or is about to be committed.
    Index {
        /// The database file.
        path: &'a Path,
    },
}

/// Sees every change before it is made. For tests; nothing in the program implements it.
pub trait Faults: Debug + Send + Sync {
    /// Returns an error to have the change fail without being made.
    fn before(&self, change: &Change<'_>) -> io::Result<()>;
}

/// The disk below a store, as the store changes it.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    faults: Option<Arc<dyn Faults>>,
}

/// A file that is being written.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    path: PathBuf,
    disk: Disk,
}

impl Disk {
    pub(crate) fn with(faults: Arc<dyn Faults>) -> Self {
        Self { faults: Some(faults) }
    }

    pub(crate) fn before(&self, change: &Change<'_>) -> io::Result<()> {
        match &self.faults {
            None => Ok(()),
            Some(faults) => faults.before(change),
        }
    }

    /// Makes a file of the given mode for writing; it must not exist.
    pub fn create(&self, path: &Path, mode: u32) -> io::Result<DiskFile> {
        self.before(&Change::Create { path })?;
        let file = OpenOptions::new().append(true).create_new(true).mode(mode).open(path)?;
        Ok(DiskFile { file, path: path.to_owned(), disk: self.clone() })
    }

    /// Makes a file with this content, so that a later rename, of it or of what it is in, never shows it empty
    /// after a power cut; returns it for syncing.
    pub fn create_with(&self, path: &Path, bytes: &[u8]) -> io::Result<DiskFile> {
        let mut file = self.create(path, 0o644)?;
        // A file that was truncated gets its blocks when it is closed (ext4's auto_da_alloc, XFS's flush on
        // close), and then its data before the journal has the rename. Costs no wait, unlike fsync.
        file.file.set_len(0)?;
        file.write_all(bytes)?;
        Ok(file)
    }

    /// Makes a directory.
    pub fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.before(&Change::MakeDirectory { path })?;
        fs::create_dir(path)
    }

    /// Renames `from` to `to`, replacing a file.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(&Change::Rename { from, to })?;
        fs::rename(from, to)
    }

    /// Renames `from` to `to` unless `to` exists.
    pub fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(&Change::Rename { from, to })?;
        let cwd = rustix::fs::CWD;
        Ok(rustix::fs::renameat_with(cwd, from, cwd, to, RenameFlags::NOREPLACE)?)
    }

    /// Removes a file.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.before(&Change::Remove { path })?;
        fs::remove_file(path)
    }

    /// Syncs a file or a directory.
    pub fn sync(&self, path: &Path) -> io::Result<()> {
        self.before(&Change::Sync { path })?;
        File::open(path)?.sync_all()
    }

    /// Syncs the file system that holds `path`.
    pub fn sync_file_system(&self, path: &Path) -> io::Result<()> {
        self.before(&Change::SyncFileSystem { path })?;
        Ok(rustix::fs::syncfs(File::open(path)?)?)
    }

    /// Removes a file or a tree, directories without permissions included; an absent one is fine.
    pub fn remove_tree(&self, path: &Path) -> Result<()> {
        let attempt = || match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_dir() => self.remove_file(path),
            Ok(_) if self.faults.is_some() => self.remove_each(path),
            Ok(_) => fs::remove_dir_all(path),
            Err(error) => Err(error),
        };
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                make_removable(path);
                attempt()
            }
            other => other,
        }
        .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        .at("remove", path)
    }

    /// Removes a tree change by change, so that each can fail.
    fn remove_each(&self, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => self.remove_each(&entry.path())?,
                false => self.remove_file(&entry.path())?,
            }
        }
        self.before(&Change::Remove { path })?;
        fs::remove_dir(path)
    }
}

/// Removes a file or a tree, directories without permissions included; an absent one is fine.
pub fn remove_tree(path: &Path) -> Result<()> {
    Disk::default().remove_tree(path)
}

/// Gives the owner write permission on every directory below `path`, where that is possible.
fn make_removable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    if metadata.is_dir() {
        let _the_removal_will_say = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            make_removable(&entry.path());
        }
    }
}

impl DiskFile {
    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Waits until the content is on the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.disk.before(&Change::Sync { path: &self.path })?;
        self.file.sync_all()
    }

    /// Replaces bytes at `offset`; what is written afterwards goes there too, so this comes last.
    pub(crate) fn overwrite(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.before(&Change::Write { path: &self.path, file: &self.file, bytes })?;
        // With O_APPEND, pwrite(2) appends.
        rustix::fs::fcntl_setfl(&self.file, rustix::fs::OFlags::empty())?;
        self.file.write_all_at(bytes, offset)
    }

    /// Shortens the file to `length` bytes.
    pub(crate) fn cut(&self, length: u64) -> io::Result<()> {
        self.disk.before(&Change::Cut { path: &self.path })?;
        self.file.set_len(length)
    }

    /// Adds `bytes` whole, or not at all.
    pub(crate) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        let written = self.disk.before(&Change::Write { path: &self.path, file: &self.file, bytes });
        let written = written.and_then(|()| (&self.file).write_all(bytes));
        written.inspect_err(|_| drop(self.file.set_len(before)))
    }
}

impl Write for DiskFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.before(&Change::Write { path: &self.path, file: &self.file, bytes })?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
