//! Layers of container images (OCI image specification, `layer.md`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::{self, Read};

use infradev_store::Ingest;
use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization;

use super::reader::{Member, MemberKind, Reader};
use super::{TarError, TarLimits};
use crate::entry::{Content, Kind, Metadata, clean_mode, xattr_allowed};
use crate::path::TreePath;
use crate::tree::{Tree, TreeBuilder};

/// What to do with devices, FIFOs and sockets, which no layer can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecialFiles {
    /// Refuse the archive.
    #[default]
    Refuse,
    /// Leave them out with a note: images of some years ago ship a `/dev`.
    Drop,
}

/// How a layer archive is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerTarOptions {
    /// What happens to devices, FIFOs and sockets.
    pub special_files: SpecialFiles,
    /// How much it may hold.
    pub limits: TarLimits,
}

/// A layer archive that was read.
#[derive(Debug)]
pub struct LayerArchive {
    /// Its tree; whiteouts that hide nothing of other layers are gone.
    pub tree: Tree,
    /// sha256 of all bytes of the uncompressed archive: the digits of its OCI `DiffID`.
    pub diff_id: [u8; 32],
    /// What was changed or is worth a look.
    pub notes: Vec<Note>,
}

/// Something about an entry that whoever imports the layer should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The entry.
    pub path: TreePath,
    /// What about it.
    pub what: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.what)
    }
}

/// Reads an uncompressed layer archive into a tree; the files' bytes go to `ingest`.
///
/// Names may begin with `/` or `./`, as in images from the wild; anything else that is not a plain path below the
/// root refuses the archive. The root's own metadata are not part of a layer.
pub fn layer_tar_tree(
    reader: &mut dyn Read,
    options: LayerTarOptions,
    ingest: &Ingest<'_>,
) -> Result<LayerArchive, TarError> {
    let mut hashed = Hashed { input: reader, hasher: Sha256::new() };
    let mut members = Reader::new(&mut hashed, options.limits);
    let mut layer = Layer { options, ..Layer::default() };
    while let Some(member) = members.next()? {
        layer.apply(member, &mut members, ingest)?;
    }
    let (tree, notes) = layer.finish()?;
    Ok(LayerArchive { tree, diff_id: hashed.hasher.finalize().into(), notes })
}

#[derive(Default)]
struct Layer {
    options: LayerTarOptions,
    entries: BTreeMap<TreePath, Kind>,
    whiteouts: BTreeSet<TreePath>,
    opaque: BTreeMap<TreePath, i64>,
    notes: Vec<Note>,
}

impl Layer {
    fn apply(
        &mut self,
        member: Member,
        content: &mut Reader<'_>,
        ingest: &Ingest<'_>,
    ) -> Result<(), TarError> {
        let path = layer_path(&member.path)?;
        let fail = |problem: &str| TarError::entry(&member.path, problem);
        if let Some(hidden) = path.file_name().strip_prefix(b".wh.") {
            let mut byte = [0];
            if !matches!(member.kind, MemberKind::File)
                || content.read(&mut byte).map_err(TarError::Read)? > 0
            {
                return Err(fail("is a whiteout that is not an empty file"));
            }
            return self.whiteout(&path, hidden, member.mtime).map_err(fail);
        }
        if path.is_root() {
            return match member.kind {
                MemberKind::Directory => Ok(()),
                _ => Err(fail("would replace the root")),
            };
        }
        let kind = match member.kind {
            MemberKind::Special(word) if self.options.special_files == SpecialFiles::Drop => {
                self.note(&path, format!("is a {word}, which no layer can hold"));
                return Ok(());
            }
            MemberKind::Special(word) => return Err(fail(&format!("is a {word}"))),
            MemberKind::Hardlink { ref target } => {
                let first = layer_path(target)?;
                if !matches!(self.entries.get(&first), Some(Kind::File { .. } | Kind::Hardlink { .. })) {
                    return Err(fail("is a hardlink to what is no earlier file of this layer"));
                }
                Kind::Hardlink { first }
            }
            MemberKind::Symlink { ref target } => {
                if target.is_empty() || target.len() > crate::path::MAX_PATH || target.contains(&0) {
                    return Err(fail("is a symlink whose target is none"));
                }
                let metadata = Metadata { mode: 0o777, ..self.metadata(&path, &member)? };
                Kind::Symlink { metadata, target: target.as_slice().into() }
            }
            MemberKind::Directory => {
                Kind::Directory { metadata: self.metadata(&path, &member)?, opaque: false }
            }
            MemberKind::File => {
                let metadata = self.metadata(&path, &member)?;
                let (object, size) = ingest.put(content)?;
                Kind::File {
                    metadata,
                    content: if size == 0 { Content::Empty } else { Content::Object(object, size) },
                }
            }
        };
        match self.entries.get(&path) {
            None => {
                self.entries.insert(path, kind);
                Ok(())
            }
            Some(before) if *before == kind && kind.is_directory() => Ok(()),
            Some(_) => Err(fail("is there twice")),
        }
    }

