//! Wheels: a zip archive streamed into objects, placed as an installer would place it.
//!
//! Installers do not agree on what they write for one wheel, nor does one agree with itself from day to day
//! (times in `.pyc`, absolute paths in scripts, hashes of those in RECORD). This transform depends on nothing
//! but the wheel and the target, so that one wheel is one layer everywhere. Rules: the binary distribution
//! format specification (packaging.python.org), sections "Installing a wheel" and "The .data directory".

mod archive;
mod record;
mod scripts;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use infradev_store::{Ingest, PutError};
use zip::ZipArchive;

use crate::entry::{Content, Kind, Metadata};
use crate::path::{PathError, TreePath};
use crate::tree::{Tree, TreeBuilder, TreeError};

/// The version of this transform; goes into every wheel's step key.
pub const WHEEL_LAYER_VERSION: u32 = 2;

/// The modification time of every file of a wheel layer: 1980-01-01, the earliest that a zip can hold.
pub const WHEEL_MTIME: i64 = 315_532_800;

/// Where a wheel goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelTarget {
    /// The prefix, such as `opt/env`, relative to the root of the layer.
    pub prefix: TreePath,
    /// The Python version as `3.11`.
    pub python: String,
}

impl WheelTarget {
    /// Returns the directory that Python imports from.
    pub fn site_packages(&self) -> TreePath {
        let below = format!("lib/python{}/site-packages", self.python);
        self.prefix.join(below.as_bytes()).expect("a short path of plain names")
    }
}

