//! A directory on disk, read as a tree whose files become objects: plain directories and overlay uppers.
//!
//! Uppers may come from untrusted code. Nothing is followed: every name is opened relative to its directory
//! with `O_NOFOLLOW`, and content is copied while it is hashed, so the store never shares an inode with the
//! outside.

mod seen;
mod upper;

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use infradev_store::{Ingest, LayerId, PutError};
use rayon::prelude::*;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::entry::{Content, Kind, Metadata, Xattr, xattr_allowed};
use crate::path::{PathError, TreePath};
use crate::tree::{Tree, TreeBuilder, TreeError};
use seen::Stamp;
use upper::{Below, Moved};

pub use seen::Seen;

/// How owners on disk become owners in the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// As they are.
    Keep,
    /// Everything belongs to root: builds, sources, and directories of an ordinary user.
    Root,
    /// The range that begins here was mapped to 0; owners outside it become root.
    Shifted(u32),
}

impl Owners {
    fn map(self, id: u32) -> u32 {
        match self {
            Owners::Keep => id,
            Owners::Root => 0,
            Owners::Shifted(first) => id.checked_sub(first).filter(|&id| id < 65536).unwrap_or(0),
        }
    }
}

/// How a directory is read.
#[derive(Debug, Clone, Copy)]
pub struct ScanOptions<'a> {
    /// How owners are mapped.
    pub owners: Owners,
    /// Later modification times become this one, in seconds since 1970.
    pub latest: i64,
    /// For an overlay upper, the merged tree that lies below it.
    pub upper_of: Option<&'a Tree>,
    /// For a copy that was changed, the merged tree that was copied. What is unchanged is read, since a size and
    /// a time can be forged, and put nowhere.
    pub copy_of: Option<&'a Tree>,
    /// For a directory that was scanned before with the same options, what was found then.
    pub seen: Option<&'a Seen>,
}

impl ScanOptions<'_> {
    /// Reads a plain directory.
    pub fn plain(owners: Owners) -> Self {
        Self { owners, latest: i64::MAX, upper_of: None, copy_of: None, seen: None }
    }
}

/// What a scan found.
#[derive(Debug)]
pub struct Scanned {
    /// The tree, without the objects' bytes, which are in the batch.
    pub tree: Tree,
    /// Devices, FIFOs and sockets, which no layer can hold.
    pub dropped: Vec<TreePath>,
    stamps: HashMap<TreePath, Stamp>,
    /// In nanoseconds since 1970.
    began: i64,
}

impl Scanned {
    /// Returns what [`Seen::decode`] makes of use to the next scan of the same directory. `layer` is the id of the
    /// tree, which is not computed once more.
    pub fn seen(&self, layer: LayerId, owners: Owners) -> Vec<u8> {
        seen::encode(self, layer, owners)
    }
}

/// A directory that cannot be read as a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// A system call failed.
    #[error("cannot read {path}")]
    Read {
        /// The path, relative to the scanned directory.
        path: TreePath,
        /// Why.
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
    /// A name cannot stand in a layer.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The entries are no tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// An upper refers to something that its lower tree does not have.
    #[error("{path} refers to {target}, which does not lie below the upper")]
    Upper {
        /// The path in the upper.
        path: TreePath,
        /// What it refers to.
        target: String,
    },
}

/// Reads the directory at `root` into a tree and its files into `ingest`, in parallel.
pub fn scan(root: &Path, options: ScanOptions<'_>, ingest: &Ingest<'_>) -> Result<Scanned, ScanError> {
    let fail = |source: rustix::io::Errno| ScanError::Read { path: TreePath::root(), source: source.into() };
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(root, flags, Mode::empty()).map_err(fail)?;
    let mut walk = Walk {
        options,
        builder: TreeBuilder::new(),
        files: vec![],
        names: HashMap::new(),
        moved: Moved::default(),
        dropped: vec![],
        stamps: HashMap::new(),
    };
    walk.builder.add(TreePath::root(), Kind::ImpliedDirectory)?;
    walk.directory(&directory, &TreePath::root(), &Below::root())?;
    let Walk { mut builder, files, dropped, stamps, .. } = walk;
    let kinds: Vec<Result<Kind, ScanError>> =
        files.par_iter().map(|file| put(&directory, file, &options, ingest)).collect();
    for (file, kind) in files.into_iter().zip(kinds) {
        builder.add(file.path, kind?)?;
    }
    Ok(Scanned { tree: builder.finish()?, dropped, stamps, began })
}

struct Walk<'a> {
    options: ScanOptions<'a>,
    builder: TreeBuilder,
    files: Vec<PendingFile>,
    /// The first path seen of each inode that has several names.
    names: HashMap<(u64, u64), TreePath>,
    moved: Moved,
    dropped: Vec<TreePath>,
    stamps: HashMap<TreePath, Stamp>,
}

