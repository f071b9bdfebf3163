//! Verification: is every promise of the store still true?

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

use rayon::prelude::*;

use crate::action::ActionRecord;
use crate::error::{Error, Result};
use crate::roots::{Stack, read_json, root_files};
use crate::{LayerId, ObjectId, PackId, StepKey, Store};

/// How much to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Encodings against their ids; objects by presence, kind and size.
    Quick,
    /// Also the content of every object against its id.
    ReadData,
}

/// A thing that can be damaged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The content of an object.
    Object(ObjectId),
    /// The encoding of a layer.
    Layer(LayerId),
    /// A pack: its table, or its image.
    Pack(PackId),
    /// A thrown-away object.
    Trash(PathBuf),
    /// An action record.
    Record(StepKey),
    /// A file that says what must stay.
    Root(PathBuf),
    /// The index.
    Index,
    /// The image of a stack.
    Image(PathBuf),
    /// The stub tree of a stack.
    Stubs(PathBuf),
    /// A copy of an object that farms link to.
    FarmCopy(PathBuf),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Object(object) => write!(formatter, "object {object}"),
            Subject::Layer(layer) => write!(formatter, "layer {layer}"),
            Subject::Pack(pack) => write!(formatter, "pack {pack}"),
            Subject::Trash(path) => write!(formatter, "trash {}", path.display()),
            Subject::Record(key) => write!(formatter, "record {key}"),
            Subject::Root(path) => write!(formatter, "root {}", path.display()),
            Subject::Index => write!(formatter, "index"),
            Subject::Image(path) => write!(formatter, "image {}", path.display()),
            Subject::Stubs(path) => write!(formatter, "stubs {}", path.display()),
            Subject::FarmCopy(path) => write!(formatter, "farm copy {}", path.display()),
        }
    }
}

impl serde::Serialize for Subject {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One thing that is wrong, or that could not be checked.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// What.
    pub what: Subject,
    /// What is wrong with it.
    pub detail: String,
    /// The layers that need it.
    pub layers: Vec<LayerId>,
}

/// The result of a verification.
#[derive(Debug, Default, serde::Serialize)]
pub struct Report {
    /// Layers checked.
    pub layers: u64,
    /// Objects checked.
    pub objects: u64,
    /// Bytes of content read.
    pub bytes_read: u64,
    /// Objects that no layer needs: harmless, removed by gc.
    pub unneeded_objects: u64,
    /// Packs checked.
    pub packs: u64,
    /// Damaged objects in packs over which a plain one stands: harmless, left out when the pack is rewritten.
    pub shadowed: u64,
    /// What is lost or wrong.
    pub damage: Vec<Finding>,
    /// What could not be checked, for want of permission or of file handles: not damage.
    pub unchecked: Vec<Finding>,
}

/// Receives how far a long operation has come. Implemented by whoever shows it.
pub trait Progress: Sync {
    /// `bytes` more were processed.
    fn advance(&self, bytes: u64);
}

/// Shows nothing.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}
}

impl Store {
    /// Checks the whole store.
    pub fn verify(&self, depth: Depth, progress: &dyn Progress) -> Result<Report> {
        let mut report = Report::default();
        let mut needed: HashMap<ObjectId, (u64, Vec<LayerId>)> = HashMap::new();
        let layers = self.layers()?;
        let checked: Vec<_> = layers.par_iter().map(|layer| (layer, self.layer(layer))).collect();
        for (layer, encoding) in checked {
            report.layers += 1;
            match encoding {
                Ok(encoding) => match crate::references::read_head(&encoding) {
                    Ok((references, _)) => {
                        for reference in references {
                            needed.entry(reference.object).or_insert((reference.size, vec![])).1.push(*layer);
                        }
                    }
                    Err(error) => report.note_damage(Subject::Layer(*layer), error.to_string(), vec![*layer]),
                },
                Err(Error::Io { source, .. }) if !is_misplaced(&source) => {
                    report.note_unchecked(Subject::Layer(*layer), source.to_string())
                }
                // Removed by gc since it was listed.
                Err(Error::NoLayer(_)) => {}
                Err(error) => report.note_damage(Subject::Layer(*layer), error.to_string(), vec![*layer]),
            }
        }
        self.check_roots(&mut report)?;
        self.check_records(&mut report)?;
        self.check_index(depth, &mut report)?;
        let packs = self.check_packs(depth, &needed, &mut report, progress)?;
        let results: Vec<_> = needed
            .par_iter()
            .filter(|(object, (size, _))| !packs.is_done(self, object, *size))
            .map(|(object, (size, layers))| {
                (object, layers, self.check_object(object, *size, depth, progress))
            })
            .collect();
        report.objects += (needed.len() - results.len()) as u64;
        for (object, layers, result) in results {
            report.objects += 1;
            match result {
                Ok(Ok(read)) => report.bytes_read += read,
                Ok(Err(detail)) => report.note_damage(Subject::Object(*object), detail, layers.clone()),
                Err(error) => report.note_unchecked(Subject::Object(*object), error.to_string()),
            }
        }
        let mut unneeded = vec![];
        let is_unneeded = |object: &ObjectId| !needed.contains_key(object);
        self.for_each_object(is_unneeded, |object, metadata| unneeded.push((object, metadata.len())))?;
        report.unneeded_objects = unneeded.len() as u64;
        if depth == Depth::ReadData {
            // The next layer that has one of these would take it as it is.
            let check = |(object, size): &(ObjectId, u64)| {
                (*object, self.check_object(object, *size, depth, progress))
            };
            let results: Vec<_> = unneeded.par_iter().map(check).collect();
            for (object, result) in results {
                match result {
                    Ok(Ok(read)) => report.bytes_read += read,
                    // A collection took it since.
                    _ if fs::symlink_metadata(self.layout().object(&object)).is_err() => {}
                    Ok(Err(detail)) => report.note_damage(Subject::Object(object), detail, vec![]),
                    Err(error) => report.note_unchecked(Subject::Object(object), error.to_string()),
                }
            }
            self.check_trash(&mut report, progress)?;
        }
        Ok(report)
    }

