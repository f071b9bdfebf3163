//! Writing blobs.

use std::io::{self, Read, Write};

use infradev_store::ObjectId;
use infradev_store::references::Reference;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::BlobError;
use super::archive::{Pieces, write_archive};
use super::toc::{Frame, Toc};
use crate::entry::Kind;
use crate::path::TreePath;
use crate::tree::{Tree, TreeBuilder};

/// Bytes of content from which on a layer is spread over several blobs, so that none is over 2 GiB.
pub const MAX_PART: u64 = 2 << 30;

/// The skippable frame that holds a table of contents (RFC 8878, section 3.1.2): the first of the sixteen magics.
const SKIPPABLE: u32 = 0x184D_2A50;
/// Smaller files are compressed in one call.
const IN_MEMORY: u64 = 1 << 20;
const ZSTD_LEVEL: i32 = 3;
const GZIP_LEVEL: u32 = 6;

/// How blobs are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// zstd, which engines know since 2020.
    #[default]
    Zstd,
    /// gzip, for tools that know nothing else.
    Gzip,
}

impl Compression {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Compression::Zstd => "zstd",
            Compression::Gzip => "gzip",
        }
    }

    /// Decompresses pieces that follow each other.
    pub fn reader<'a>(self, pieces: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Compression::Zstd => Box::new(zstd::Decoder::new(pieces)?),
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(pieces)),
        })
    }
}

/// What goes into one blob.
#[derive(Debug)]
pub struct BlobSource<'a> {
    /// The encodings of the layers, in stack order.
    pub layers: Vec<Vec<u8>>,
    /// The entries: all of these layers, or a part of a large one.
    pub tree: &'a Tree,
}

/// Where a table of contents is in its blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TocPlace {
    /// Where the compressed table begins. In a gzip blob it is interrupted by heads of members.
    pub offset: u64,
    /// How many bytes of the blob it takes.
    pub length: u64,
    /// blake3 of these bytes.
    pub blake3: [u8; 32],
}

/// A blob that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobDone {
    /// sha256 of its bytes.
    pub digest: [u8; 32],
    /// How many these are.
    pub size: u64,
    /// sha256 of the uncompressed archive: its `DiffID`.
    pub diff_id: [u8; 32],
    /// Its table of contents.
    pub toc: TocPlace,
}

/// Returns one tree with the entries of all `layers`; `None` if two of them have something at one path.
pub fn union<'a>(layers: impl IntoIterator<Item = &'a Tree>) -> Option<Tree> {
    let mut builder = TreeBuilder::new();
    for entry in layers.into_iter().flat_map(Tree::entries) {
        builder.add(entry.path.clone(), entry.kind.clone()).ok()?;
    }
    builder.finish().ok()
}

/// Cuts a tree into parts of at most `most` bytes of content each, or of one file.
pub fn split(tree: &Tree, most: u64) -> Vec<Tree> {
    let mut part_of: std::collections::BTreeMap<&TreePath, usize> = Default::default();
    let (mut part, mut filled) = (0, 0);
    for entry in tree.entries() {
        let (at, size) = match &entry.kind {
            // Engines unpack each blob by itself: all names of a file are in one.
            Kind::Hardlink { first } => (part_of.get(first).copied().unwrap_or(part), 0),
            Kind::File { content, .. } => {
                if filled > 0 && filled + content.size() > most {
                    (part, filled) = (part + 1, 0);
                }
                (part, content.size())
            }
            _ => (part, 0),
        };
        filled += size;
        part_of.insert(&entry.path, at);
    }
    if part == 0 {
        return vec![tree.clone()];
    }
    let of = |number: usize| tree.filter(|path| part_of.get(path) == Some(&number));
    (0..=part).map(|number| of(number).expect("a part of a tree is a tree")).collect()
}

/// Writes a blob; `open` finds the bytes of objects.
pub fn write_blob(
    source: &BlobSource<'_>,
    compression: Compression,
    open: &dyn Fn(&ObjectId) -> io::Result<std::fs::File>,
    out: &mut dyn Write,
) -> Result<BlobDone, BlobError> {
    let out = Counted { out, hasher: Sha256::new(), count: 0 };
    let mut blob = Blob { out, compression, plain: vec![], archive: Sha256::new(), frames: vec![], open };
    write_archive(source.tree, &mut blob)?;
    blob.flush()?;
    let toc = Toc { layers: source.layers.clone(), frames: std::mem::take(&mut blob.frames) }.encode();
    let tail = match compression {
        Compression::Zstd => {
            let length = u32::try_from(toc.len()).expect("a table is smaller than 4 GiB");
            [&SKIPPABLE.to_le_bytes()[..], &length.to_le_bytes(), &toc].concat()
        }
        Compression::Gzip => gzip_tail(&toc),
    };
    let toc = TocPlace {
        offset: blob.out.count,
        length: tail.len() as u64,
        blake3: *blake3::hash(&tail).as_bytes(),
    };
    blob.out.write_all(&tail).map_err(BlobError::Write)?;
    blob.out.flush().map_err(BlobError::Write)?;
    let Blob { out, archive, .. } = blob;
    Ok(BlobDone {
        digest: out.hasher.finalize().into(),
        size: out.count,
        diff_id: archive.finalize().into(),
        toc,
    })
}

