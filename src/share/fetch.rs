//! Moving blobs and parts of them into the store.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use infradev_layers::{Frame, Toc};
use infradev_store::references::Reference;
use infradev_store::{Ingest, PutError};
use sha2::{Digest as _, Sha256};

use super::image::LayerBlob;
use super::manifest::Descriptor;
use super::{Digest, Remote, RemoteError, ShareError, Transfers};

/// Requests for parts ask for at most so many bytes.
const PART: u64 = 16 << 20;
/// Two pieces with less between them are asked for at once; the bytes between are thrown away.
const GAP: u64 = 4 << 10;

/// A blob, where it comes from, and where its content goes.
pub(super) struct Fetched<'a> {
    pub(super) transfers: &'a Transfers,
    pub(super) remote: &'a dyn Remote,
    pub(super) blob: &'a LayerBlob,
    pub(super) ingest: &'a Ingest<'a>,
}

impl Fetched<'_> {
    fn corrupt(&self, detail: impl Into<String>) -> ShareError {
        let what = format!("blob {}", self.blob.digest);
        RemoteError::Corrupt { place: self.remote.name(), what, detail: detail.into() }.into()
    }

    /// Puts the content of a piece into the store, checked.
    fn put(&self, frame: &Frame, piece: &mut dyn Read) -> Result<(), ShareError> {
        let mut content = self.blob.compression.reader(piece).map_err(|error| self.broken(&error))?;
        let (found, size) = match self.ingest.put(&mut Read::take(&mut content, frame.object.size + 1)) {
            Err(PutError::Read(error)) => return Err(self.broken(&error)),
            other => other.map_err(|error| match error {
                PutError::Store(error) => error,
                PutError::Read(_) => unreachable!("handled above"),
            })?,
        };
        let wanted = Reference { object: found, size };
        if wanted == frame.object {
            return Ok(());
        }
        Err(self.corrupt(format!("holds other bytes than object {} in its place", frame.object.object)))
    }

    /// An error of reading is one of the remote, or of what it gave.
    fn broken(&self, error: &io::Error) -> ShareError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>()) {
            Some(Broken(error)) => {
                match error.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
                    Some(error) => error,
                    None => self.corrupt("broke off"),
                }
            }
            None => self.corrupt(format!("has a piece that cannot be decompressed: {error}")),
        }
    }
}

/// Fetches the pieces `frames`, in their order; `false` if the place gives no parts.
pub(super) fn fetch_frames(
    what: &Fetched<'_>,
    frames: &[Frame],
    count: &dyn Fn(u64),
) -> Result<bool, ShareError> {
    for run in runs(frames) {
        let (start, end) = (run[0].offset, run[run.len() - 1].end());
        if end - start <= PART {
            let Some(bytes) = what.remote.blob_part(&what.blob.digest, start, end - start)? else {
                return Ok(false);
            };
            count(bytes.len() as u64);
            for frame in run {
                let (from, to) = ((frame.offset - start) as usize, (frame.end() - start) as usize);
                let mut piece =
                    bytes.get(from..to).ok_or_else(|| what.corrupt("gave fewer bytes than asked for"))?;
                what.put(frame, &mut piece)?;
            }
            continue;
        }
        // One large piece.
        let mut parts =
            Parts { what, next: start, end, buffer: io::Cursor::new(vec![]), count, gives_none: false };
        let put = what.put(&run[0], &mut parts);
        if parts.gives_none {
            return Ok(false);
        }
        put?;
    }
    Ok(true)
}

