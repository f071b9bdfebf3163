//! Opening a store, and making one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::disk::{Disk, Faults};
use crate::error::{Context, Error, Result};
use crate::index::Index;
use crate::layout::{DIRECTORIES, FORMAT, FORMAT_PREFIX, Layout};
use crate::pack::Tables;
use crate::repair::Doubts;

/// Whether a store is only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only; works on read-only file systems and without locks.
    Read,
    /// Read and write; makes the store if it is absent.
    Write,
}

/// What the file system below a store allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, xfs, btrfs and their like: everything.
    Local,
    /// tmpfs: no loop devices, lost at reboot.
    Memory,
    /// overlayfs: cannot hold an overlay's upper directory.
    Overlay,
    /// A network or user-space file system: only for reading. Holds its name.
    Remote(&'static str),
}

impl FileSystem {
    /// Judges the file system at `path` by its magic number (statfs(2)).
    pub fn of(path: &Path) -> Result<Self> {
        let statfs = rustix::fs::statfs(path).at("inspect", path)?;
        Ok(match statfs.f_type as u64 & 0xffff_ffff {
            0x0102_1994 => FileSystem::Memory,
            0x794c_7630 => FileSystem::Overlay,
            0x6969 => FileSystem::Remote("NFS"),
            0x0bd0_0bd0 => FileSystem::Remote("Lustre"),
            0x4750_4653 => FileSystem::Remote("GPFS"),
            0x0102_1997 => FileSystem::Remote("9p"),
            0x6573_5546 => FileSystem::Remote("FUSE"),
            0xff53_4d42 | 0xfe53_4d42 => FileSystem::Remote("SMB"),
            0x00c3_6400 => FileSystem::Remote("Ceph"),
            _ => FileSystem::Local,
        })
    }
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    layout: Layout,
    access: Access,
    file_system: FileSystem,
    disk: Disk,
    /// Opened when it is first asked: mounts do without.
    pub(crate) index: OnceLock<Mutex<Index>>,
    /// Stores of somebody else that are read in place, in the order in which they are searched.
    pub(crate) shared: Vec<Store>,
    pub(crate) doubts: Mutex<Doubts>,
    pub(crate) tables: Mutex<Tables>,
}

impl Store {
    /// Opens the store at `root`.
    ///
    /// For writing, makes it if the directory is absent or empty, and sweeps what dead processes left.
    pub fn open(root: &Path, access: Access) -> Result<Self> {
        Self::open_on(root, access, Disk::default())
    }

    /// Opens a store whose every change `faults` sees, and may fail: for tests.
    pub fn open_with(root: &Path, access: Access, faults: Arc<dyn Faults>) -> Result<Self> {
        Self::open_on(root, access, Disk::with(faults))
    }

    fn open_on(root: &Path, access: Access, disk: Disk) -> Result<Self> {
        let root = std::path::absolute(root).at("resolve", root)?;
        let layout = Layout::new(root);
        if access == Access::Write {
            create(&layout, &disk)?;
        }
        check_format(&layout)?;
        let file_system = FileSystem::of(layout.root())?;
        if access == Access::Write {
            rustix::fs::access(layout.root(), rustix::fs::Access::WRITE_OK).at("write to", layout.root())?;
        }
        let (index, doubts, tables, shared) = (OnceLock::new(), Mutex::default(), Mutex::default(), vec![]);
        let store = Self { layout, access, file_system, disk, index, shared, doubts, tables };
        if access == Access::Write {
            // Now, so that one which was lost is made before anything relies on it.
            drop(store.index()?);
            store.sweep()?;
        }
        Ok(store)
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What the file system below the store allows.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// How the store's files are changed.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Returns how many bytes the store's file system has left for this process (`f_bavail` of statvfs(3)).
    pub fn free_bytes(&self) -> Result<u64> {
        let path = self.layout.root();
        let found = rustix::fs::statvfs(path).at("examine", path)?;
        Ok(found.f_bavail * found.f_frsize)
    }

    /// Whether the store may be written.
    pub fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn writable(&self) -> Result<()> {
        match self.access {
            Access::Write => Ok(()),
            Access::Read => Err(Error::ReadOnly { path: self.layout.root().to_owned() }),
        }
    }
}

fn create(layout: &Layout, disk: &Disk) -> Result<()> {
    let root = layout.root();
    // An empty one is what a power cut left of a store in the making.
    if fs::metadata(layout.format()).is_ok_and(|metadata| metadata.len() > 0) {
        return Ok(());
    }
    let existing: PathBuf = root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned();
    if let FileSystem::Remote(kind) = FileSystem::of(&existing)? {
        return Err(Error::FileSystem { path: root.to_owned(), kind });
    }
    fs::create_dir_all(root).at("create", root)?;
    let known =
        |name: &str| name == "commit.lock" || DIRECTORIES.contains(&name) || name.starts_with("format");
    if !crate::lease::names(root)?.iter().all(|name| known(name)) {
        return Err(Error::NotAStore { path: root.to_owned() });
    }
    for name in DIRECTORIES {
        make_directory(disk, &layout.directory(name))?;
    }
    for prefix in 0..=255 {
        make_directory(disk, &layout.objects().join(format!("{prefix:02x}")))?;
    }
    // The format file comes last and at once: a store without it is finished by whoever opens it next. It is
    // synced after the directories were made, so it never outlives one of them.
    let text = format!("{FORMAT_PREFIX}{FORMAT}\n");
    crate::roots::replace_durably(layout, disk, &layout.format(), text.as_bytes())
}

fn make_directory(disk: &Disk, path: &Path) -> Result<()> {
    match disk.create_directory(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error).at("create", path),
        _ => Ok(()),
    }
}

fn check_format(layout: &Layout) -> Result<()> {
    let path = layout.format();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Absent { path: layout.root().to_owned() });
        }
        Err(error) => return Err(error).at("read", &path),
    };
    let number = text.trim_end().strip_prefix(FORMAT_PREFIX);
    match number.and_then(|number| number.parse::<u32>().ok()) {
        Some(FORMAT) => Ok(()),
        _ => {
            let found = number.unwrap_or(text.trim_end()).to_owned();
            Err(Error::NewerFormat { path: layout.root().to_owned(), found, known: FORMAT })
        }
    }
}
