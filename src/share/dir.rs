//! An image layout in a directory (OCI image specification, `image-layout.md`): for disks that are carried, and for
//! air-gapped nodes.
//!
//! Disks flip bits and copies break off, so a writer believes no file by its name and size: what is damaged is
//! written anew.

mod sweep;
mod writer;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use infradev_store::{Lock, Mode};

use super::manifest::{AnyManifest, Descriptor, INDEX, Index, MANIFEST, parse};
use super::remote::{MAX_MANIFEST, RawManifest, Remote, RemoteError};
use super::{Digest, unpoisoned};
use writer::{Writer, cannot_lock, unfinished};

/// The annotation that holds a tag.
const TAG: &str = "org.opencontainers.image.ref.name";
/// The annotation of a listed manifest that says which one it belongs to.
const SUBJECT: &str = "dev.infradev.subject";
/// The largest list of manifests that is read.
const MAX_INDEX: u64 = 64 << 20;
/// Where the list is put that cannot be read, when there is something to write into it.
const DAMAGED: &str = "index.json.damaged";

/// An image layout.
#[derive(Debug)]
pub struct DirRemote {
    root: PathBuf,
    /// Since the first look of a writer.
    writer: Mutex<Option<Writer>>,
}

impl DirRemote {
    /// Takes the layout at `root`, which is made by the first push.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), writer: Mutex::default() }
    }

    /// Becomes one of the writers of the layout, which is there.
    fn join(&self) -> Result<(), RemoteError> {
        let mut writer = unpoisoned(&self.writer);
        if writer.is_none() {
            *writer = Some(Writer::join(&self.root)?);
        }
        Ok(())
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    /// Reads the list of manifests; an absent layout has none.
    fn index(&self) -> Result<Index, RemoteError> {
        let path = self.root.join("index.json");
        let bytes = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Index::new(vec![])),
            opened => read_bounded(opened.map_err(failed("open", &path))?, MAX_INDEX)
                .map_err(failed("read", &path))?,
        };
        let raw = RawManifest { media_type: INDEX.to_owned(), digest: Digest::of(&bytes), bytes };
        match parse(&raw) {
            Ok(AnyManifest::Many(index)) => Ok(index),
            Ok(AnyManifest::One(_)) => unreachable!("read as a list"),
            Err(error) => Err(self.corrupt("index.json", &format!("{error}; a push keeps it as {DAMAGED}"))),
        }
    }

    /// Changes the list of manifests, one process at a time. A list that cannot be read is put aside.
    fn change_index(&self, change: impl FnOnce(&mut Vec<Descriptor>)) -> Result<(), RemoteError> {
        self.make()?;
        let locked = Lock::wait(&self.root.join("index.lock"), Mode::Exclusive);
        let _one_at_a_time = locked.map_err(cannot_lock(&self.root))?;
        let path = self.root.join("index.json");
        let mut index = match self.index() {
            Err(RemoteError::Corrupt { .. }) => {
                let aside = self.root.join(DAMAGED);
                fs::rename(&path, &aside).map_err(failed("write", &aside))?;
                Index::new(vec![])
            }
            read => read?,
        };
        change(&mut index.manifests);
        let text = serde_json::to_vec(&index).expect("plain data");
        self.write(&path, &mut text.as_slice())
    }

    /// Makes the directories and the mark of a layout, and becomes one of its writers.
    fn make(&self) -> Result<(), RemoteError> {
        let blobs = self.root.join("blobs/sha256");
        fs::create_dir_all(&blobs).map_err(failed("create", &blobs))?;
        self.join()?;
        let mark = self.root.join("oci-layout");
        match mark.exists() {
            true => Ok(()),
            false => self.write(&mark, &mut &br#"{"imageLayoutVersion":"1.0.0"}"#[..]),
        }
    }

    /// Writes a file under a temporary name first, synced: a name is complete.
    fn write(&self, path: &Path, content: &mut dyn Read) -> Result<(), RemoteError> {
        let temporary = unfinished(&self.root);
        let write = || {
            let mut file = File::create_new(&temporary)?;
            io::copy(content, &mut file)?;
            file.sync_all()?;
            fs::rename(&temporary, path)?;
            File::open(path.parent().unwrap_or(path))?.sync_all()
        };
        let mut write = write;
        write().map_err(|error| {
            let _gone_with_the_directory = fs::remove_file(&temporary);
            failed("write", path)(error)
        })
    }

    fn corrupt(&self, what: &str, error: &dyn std::fmt::Display) -> RemoteError {
        RemoteError::Corrupt {
            place: self.name(),
            what: what.to_owned(),
            detail: format!("is wrong: {error}"),
        }
    }
}

impl Remote for DirRemote {
    fn name(&self) -> String {
        format!("dir:{}", self.root.display())
    }