/// Puts neighbours together, up to the size of a request; a larger piece is alone.
fn runs(frames: &[Frame]) -> Vec<&[Frame]> {
    let mut runs = vec![];
    let mut start = 0;
    for at in 1..=frames.len() {
        let joins = at < frames.len()
            && frames[at].offset - frames[at - 1].end() <= GAP
            && frames[at].end() - frames[start].offset <= PART;
        if !joins {
            runs.push(&frames[start..at]);
            start = at;
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// An error of a remote, on its way through a decoder.
#[derive(Debug, thiserror::Error)]
#[error("the transfer broke off")]
struct Broken(std::sync::Mutex<Option<ShareError>>);

/// A large piece, part by part.
struct Parts<'a> {
    what: &'a Fetched<'a>,
    next: u64,
    end: u64,
    buffer: io::Cursor<Vec<u8>>,
    count: &'a dyn Fn(u64),
    gives_none: bool,
}

impl Read for Parts<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.buffer.read(buffer)?;
        if read > 0 || self.next == self.end || buffer.is_empty() {
            return Ok(read);
        }
        let length = PART.min(self.end - self.next);
        let broken = |error: ShareError| io::Error::other(Broken(std::sync::Mutex::new(Some(error))));
        match self.what.remote.blob_part(&self.what.blob.digest, self.next, length) {
            Ok(Some(bytes)) if bytes.len() as u64 == length => {
                (self.count)(length);
                self.next += length;
                self.buffer = io::Cursor::new(bytes);
                self.buffer.read(buffer)
            }
            Ok(Some(_)) => Err(broken(self.what.corrupt("gave fewer bytes than asked for"))),
            Ok(None) => {
                self.gives_none = true;
                Err(io::ErrorKind::Unsupported.into())
            }
            Err(error) => Err(broken(error.into())),
        }
    }
}

/// Fetches all of a blob, checks it as a whole, and takes `objects` out of it.
pub(super) fn fetch_whole(
    what: &Fetched<'_>,
    toc: &Toc,
    objects: &HashSet<Reference>,
    count: &dyn Fn(u64),
) -> Result<(), ShareError> {
    let (file, path) = download(what.transfers, what.remote, what.blob, count)?;
    let read = |offset: u64, length: u64| -> Result<Vec<u8>, ShareError> {
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset)
            .map_err(|error| infradev_store::Error::io("read", &path, error))?;
        Ok(bytes)
    };
    let mut archive = Sha256::new();
    let mut taken = HashSet::new();
    let mut at = 0;
    for frame in &toc.frames {
        let plain = read(at, frame.offset - at)?;
        what.hash(&plain, &mut archive)?;
        let piece = Read::take(OffsetReader { file: &file, offset: frame.offset }, frame.length);
        let mut piece = BufReader::with_capacity(1 << 18, piece);
        match objects.contains(&frame.object) && taken.insert(frame.object) {
            true => {
                let content =
                    what.blob.compression.reader(&mut piece).map_err(|error| what.broken(&error))?;
                let mut content = Hashing { content, archive: &mut archive };
                what.put_plain(frame, &mut content)?;
            }
            false => {
                let mut content =
                    what.blob.compression.reader(&mut piece).map_err(|error| what.broken(&error))?;
                io::copy(&mut content, &mut archive).map_err(|error| what.broken(&error))?;
            }
        }
        at = frame.end();
    }
    let plain = read(
        at,
        what.blob.toc.offset.checked_sub(at).ok_or_else(|| what.corrupt("has a table before its end"))?,
    )?;
    what.hash(&plain, &mut archive)?;
    let found = Digest::from_bytes(archive.finalize().into());
    if what.blob.diff_id.is_some_and(|diff_id| diff_id != found) {
        return Err(what.corrupt("holds another archive than the image's configuration names"));
    }
    let _swept_by_the_next_collection = fs::remove_file(&path);
    Ok(())
}

impl Fetched<'_> {
    fn hash(&self, pieces: &[u8], archive: &mut Sha256) -> Result<(), ShareError> {
        let mut content = self.blob.compression.reader(pieces).map_err(|error| self.broken(&error))?;
        io::copy(&mut content, archive).map(drop).map_err(|error| self.broken(&error))
    }

    /// Puts content that is decompressed already.
    fn put_plain(&self, frame: &Frame, content: &mut dyn Read) -> Result<(), ShareError> {
        let put = self.ingest.put(&mut Read::take(content, frame.object.size + 1));
        match put {
            Ok((object, size)) if (Reference { object, size }) == frame.object => Ok(()),
            Ok(_) => {
                Err(self
                    .corrupt(format!("holds other bytes than object {} in its place", frame.object.object)))
            }
            Err(PutError::Read(error)) => Err(self.broken(&error)),
            Err(PutError::Store(error)) => Err(error.into()),
        }
    }
}