impl TocPlace {
    /// Takes the table out of the bytes at this place of a blob of `blob` bytes.
    pub fn read(&self, tail: &[u8], compression: Compression, blob: u64) -> Result<Toc, super::TocError> {
        if *blake3::hash(tail).as_bytes() != self.blake3 {
            return Err(super::TocError("is not what the manifest names".to_owned()));
        }
        let malformed = || super::TocError("is not where the manifest says".to_owned());
        let toc = match compression {
            Compression::Zstd => tail.get(8..).ok_or_else(malformed)?.to_vec(),
            Compression::Gzip => read_gzip_tail(tail).ok_or_else(malformed)?,
        };
        Toc::decode(&toc, blob)
    }
}

/// An empty member with as much in its extra field as that can hold.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255];
/// An empty final block (RFC 1951, section 3.2.3), its checksum and length.
const GZIP_END: [u8; 10] = [3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The two letters that mark our extra fields.
const GZIP_FIELD: [u8; 2] = *b"ID";
const GZIP_CHUNK: usize = 65_000;

fn gzip_tail(toc: &[u8]) -> Vec<u8> {
    let mut tail = vec![];
    for chunk in toc.chunks(GZIP_CHUNK) {
        let length = u16::try_from(chunk.len()).expect("a chunk is short");
        tail.extend(GZIP_HEAD);
        tail.extend((length + 4).to_le_bytes());
        tail.extend(GZIP_FIELD);
        tail.extend(length.to_le_bytes());
        tail.extend(chunk);
        tail.extend(GZIP_END);
    }
    tail
}

fn read_gzip_tail(mut tail: &[u8]) -> Option<Vec<u8>> {
    let mut toc = vec![];
    while !tail.is_empty() {
        let rest = tail.strip_prefix(&GZIP_HEAD)?;
        let rest = rest.get(2..)?.strip_prefix(&GZIP_FIELD)?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (chunk, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        toc.extend(chunk);
        tail = rest.strip_prefix(&GZIP_END)?;
    }
    Some(toc)
}

struct Blob<'a> {
    out: Counted<'a>,
    compression: Compression,
    /// Headers and padding that are not yet compressed.
    plain: Vec<u8>,
    archive: Sha256,
    frames: Vec<Frame>,
    open: &'a dyn Fn(&ObjectId) -> io::Result<std::fs::File>,
}

impl Pieces for Blob<'_> {
    fn plain(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.plain.extend_from_slice(bytes);
        Ok(())
    }

    fn object(&mut self, object: ObjectId, size: u64) -> Result<(), BlobError> {
        self.flush()?;
        let offset = self.out.count;
        let unreadable = |source| BlobError::Object { object, source };
        let file = (self.open)(&object).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        if length != size {
            let detail = format!("it has {length} of {size} bytes");
            return Err(BlobError::Damaged { object, detail });
        }
        let mut content =
            Checked { file, hasher: blake3::Hasher::new(), archive: &mut self.archive, failed: None };
        let copied = compress(&mut content, size, self.compression, &mut self.out);
        let Checked { hasher, failed, .. } = content;
        match (copied, failed) {
            (_, Some(source)) => return Err(unreadable(source)),
            (Err(error), None) => return Err(BlobError::Write(error)),
            (Ok(()), None) => {}
        }
        let found: ObjectId = hasher.finalize().into();
        if found != object {
            return Err(BlobError::Damaged { object, detail: format!("its bytes hash to {found}") });
        }
        let object = Reference { object, size };
        self.frames.push(Frame { object, offset, length: self.out.count - offset });
        Ok(())
    }
}

impl Blob<'_> {
    /// Ends the piece of headers and padding.
    fn flush(&mut self) -> Result<(), BlobError> {
        if self.plain.is_empty() {
            return Ok(());
        }
        let plain = std::mem::take(&mut self.plain);
        self.archive.update(&plain);
        compress(&mut plain.as_slice(), plain.len() as u64, self.compression, &mut self.out)
            .map_err(BlobError::Write)
    }
}

fn compress(
    content: &mut dyn Read,
    size: u64,
    compression: Compression,
    out: &mut dyn Write,
) -> io::Result<()> {
    match compression {
        Compression::Zstd if size <= IN_MEMORY => {
            let mut bytes = vec![];
            content.read_to_end(&mut bytes)?;
            out.write_all(&zstd::bulk::compress(&bytes, ZSTD_LEVEL)?)
        }
        Compression::Zstd => {
            let mut encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
            encoder.set_pledged_src_size(Some(size))?;
            io::copy(content, &mut encoder)?;
            encoder.finish().map(drop)
        }
        Compression::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            let mut encoder = flate2::GzBuilder::new().mtime(0).operating_system(255).write(out, level);
            io::copy(content, &mut encoder)?;
            encoder.finish().map(drop)
        }
    }
}

/// An object that is hashed as it is read.
struct Checked<'a> {
    file: std::fs::File,
    hasher: blake3::Hasher,
    archive: &'a mut Sha256,
    failed: Option<io::Error>,
}

impl Read for Checked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.file.read(buffer) {
            Ok(count) => {
                self.hasher.update(&buffer[..count]);
                self.archive.update(&buffer[..count]);
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let kind = error.kind();
                self.failed = Some(error);
                Err(kind.into())
            }
        }
    }
}

struct Counted<'a> {
    out: &'a mut dyn Write,
    hasher: Sha256,
    count: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