    fn has_blob(&self, digest: &Digest, size: u64) -> Result<bool, RemoteError> {
        // Of a place that cannot be written, nothing is removed either.
        let _told_by_the_first_write = self.join();
        let path = self.blob_path(digest);
        if !fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == size) {
            return Ok(false);
        }
        let file = File::open(&path).map_err(failed("open", &path))?;
        Ok(Digest::of_reader(file).map_err(failed("read", &path))? == *digest)
    }

    fn mount_blob(&self, _digest: &Digest, _from: &str) -> Result<bool, RemoteError> {
        Ok(false)
    }

    fn put_blob(
        &self,
        digest: &Digest,
        size: u64,
        content: &mut File,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), RemoteError> {
        self.make()?;
        let path = self.blob_path(digest);
        content.rewind().map_err(failed("read", &path))?;
        self.write(&path, &mut content.take(size))?;
        progress(size);
        Ok(())
    }

    fn blob<'a>(
        &'a self,
        digest: &Digest,
        size: u64,
        from: u64,
    ) -> Result<Box<dyn Read + Send + 'a>, RemoteError> {
        let path = self.blob_path(digest);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RemoteError::Absent { place: self.name(), what: digest.to_string() });
            }
            opened => opened.map_err(failed("open", &path))?,
        };
        file.seek(SeekFrom::Start(from)).map_err(failed("read", &path))?;
        Ok(Box::new(file.take(size.saturating_sub(from) + 1)))
    }

    fn blob_part(&self, digest: &Digest, offset: u64, length: u64) -> Result<Option<Vec<u8>>, RemoteError> {
        let path = self.blob_path(digest);
        let read = || -> io::Result<Vec<u8>> {
            let file = File::open(&path)?;
            let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(RemoteError::Absent { place: self.name(), what: digest.to_string() })
            }
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    fn manifest(&self, reference: &str) -> Result<Option<RawManifest>, RemoteError> {
        let index = self.index()?;
        let is_it = |descriptor: &&Descriptor| {
            descriptor.annotations.get(TAG).is_some_and(|tag| tag == reference)
                || descriptor.digest.to_string() == reference
        };
        let (media_type, digest) = match (index.manifests.iter().find(is_it), reference.parse::<Digest>()) {
            (Some(found), _) => (found.media_type.clone(), found.digest),
            (None, Ok(digest)) => (MANIFEST.to_owned(), digest),
            (None, Err(_)) => return Ok(None),
        };
        let path = self.blob_path(&digest);
        let bytes = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => read_bounded(opened.map_err(failed("open", &path))?, MAX_MANIFEST)
                .map_err(failed("read", &path))?,
        };
        match Digest::of(&bytes) == digest {
            true => Ok(Some(RawManifest { media_type, digest, bytes })),
            false => Err(self.corrupt(&digest.to_string(), &"its bytes hash to something else")),
        }
    }

    fn put_manifest(&self, reference: &str, media_type: &str, bytes: &[u8]) -> Result<(), RemoteError> {
        self.make()?;
        let digest = Digest::of(bytes);
        self.write(&self.blob_path(&digest), &mut &*bytes)?;
        if reference.parse::<Digest>().is_ok() {
            return Ok(());
        }
        let mut descriptor = Descriptor::new(media_type, digest, bytes.len() as u64);
        descriptor.annotations.insert(TAG.to_owned(), reference.to_owned());
        self.change_index(|manifests| {
            manifests.retain(|other| other.annotations.get(TAG).is_none_or(|tag| tag != reference));
            manifests.push(descriptor);
        })
    }

    fn referrers(&self, digest: &Digest, artifact_type: &str) -> Result<Vec<Digest>, RemoteError> {
        let mut found = vec![];
        for listed in self.index()?.manifests {
            if listed.artifact_type.as_deref() != Some(artifact_type) {
                continue;
            }
            let read = self.manifest(&listed.digest.to_string());
            let read = match listed.annotations.get(SUBJECT) {
                Some(subject) if *subject != digest.to_string() => continue,
                Some(_) => read?,
                // Another program's: whose it is stands in it alone.
                None => sound(read)?,
            };
            if let Some(raw) = read
                && let Ok(AnyManifest::One(manifest)) = parse(&raw)
                && manifest.subject.is_some_and(|subject| subject.digest == *digest)
            {
                found.push(listed.digest);
            }
        }
        Ok(found)
    }

    fn add_referrer(
        &self,
        subject: &Digest,
        manifest: &RawManifest,
        artifact_type: &str,
    ) -> Result<(), RemoteError> {
        let mut descriptor =
            Descriptor::new(&manifest.media_type, manifest.digest, manifest.bytes.len() as u64);
        descriptor.artifact_type = Some(artifact_type.to_owned());
        descriptor.annotations.insert(SUBJECT.to_owned(), subject.to_string());
        self.change_index(|manifests| {
            // The latest one counts, and the one before may be damaged.
            manifests.retain(|other| {
                let is_of_it = other.artifact_type == descriptor.artifact_type
                    && other.annotations.get(SUBJECT) == descriptor.annotations.get(SUBJECT);
                other.digest != descriptor.digest && !is_of_it
            });
            manifests.push(descriptor);
        })
    }

    fn tags(&self) -> Result<Vec<String>, RemoteError> {
        let index = self.index()?;
        Ok(index.manifests.into_iter().filter_map(|mut found| found.annotations.remove(TAG)).collect())
    }

    fn remove_manifest(&self, digest: &Digest) -> Result<bool, RemoteError> {
        self.change_index(|manifests| manifests.retain(|other| other.digest != *digest))?;
        let path = self.blob_path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(true),
        }
    }

    fn sweep(&self) -> Result<Option<u64>, RemoteError> {
        self.join()?;
        let writer = unpoisoned(&self.writer);
        let Some(writer) = &*writer else { return Ok(None) };
        writer.if_alone(&self.root, || sweep::sweep(self, &self.index()?.manifests))
    }
}

/// Takes what is damaged for absent.
fn sound<T>(read: Result<Option<T>, RemoteError>) -> Result<Option<T>, RemoteError> {
    match read {
        Err(RemoteError::Corrupt { .. }) => Ok(None),
        read => read,
    }
}

/// Reads all of a file that may have `most` bytes.
fn read_bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("it has more than {most} bytes"))),
        false => Ok(bytes),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RemoteError + use<> {
    let path = path.to_owned();
    move |source| RemoteError::Io { action, path, source }
}
