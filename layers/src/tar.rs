//! Tar archives of sources, applied strictly: what is not plainly harmless is refused, never skipped.

use std::io::{self, Read};

use infradev_store::{Ingest, PutError};
use tar::{Archive, EntryType};

use crate::entry::{Content, Kind, Metadata};
use crate::path::{PathError, TreePath};
use crate::tree::{Tree, TreeBuilder, TreeError};

/// An archive that cannot become a layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// The archive cannot be read.
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    /// An entry is of a kind or form that no source archive needs.
    #[error("entry `{path}` {problem}")]
    Entry {
        /// The entry's path.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A path is not allowed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Two entries do not fit together.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
}

/// How the entries of an archive are placed.
#[derive(Debug, Clone)]
pub struct TarOptions {
    /// The directory of the layer that receives them.
    pub directory: TreePath,
    /// Drops the first component of every path, which must be the same for all: `NAME-VERSION/` of a release.
    pub strip_top: bool,
    /// The modification time of everything, in seconds since 1970; `None` keeps the archive's.
    pub mtime: Option<i64>,
}

/// Reads an uncompressed tar archive into a tree; the files' bytes go to `ingest`. Everything belongs to root.
pub fn tar_tree(reader: &mut dyn Read, options: &TarOptions, ingest: &Ingest<'_>) -> Result<Tree, TarError> {
    let mut builder = TreeBuilder::new();
    let mut top: Option<Vec<u8>> = None;
    let mut archive = Archive::new(reader);
    for entry in archive.entries().map_err(TarError::Read)? {
        let mut entry = entry.map_err(TarError::Read)?;
        let name = entry.path_bytes().into_owned();
        let refuse = |problem| TarError::Entry { path: String::from_utf8_lossy(&name).into_owned(), problem };
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            continue;
        }
        let Some(path) = place(&name, options, &mut top).map_err(|problem| match problem {
            Placement::Path(error) => error.into(),
            Placement::Top => refuse("lies beside the archive's top directory"),
        })?
        else {
            continue;
        };
        let mode = entry.header().mode().map_err(TarError::Read)?;
        let mtime = match options.mtime {
            Some(mtime) => mtime,
            None => entry.header().mtime().map_err(TarError::Read)? as i64,
        };
        let kind = match kind {
            EntryType::Directory => Kind::Directory { metadata: Metadata::new(0o755, mtime), opaque: false },
            EntryType::Regular | EntryType::Continuous => {
                let (object, size) = ingest.put(&mut entry).map_err(|error| match error {
                    PutError::Read(source) => TarError::Read(source),
                    PutError::Store(error) => error.into(),
                })?;
                let content = if size == 0 { Content::Empty } else { Content::Object(object, size) };
                let mode = if mode & 0o111 != 0 { 0o755 } else { 0o644 };
                Kind::File { metadata: Metadata::new(mode, mtime), content }
            }
            EntryType::Symlink => {
                let target =
                    entry.link_name_bytes().ok_or_else(|| refuse("is a symlink without a target"))?;
                if target.starts_with(b"/") || climbs_out(&path, &target, &options.directory) {
                    return Err(refuse("is a symlink that leaves the archive"));
                }
                let metadata = Metadata { mode: 0o777, ..Metadata::new(0, mtime) };
                Kind::Symlink { metadata, target: target.into_owned().into() }
            }
            EntryType::Link => {
                let target =
                    entry.link_name_bytes().ok_or_else(|| refuse("is a hardlink without a target"))?;
                let first = place(&target, options, &mut top).ok().flatten();
                Kind::Hardlink {
                    first: first.ok_or_else(|| refuse("is a hardlink that leaves the archive"))?,
                }
            }
            _ => return Err(refuse("is neither a file, a directory nor a link")),
        };
        match (&kind, builder.contains(&path)) {
            // Archives commonly name a directory twice, or after what it holds.
            (Kind::Directory { .. }, true) => {}
            _ => builder.add(path, kind)?,
        }
    }
    Ok(builder.finish()?)
}

enum Placement {
    Path(PathError),
    Top,
}

/// Returns where `name` goes; `None` for the top directory itself.
fn place(
    name: &[u8],
    options: &TarOptions,
    top: &mut Option<Vec<u8>>,
) -> Result<Option<TreePath>, Placement> {
    let name = name.strip_prefix(b"./").unwrap_or(name);
    let name = name.strip_suffix(b"/").unwrap_or(name);
    let path = TreePath::new(name).map_err(Placement::Path)?;
    let mut rest = path.as_bytes();
    if options.strip_top {
        let first = rest.split(|&byte| byte == b'/').next().unwrap_or_default();
        if top.get_or_insert_with(|| first.to_vec()) != first {
            return Err(Placement::Top);
        }
        rest = rest[first.len()..].strip_prefix(b"/").unwrap_or_default();
    }
    if rest.is_empty() {
        return Ok(None);
    }
    options.directory.join(rest).map(Some).map_err(Placement::Path)
}

/// Whether a relative symlink at `path` leads out of `directory`, by its text alone.
fn climbs_out(path: &TreePath, target: &[u8], directory: &TreePath) -> bool {
    let mut depth = path.components().count() - directory.components().count() - 1;
    for name in target.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}