    fn check_roots(&self, report: &mut Report) -> Result<()> {
        for path in root_files(self)? {
            let subject = Subject::Root(path.clone());
            match read_json::<Stack>(&path) {
                Ok(None) => {}
                Ok(Some(stack)) => {
                    let all = stack.layers.into_iter().chain(stack.also);
                    let missing: Vec<_> = all.filter(|layer| !self.reaches_layer(layer)).collect();
                    if !missing.is_empty() {
                        let detail = format!("{} of its layers are missing", missing.len());
                        report.note_damage(subject, detail, missing);
                    }
                }
                Err(Error::UnreadableRoot { detail, .. }) => report.note_damage(subject, detail, vec![]),
                Err(error) => report.note_unreadable(subject, error),
            }
        }
        Ok(())
    }

    fn check_records(&self, report: &mut Report) -> Result<()> {
        for key in self.record_keys()? {
            match self.record(&key) {
                Ok(Some(ActionRecord { key: found, .. })) if found != key => {
                    let detail = format!("it is the record of {found}");
                    report.note_damage(Subject::Record(key), detail, vec![]);
                }
                Ok(_) => {}
                Err(Error::UnreadableRoot { detail, .. }) => {
                    report.note_damage(Subject::Record(key), detail, vec![]);
                }
                Err(error) => report.note_unreadable(Subject::Record(key), error),
            }
        }
        Ok(())
    }

    /// Checks what a commit would take back from the trash.
    fn check_trash(&self, report: &mut Report, progress: &dyn Progress) -> Result<()> {
        for (path, object) in self.thrown_away()? {
            match File::open(&path).and_then(|file| hash_file(file, progress)) {
                Ok(found) if found == object => {}
                Ok(found) => {
                    let detail = format!("its bytes hash to {found}");
                    report.note_damage(Subject::Trash(path), detail, vec![]);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if is_misplaced(&error) => {
                    report.note_damage(Subject::Trash(path), "it is not a regular file".to_owned(), vec![]);
                }
                Err(error) => report.note_unchecked(Subject::Trash(path), error.to_string()),
            }
        }
        Ok(())
    }

    fn check_index(&self, depth: Depth, report: &mut Report) -> Result<()> {
        for layer in self.index()?.layer_rows()? {
            if !self.has_layer(&layer) {
                let detail = format!("has layer {layer}, which is gone");
                report.note_damage(Subject::Index, detail, vec![layer]);
            }
        }
        if depth == Depth::ReadData
            && let Some(detail) = self.index()?.check()
        {
            report.note_damage(Subject::Index, detail, vec![]);
        }
        for key in self.index()?.broken_rows()? {
            report.note_damage(Subject::Index, format!("its record of {key} is damaged"), vec![]);
        }
        Ok(())
    }

    /// Checks one object: the inner error is damage, the outer one means that it could not be checked.
    fn check_object(
        &self,
        object: &ObjectId,
        size: u64,
        depth: Depth,
        progress: &dyn Progress,
    ) -> io::Result<Result<u64, String>> {
        let path = self.layout().object(object);
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Err("it is missing".to_owned()));
            }
            Err(error) => return Err(error),
        };
        if !metadata.is_file() {
            return Ok(Err("it is not a regular file".to_owned()));
        }
        if metadata.len() != size {
            return Ok(Err(format!("expected {size} bytes, found {}", metadata.len())));
        }
        if depth == Depth::Quick {
            return Ok(Ok(0));
        }
        let found = hash_file(File::open(&path)?, progress)?;
        Ok(if found == *object { Ok(size) } else { Err(format!("its bytes hash to {found}")) })
    }
}

fn hash_file(mut file: File, progress: &dyn Progress) -> io::Result<ObjectId> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                progress.advance(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Report {
    pub(crate) fn note_damage(&mut self, what: Subject, detail: String, layers: Vec<LayerId>) {
        self.damage.push(Finding { what, detail, layers });
    }

    /// Notes a file that cannot be read: no file at all is damage, no permission is not.
    fn note_unreadable(&mut self, what: Subject, error: Error) {
        match error {
            Error::Io { source, .. } if is_misplaced(&source) => {
                self.note_damage(what, "it is not a regular file".to_owned(), vec![]);
            }
            Error::Io { source, .. } => self.note_unchecked(what, source.to_string()),
            error => self.note_unchecked(what, error.to_string()),
        }
    }

    pub(crate) fn note_unchecked(&mut self, what: Subject, detail: String) {
        self.unchecked.push(Finding { what, detail, layers: vec![] });
    }
}

/// Whether something else stands where a file should be.
fn is_misplaced(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory)
}