    fn whiteout(&mut self, path: &TreePath, hidden: &[u8], mtime: i64) -> Result<(), &'static str> {
        let parent = path.parent().unwrap_or_default();
        match hidden {
            b".wh..opq" => {
                self.opaque.insert(parent, mtime);
                return Ok(());
            }
            b"" | b"." | b".." => return Err("is a whiteout of nothing"),
            _ if hidden.starts_with(b".wh.") => return Err("is a whiteout of an unknown kind"),
            _ => {}
        }
        let hidden = parent.join(hidden).expect("shorter than a path that was checked");
        if self.whiteouts.insert(hidden) { Ok(()) } else { Err("is there twice") }
    }

    fn metadata(&mut self, path: &TreePath, member: &Member) -> Result<Metadata, TarError> {
        let id = |id: u64, word: &str| {
            u32::try_from(id)
                .map_err(|_| TarError::entry(&member.path, format!("belongs to the {word} {id}")))
        };
        let mut metadata = Metadata::new(member.mode, member.mtime);
        (metadata.uid, metadata.gid) = (id(member.uid, "user")?, id(member.gid, "group")?);
        if clean_mode(member.mode) != member.mode as u16 {
            self.note(path, "lost its set-user-id or set-group-id bit".to_owned());
        }
        for (name, value) in &member.xattrs {
            if xattr_allowed(name) {
                metadata.xattrs.push((name.clone(), value.clone()));
            } else {
                self.note(path, format!("lost its attribute {}", String::from_utf8_lossy(name)));
            }
        }
        metadata.xattrs.sort();
        Ok(metadata)
    }

    fn note(&mut self, path: &TreePath, what: String) {
        self.notes.push(Note { path: path.clone(), what });
    }

    /// Whiteouts hide what lower layers have, never what this layer has, whichever came first.
    fn finish(mut self) -> Result<(Tree, Vec<Note>), TarError> {
        for (path, mtime) in std::mem::take(&mut self.opaque) {
            let described = self
                .entries
                .entry(path)
                .or_insert_with(|| Kind::Directory { metadata: Metadata::new(0o755, mtime), opaque: true });
            match described {
                Kind::Directory { opaque, .. } => *opaque = true,
                _ => return Err(TarError::Archive("marks as opaque what is no directory".to_owned())),
            }
        }
        for path in std::mem::take(&mut self.whiteouts) {
            match self.entries.get_mut(&path) {
                None => drop(self.entries.insert(path, Kind::Whiteout)),
                Some(Kind::Directory { opaque, .. }) => *opaque = true,
                Some(_) => {}
            }
        }
        self.note_twins();
        let mut builder = TreeBuilder::new();
        for (path, kind) in self.entries {
            // The root of a layer is not described; an opaque one hides everything below, name by name.
            if path.is_root() {
                return Err(TarError::Archive("hides the whole root of the layers below".to_owned()));
            }
            builder.add(path, kind)?;
        }
        Ok((builder.finish()?, self.notes))
    }

    /// Notes names that are one on file systems which ignore case, or how letters are composed: legal here, and a trap
    /// elsewhere.
    fn note_twins(&mut self) {
        let mut seen: HashMap<String, &TreePath> = HashMap::new();
        let mut twins = vec![];
        for path in self.entries.keys() {
            let Ok(text) = std::str::from_utf8(path.as_bytes()) else { continue };
            let folded = |text: &str| text.to_lowercase().nfc().collect::<String>();
            if let Some(other) = seen.insert(folded(text), path) {
                let lower = |path: &TreePath| String::from_utf8_lossy(path.as_bytes()).to_lowercase();
                let how = match lower(path) == lower(other) {
                    true => "in case only",
                    false => "in how its letters are composed only",
                };
                twins.push((path.clone(), format!("differs from {other} {how}")));
            }
        }
        for (path, what) in twins {
            self.note(&path, what);
        }
    }
}

/// A name in a layer archive as a path, without the `/` or `./` that some write before it.
fn layer_path(name: &[u8]) -> Result<TreePath, TarError> {
    let mut rest = name;
    loop {
        rest = match rest {
            [b'/', after @ ..] | [b'.', b'/', after @ ..] => after,
            [b'.'] => b"",
            _ => break,
        };
    }
    let rest = rest.strip_suffix(b"/").unwrap_or(rest);
    TreePath::new(rest).map_err(|error| TarError::entry(name, error.problem.to_string()))
}

/// Hashes what is read.
struct Hashed<'a> {
    input: &'a mut dyn Read,
    hasher: Sha256,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
