//! Source archives: one directory of files, as releases are made.

use std::io::Read;

use infradev_store::Ingest;

use super::reader::{MemberKind, Reader};
use super::{TarError, TarLimits};
use crate::entry::{Content, Kind, Metadata};
use crate::path::{PathError, TreePath};
use crate::tree::{Tree, TreeBuilder};

/// How the entries of an archive are placed.
#[derive(Debug, Clone)]
pub struct SourceTarOptions {
    /// The directory of the layer that receives them.
    pub directory: TreePath,
    /// Drops the first component of every path, which must be the same for all: `NAME-VERSION/` of a release.
    pub strip_top: bool,
    /// The modification time of everything, in seconds since 1970; `None` keeps the archive's.
    pub mtime: Option<i64>,
}

/// Reads an uncompressed source archive into a tree; the files' bytes go to `ingest`. Everything belongs to root.
pub fn source_tar_tree(
    reader: &mut dyn Read,
    options: &SourceTarOptions,
    ingest: &Ingest<'_>,
) -> Result<Tree, TarError> {
    let mut builder = TreeBuilder::new();
    let mut top: Option<Vec<u8>> = None;
    let mut members = Reader::new(reader, TarLimits::default());
    while let Some(member) = members.next()? {
        let refuse = |problem: &str| TarError::entry(&member.path, problem);
        let Some(path) = place(&member.path, options, &mut top).map_err(|problem| match problem {
            Placement::Path(error) => error.into(),
            Placement::Top => refuse("lies beside the archive's top directory"),
        })?
        else {
            continue;
        };
        let mtime = options.mtime.unwrap_or(member.mtime);
        let kind = match &member.kind {
            MemberKind::Directory => Kind::Directory { metadata: Metadata::new(0o755, mtime), opaque: false },
            MemberKind::File => {
                let (object, size) = ingest.put(&mut members)?;
                let content = if size == 0 { Content::Empty } else { Content::Object(object, size) };
                let mode = if member.mode & 0o111 != 0 { 0o755 } else { 0o644 };
                Kind::File { metadata: Metadata::new(mode, mtime), content }
            }
            MemberKind::Symlink { target } => {
                if target.starts_with(b"/") || climbs_out(&path, target, &options.directory) {
                    return Err(refuse("is a symlink that leaves the archive"));
                }
                let metadata = Metadata { mode: 0o777, ..Metadata::new(0, mtime) };
                Kind::Symlink { metadata, target: target.as_slice().into() }
            }
            MemberKind::Hardlink { target } => {
                let first = place(target, options, &mut top).ok().flatten();
                Kind::Hardlink {
                    first: first.ok_or_else(|| refuse("is a hardlink that leaves the archive"))?,
                }
            }
            MemberKind::Special(word) => return Err(refuse(&format!("is a {word}"))),
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
    options: &SourceTarOptions,
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