struct PendingFile {
    path: TreePath,
    metadata: Metadata,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &OwnedFd, path: &TreePath, below: &Below) -> Result<(), ScanError> {
        let fail = |path: &TreePath| {
            let path = path.clone();
            move |source: rustix::io::Errno| ScanError::Read { path, source: source.into() }
        };
        let mut listed = HashSet::new();
        for entry in rustix::fs::Dir::read_from(directory).map_err(fail(path))? {
            let entry = entry.map_err(fail(path))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let at = path.join(name.to_bytes())?;
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail(&at))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let inner =
                        rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(fail(&at))?;
                    let xattrs = read_xattrs(&inner, &at)?;
                    let inner_below = self.add_directory(&at, &stat, xattrs, below)?;
                    self.directory(&inner, &at, &inner_below)?;
                }
                FileType::RegularFile => self.add_file(directory, name, at, &stat, below)?,
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(directory, name, vec![]).map_err(fail(&at))?;
                    let metadata = Metadata { mode: 0o777, ..self.metadata(&stat, vec![]) };
                    let kind = Kind::Symlink { metadata, target: target.into_bytes().into() };
                    self.add_named(at, &stat, kind)?;
                }
                FileType::CharacterDevice if self.options.upper_of.is_some() && stat.st_rdev == 0 => {
                    self.hide(at, below)?;
                }
                _ => {
                    // What it replaced is gone all the same.
                    self.hide(at.clone(), below)?;
                    self.dropped.push(at);
                }
            }
            listed.insert(name.to_bytes().to_vec());
        }
        match (self.options.upper_of, below.origin_elsewhere()) {
            (Some(lower), Some(origin)) => self.moved.expand(path, origin, &listed, lower, &mut self.builder),
            _ => Ok(()),
        }
    }

    /// Adds a whiteout where there is something to hide.
    fn hide(&mut self, path: TreePath, below: &Below) -> Result<(), ScanError> {
        if self.options.upper_of.is_some_and(|lower| below.shows(&path, lower).is_some()) {
            self.builder.add(path, Kind::Whiteout)?;
        }
        Ok(())
    }

    fn add_directory(
        &mut self,
        path: &TreePath,
        stat: &rustix::fs::Stat,
        xattrs: Xattrs,
        below: &Below,
    ) -> Result<Below, ScanError> {
        let metadata = self.metadata(stat, allowed(&xattrs));
        let Some(lower) = self.options.upper_of else {
            self.builder.add(path.clone(), Kind::Directory { metadata, opaque: false })?;
            return Ok(Below::root());
        };
        let inner = below.directory(path, &xattrs, lower, &mut self.moved)?;
        self.builder.add(path.clone(), upper::directory_kind(metadata, below.shows(path, lower), &inner))?;
        Ok(inner)
    }

    fn add_file(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        path: TreePath,
        stat: &rustix::fs::Stat,
        below: &Below,
    ) -> Result<(), ScanError> {
        if let Some(first) = self.known_name(&path, stat) {
            self.builder.add(path, Kind::Hardlink { first })?;
            return Ok(());
        }
        if self.options.upper_of.is_none() {
            self.stamps.insert(path.clone(), Stamp::of(stat));
        }
        if let Some(kind) = self.options.seen.and_then(|seen| seen.unchanged(&path, stat)) {
            self.builder.add(path, kind.clone())?;
            return Ok(());
        }
        let mut metadata = self.metadata(stat, vec![]);
        // In an upper, the attributes say what the file is; elsewhere they are read with the content, in parallel.
        if let Some(lower) = self.options.upper_of {
            let xattrs = read_xattrs(&open_file(directory, name, &path)?, &path)?;
            metadata.xattrs = allowed(&xattrs);
            if upper::overlay_xattr(&xattrs, b"whiteout").is_some() && stat.st_size == 0 {
                return self.hide(path, below);
            }
            if upper::overlay_xattr(&xattrs, b"metacopy").is_some() {
                let content = below.content(&path, &xattrs, lower)?;
                self.builder.add(path, Kind::File { metadata, content })?;
                return Ok(());
            }
        }
        self.files.push(PendingFile { path, metadata });
        Ok(())
    }

    fn add_named(&mut self, path: TreePath, stat: &rustix::fs::Stat, kind: Kind) -> Result<(), ScanError> {
        let kind = self.known_name(&path, stat).map_or(kind, |first| Kind::Hardlink { first });
        Ok(self.builder.add(path, kind)?)
    }

    /// Returns the first path of the inode, if another of its names was seen before.
    fn known_name(&mut self, path: &TreePath, stat: &rustix::fs::Stat) -> Option<TreePath> {
        if stat.st_nlink < 2 {
            return None;
        }
        let first = self.names.entry((stat.st_dev, stat.st_ino)).or_insert_with(|| path.clone());
        (first != path).then(|| first.clone())
    }

    fn metadata(&self, stat: &rustix::fs::Stat, xattrs: Xattrs) -> Metadata {
        Metadata {
            uid: self.options.owners.map(stat.st_uid),
            gid: self.options.owners.map(stat.st_gid),
            xattrs,
            ..Metadata::new(stat.st_mode, stat.st_mtime.min(self.options.latest))
        }
    }
}