struct OffsetReader<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for OffsetReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

struct Hashing<'a, R> {
    content: R,
    archive: &'a mut Sha256,
}

impl<R: Read> Read for Hashing<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.archive.update(&buffer[..count]);
        Ok(count)
    }
}

/// Downloads a whole blob to the store's caches, going on where an earlier attempt was killed; checks its digest.
fn download(
    transfers: &Transfers,
    remote: &dyn Remote,
    blob: &LayerBlob,
    count: &dyn Fn(u64),
) -> Result<(File, PathBuf), ShareError> {
    let path = transfers.arriving.join(blob.digest.hex());
    let failed = |action| {
        let path = path.clone();
        move |error: io::Error| ShareError::from(infradev_store::Error::io(action, &path, error))
    };
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = options.map_err(failed("open"))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| failed("lock")(error.into()))?;
    let mut hasher = Sha256::new();
    let mut have = io::copy(&mut file, &mut hasher).map_err(failed("read"))?;
    if have > blob.size {
        (have, hasher) = (0, Sha256::new());
    }
    file.set_len(have).map_err(failed("write"))?;
    file.seek(SeekFrom::Start(have)).map_err(failed("write"))?;
    let corrupt = |detail: &str| RemoteError::Corrupt {
        place: remote.name(),
        what: format!("blob {}", blob.digest),
        detail: detail.to_owned(),
    };
    if have < blob.size {
        let mut content = remote.blob(&blob.digest, blob.size, have)?;
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(super::transfer_error(remote, &blob.digest, error)),
            };
            have += read as u64;
            if have > blob.size {
                return Err(corrupt("is longer than its manifest says").into());
            }
            hasher.update(&buffer[..read]);
            file.write_all(&buffer[..read]).map_err(failed("write"))?;
            count(read as u64);
        }
    }
    if have < blob.size {
        return Err(corrupt("ends before its manifest says").into());
    }
    if Digest::from_bytes(hasher.finalize().into()) != blob.digest {
        let _never_gone_on_with = fs::remove_file(&path);
        return Err(corrupt("does not hash to that").into());
    }
    Ok((file, path))
}

/// Returns the table of contents of a blob of which no parts are given.
pub(super) fn tail_of_whole(
    transfers: &Transfers,
    remote: &dyn Remote,
    blob: &LayerBlob,
    count: &dyn Fn(u64),
) -> Result<Vec<u8>, ShareError> {
    let (file, path) = download(transfers, remote, blob, count)?;
    let mut tail = vec![0; usize::try_from(blob.toc.length).unwrap_or(0)];
    file.read_exact_at(&mut tail, blob.toc.offset)
        .map_err(|error| infradev_store::Error::io("read", &path, error))?;
    Ok(tail)
}

/// Fetches a small blob into memory, checked.
pub(super) fn small_blob(
    remote: &dyn Remote,
    descriptor: &Descriptor,
    most: u64,
) -> Result<Vec<u8>, ShareError> {
    let corrupt = |detail: String| RemoteError::Corrupt {
        place: remote.name(),
        what: format!("blob {}", descriptor.digest),
        detail,
    };
    if descriptor.size > most {
        return Err(
            corrupt(format!("should have {} bytes; at most {most} are expected", descriptor.size)).into()
        );
    }
    let mut content = vec![];
    let mut reader = remote.blob(&descriptor.digest, descriptor.size, 0)?.take(descriptor.size + 1);
    reader
        .read_to_end(&mut content)
        .map_err(|error| super::transfer_error(remote, &descriptor.digest, error))?;
    if content.len() as u64 != descriptor.size {
        return Err(
            corrupt(format!("does not have the {} bytes that its manifest says", descriptor.size)).into()
        );
    }
    match Digest::of(&content) == descriptor.digest {
        true => Ok(content),
        false => Err(corrupt("does not hash to that".to_owned()).into()),
    }
}