/// A wheel that cannot become a layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WheelError {
    /// The archive cannot be opened.
    #[error("cannot open the wheel")]
    Open(#[source] io::Error),
    /// The archive is not a zip, or is damaged.
    #[error("the archive is damaged{}", .entry.as_ref().map(|name| format!(" at `{name}`")).unwrap_or_default())]
    Zip {
        /// The entry at which it was noticed.
        entry: Option<String>,
        /// How.
        source: io::Error,
    },
    /// It lacks a part that every wheel has.
    #[error("the archive has no {0}: it is not a wheel")]
    Missing(&'static str),
    /// A part of it says something that installers cannot follow.
    #[error("`{entry}` {problem}")]
    Entry {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        problem: String,
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

/// Reads the wheel at `path` into a layer for `target`; the files' bytes go to `ingest`.
///
/// The caller has checked the archive's hash. Byte code is not part of the result.
pub fn wheel_tree(path: &Path, target: &WheelTarget, ingest: &Ingest<'_>) -> Result<Tree, WheelError> {
    let file = File::open(path).map_err(WheelError::Open)?;
    let mut zip =
        ZipArchive::new(io::BufReader::with_capacity(1 << 18, file)).map_err(|error| damaged(None, error))?;
    archive::check(path, &mut zip)?;
    let wheel = Wheel::inspect(&mut zip)?;
    let mut installed = Installed { builder: TreeBuilder::new(), records: vec![], target, ingest };
    if zip.index_for_name(&format!("{}/RECORD", wheel.dist_info)).is_none() {
        return Err(WheelError::Missing("dist-info/RECORD"));
    }
    for number in 0..zip.len() {
        let mut entry = zip.by_index(number).map_err(|error| damaged(None, error))?;
        let name = entry.name().to_owned();
        if entry.is_dir() || wheel.is_replaced(&name) {
            continue;
        }
        if entry.is_symlink() {
            return Err(WheelError::Entry {
                entry: name,
                problem: "is a symlink, which wheels cannot hold".into(),
            });
        }
        let executable = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        let place = wheel.place(&name, target)?;
        let declared = entry.size();
        // One byte more than declared is enough to see that there is more.
        installed.add(&name, place, executable, declared, &mut (&mut entry).take(declared + 1))?;
    }
    for (name, content) in scripts::generated(&mut zip, &wheel.dist_info, &target.prefix)? {
        let path = target.prefix.join(b"bin")?.join(name.as_bytes())?;
        installed.add_bytes(path, true, content.as_bytes())?;
    }
    let installer = installed.dist_info(&wheel, "INSTALLER")?;
    installed.add_bytes(installer, false, b"infradev\n")?;
    installed.finish(&wheel)
}

fn damaged(entry: Option<String>, error: impl Into<io::Error>) -> WheelError {
    WheelError::Zip { entry, source: error.into() }
}

/// The names in a wheel that decide where the others go.
struct Wheel {
    dist_info: String,
    data: String,
    distribution: String,
}

enum Place {
    File(TreePath),
    Script(TreePath),
}

impl Wheel {
    fn inspect<R: Read + Seek>(zip: &mut ZipArchive<R>) -> Result<Self, WheelError> {
        let mut found: Vec<String> = zip
            .file_names()
            .filter_map(|name| name.strip_suffix(".dist-info/WHEEL"))
            .filter(|stem| !stem.contains('/'))
            .map(str::to_owned)
            .collect();
        let (Some(stem), None) = (found.pop(), found.pop()) else {
            return Err(WheelError::Missing("single dist-info/WHEEL"));
        };
        let dist_info = format!("{stem}.dist-info");
        let text = read_text(zip, &format!("{dist_info}/WHEEL"))?.unwrap_or_default();
        let version = text.lines().find_map(|line| line.strip_prefix("Wheel-Version:")).unwrap_or("").trim();
        if !version.starts_with("1.") {
            let problem = format!("has version `{version}`; versions 1.x are known");
            return Err(WheelError::Entry { entry: format!("{dist_info}/WHEEL"), problem });
        }
        // With dashes, as the package is called outside of file names, and as pip names its directory of headers.
        let distribution = stem.split('-').next().unwrap_or_default().replace('_', "-");
        Ok(Self { data: format!("{stem}.data/"), distribution, dist_info })
    }

    /// Whether the file is written anew, or says how another installer installed.
    fn is_replaced(&self, name: &str) -> bool {
        const REPLACED: [&str; 7] = [
            "RECORD",
            "RECORD.jws",
            "RECORD.p7s",
            "INSTALLER",
            "REQUESTED",
            "direct_url.json",
            "uv_cache.json",
        ];
        name.strip_prefix(&self.dist_info)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| REPLACED.contains(&rest))
    }

    fn place(&self, name: &str, target: &WheelTarget) -> Result<Place, WheelError> {
        let checked = TreePath::new(name.as_bytes())?;
        let Some(data) = name.strip_prefix(&self.data) else {
            return Ok(Place::File(target.site_packages().join(checked.as_bytes())?));
        };
        let (scheme, rest) = data.split_once('/').unwrap_or((data, ""));
        let prefix = &target.prefix;
        Ok(match scheme {
            "purelib" | "platlib" => Place::File(target.site_packages().join(rest.as_bytes())?),
            "scripts" => Place::Script(prefix.join(b"bin")?.join(rest.as_bytes())?),
            "data" => Place::File(prefix.join(rest.as_bytes())?),
            "headers" => {
                let below = format!("include/site/python{}/{}/{rest}", target.python, self.distribution);
                Place::File(prefix.join(below.as_bytes())?)
            }
            _ => {
                let problem = format!("lies in the unknown scheme `{scheme}`");
                return Err(WheelError::Entry { entry: name.to_owned(), problem });
            }
        })
    }
}

struct Installed<'a> {
    builder: TreeBuilder,
    records: Vec<record::Row>,
    target: &'a WheelTarget,
    ingest: &'a Ingest<'a>,
}

impl Installed<'_> {
    fn add(
        &mut self,
        name: &str,
        place: Place,
        executable: bool,
        declared: u64,
        content: &mut dyn Read,
    ) -> Result<(), WheelError> {
        let unreadable = |source| WheelError::Zip { entry: Some(name.to_owned()), source };
        let path = match place {
            Place::Script(path) => {
                let mut bytes = vec![];
                content.read_to_end(&mut bytes).map_err(unreadable)?;
                check_size(name, bytes.len() as u64, declared)?;
                let bytes = scripts::with_shebang(bytes, &self.target.prefix);
                return self.add_bytes(path, true, &bytes);
            }
            Place::File(path) => path,
        };
        let mut content = record::Hashed::new(content);
        let (object, size) = self.ingest.put(&mut content).map_err(|error| match error {
            PutError::Read(source) => unreadable(source),
            PutError::Store(error) => error.into(),
        })?;
        check_size(name, size, declared)?;
        let hash = content.finish();
        let content = if size == 0 { Content::Empty } else { Content::Object(object, size) };
        self.insert(path, executable, content, hash)
    }

    fn add_bytes(&mut self, path: TreePath, executable: bool, bytes: &[u8]) -> Result<(), WheelError> {
        let content = match bytes {
            [] => Content::Empty,
            bytes => Content::Object(self.ingest.put_bytes(bytes)?, bytes.len() as u64),
        };
        self.insert(path, executable, content, record::hash(bytes))
    }

    fn insert(
        &mut self,
        path: TreePath,
        executable: bool,
        content: Content,
        hash: String,
    ) -> Result<(), WheelError> {
        let mode = if executable { 0o755 } else { 0o644 };
        self.records.push(record::Row::new(&path, self.target, hash, content.size()));
        self.builder.add(path, Kind::File { metadata: Metadata::new(mode, WHEEL_MTIME), content })?;
        Ok(())
    }

    fn dist_info(&self, wheel: &Wheel, name: &str) -> Result<TreePath, PathError> {
        self.target.site_packages().join(format!("{}/{name}", wheel.dist_info).as_bytes())
    }

    fn finish(mut self, wheel: &Wheel) -> Result<Tree, WheelError> {
        let path = self.dist_info(wheel, "RECORD")?;
        let own = record::Row::own(&path, self.target);
        let text = record::write(std::mem::take(&mut self.records), own);
        let object = self.ingest.put_bytes(text.as_bytes())?;
        let content = Content::Object(object, text.len() as u64);
        self.builder.add(path, Kind::File { metadata: Metadata::new(0o644, WHEEL_MTIME), content })?;
        Ok(self.builder.finish()?)
    }
}

fn check_size(name: &str, found: u64, declared: u64) -> Result<(), WheelError> {
    if found == declared {
        return Ok(());
    }
    let problem = format!("does not unpack to the {declared} bytes that the archive declares");
    Err(WheelError::Entry { entry: name.to_owned(), problem })
}

/// Reads a small text file of the archive; `None` if it is absent.
fn read_text<R: Read + Seek>(zip: &mut ZipArchive<R>, name: &str) -> Result<Option<String>, WheelError> {
    const MAX_TEXT: u64 = 64 << 20;
    let mut entry = match zip.by_name(name) {
        Ok(entry) => entry,
        Err(zip::result::ZipError::FileNotFound) => return Ok(None),
        Err(error) => return Err(damaged(Some(name.to_owned()), error)),
    };
    let mut bytes = vec![];
    entry
        .by_ref()
        .take(MAX_TEXT)
        .read_to_end(&mut bytes)
        .map_err(|error| damaged(Some(name.to_owned()), error))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}