/// Extended attributes by full name, sorted.
type Xattrs = Vec<Xattr>;

/// Returns the extended attributes of `file` that a layer may hold.
pub(crate) fn read_allowed_xattrs(file: impl AsFd) -> Result<Xattrs, rustix::io::Errno> {
    Ok(allowed(&list_xattrs(file)?))
}

fn allowed(xattrs: &Xattrs) -> Xattrs {
    xattrs.iter().filter(|(name, _)| xattr_allowed(name)).cloned().collect()
}

fn open_file(
    directory: impl AsFd,
    name: impl rustix::path::Arg,
    path: &TreePath,
) -> Result<OwnedFd, ScanError> {
    // Not blocking: a FIFO put in place of the file since it was listed must not hang the scan.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fail = |source: rustix::io::Errno| ScanError::Read { path: path.clone(), source: source.into() };
    rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(fail)
}

fn put(
    root: &OwnedFd,
    file: &PendingFile,
    options: &ScanOptions<'_>,
    ingest: &Ingest<'_>,
) -> Result<Kind, ScanError> {
    let opened = open_below(root, &file.path)?;
    let mut metadata = file.metadata.clone();
    if options.upper_of.is_none() {
        metadata.xattrs = allowed(&read_xattrs(&opened, &file.path)?);
    }
    let content = put_content(opened.into(), file, options.copy_of, ingest)?;
    Ok(Kind::File { metadata, content })
}

fn put_content(
    mut content: File,
    file: &PendingFile,
    copy_of: Option<&Tree>,
    ingest: &Ingest<'_>,
) -> Result<Content, ScanError> {
    let fail = |source: io::Error| ScanError::Read { path: file.path.clone(), source };
    if let Some(copied) = copy_of.and_then(|tree| content_at(tree, &file.path))
        && copied.size() == content.metadata().map_err(fail)?.len()
    {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&content).map_err(fail)?;
        if copied.object().is_none_or(|object| object == hasher.finalize().into()) {
            return Ok(copied);
        }
        content.rewind().map_err(fail)?;
    }
    let (object, size) = ingest.put_file(&mut content).map_err(|error| match error {
        PutError::Read(source) => fail(source),
        PutError::Store(error) => error.into(),
    })?;
    Ok(if size == 0 { Content::Empty } else { Content::Object(object, size) })
}

/// Returns the content of the file at `path`, which may be a further name of it.
fn content_at(tree: &Tree, path: &TreePath) -> Option<Content> {
    let kind = match tree.get(path)? {
        Kind::Hardlink { first } => tree.get(first)?,
        kind => kind,
    };
    match kind {
        Kind::File { content, .. } => Some(*content),
        _ => None,
    }
}

/// Opens a file by its path without following any symlink on the way (openat2(2)).
fn open_below(root: &OwnedFd, path: &TreePath) -> Result<OwnedFd, ScanError> {
    use rustix::fs::ResolveFlags;
    let fail = |source: rustix::io::Errno| ScanError::Read { path: path.clone(), source: source.into() };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, path.as_path(), flags, Mode::empty(), resolve).map_err(fail)
}

fn read_xattrs(file: &OwnedFd, path: &TreePath) -> Result<Xattrs, ScanError> {
    list_xattrs(file).map_err(|error| ScanError::Read { path: path.clone(), source: error.into() })
}

fn list_xattrs(file: impl AsFd) -> Result<Xattrs, rustix::io::Errno> {
    use rustix::io::Errno;
    let mut list = [0u8; 4096];
    let mut large = vec![];
    let names: &[u8] = match rustix::fs::flistxattr(&file, &mut list) {
        Ok(length) => &list[..length],
        Err(Errno::NOTSUP) => return Ok(vec![]),
        Err(Errno::RANGE) => {
            large.resize(65536, 0);
            let length = rustix::fs::flistxattr(&file, &mut large)?;
            &large[..length]
        }
        Err(error) => return Err(error),
    };
    let mut xattrs: Xattrs = vec![];
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0u8; 65536];
        match rustix::fs::fgetxattr(&file, name, &mut value) {
            Ok(length) => xattrs.push((name.into(), value[..length].into())),
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
    }
    xattrs.sort();
    Ok(xattrs)
}
