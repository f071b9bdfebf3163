//! The table of contents of a blob.
//!
//! ```text
//! magic       16 bytes   "infradev toc", 0, 0, 0, version 1
//! layers      u32 LE     then each: u64 LE length, encoding
//! frames      u32 LE     number of objects whose bytes are in this blob
//!   indices   u32 LE each: the object, among the distinct objects of all layers, ascending
//!   gaps      u32 LE each: bytes between the end of the frame before and this one
//!   lengths   u64 LE each: bytes of the frame
//! ```
//!
//! Frames are in the order of the blob. In columns, since they compress better so.

use infradev_store::references::{Reference, read_head};

/// Opens every table; the last byte is the version.
const MAGIC: [u8; 16] = *b"infradev toc\0\0\0\x01";

/// No table is longer when decompressed: that of a blob with two million files.
const MAX_BYTES: u64 = 512 << 20;

/// Where the bytes of an object are in a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The object, and its size in bytes.
    pub object: Reference,
    /// Where its frame begins, in bytes.
    pub offset: u64,
    /// The frame's length in bytes.
    pub length: u64,
}

impl Frame {
    /// Where the frame ends.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// What a blob holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Toc {
    /// The encodings of its layers, in stack order. Of a layer that is spread over several blobs, the whole one.
    pub layers: Vec<Vec<u8>>,
    /// The objects whose bytes are in it, in their order there.
    pub frames: Vec<Frame>,
}

/// A table of contents that is not in order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the table of contents {0}")]
pub struct TocError(pub(super) String);

fn wrong(what: impl Into<String>) -> TocError {
    TocError(what.into())
}

impl Toc {
    /// Returns the compressed table.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(count(self.layers.len()).to_le_bytes());
        for layer in &self.layers {
            bytes.extend((layer.len() as u64).to_le_bytes());
            bytes.extend(layer);
        }
        let objects = self.objects().expect("layers of ours");
        bytes.extend(count(self.frames.len()).to_le_bytes());
        for frame in &self.frames {
            let index = objects.binary_search(&frame.object).expect("an object of one of the layers");
            bytes.extend(count(index).to_le_bytes());
        }
        let mut end = 0;
        for frame in &self.frames {
            let gap = u32::try_from(frame.offset - end).expect("headers take less than 4 GiB");
            bytes.extend(gap.to_le_bytes());
            end = frame.end();
        }
        for frame in &self.frames {
            bytes.extend(frame.length.to_le_bytes());
        }
        zstd::bulk::compress(&bytes, 9).expect("memory suffices")
    }

    /// Reads a compressed table of a blob of `blob` bytes. The layers' own form is not looked at, but for their heads.
    pub fn decode(compressed: &[u8], blob: u64) -> Result<Self, TocError> {
        let mut bytes = vec![];
        let decoder =
            zstd::Decoder::new(compressed).map_err(|error| wrong(format!("is no zstd frame: {error}")))?;
        std::io::Read::read_to_end(&mut std::io::Read::take(decoder, MAX_BYTES), &mut bytes)
            .map_err(|error| wrong(format!("is no zstd frame: {error}")))?;
        let mut rest = Rest(&bytes);
        if rest.take(MAGIC.len())? != MAGIC {
            return Err(wrong("is not of a version that this program knows"));
        }
        let mut toc = Self::default();
        for _ in 0..rest.u32()? {
            let length = usize::try_from(rest.u64()?).map_err(|_| wrong("is cut short"))?;
            toc.layers.push(rest.take(length)?.to_vec());
        }
        let objects = toc.objects()?;
        let frames = rest.u32()? as usize;
        // Three columns; checked before anything is allocated for them.
        if rest.0.len() != frames.checked_mul(16).ok_or_else(|| wrong("is cut short"))? {
            return Err(wrong("does not end where it says"));
        }
        let (mut indices, mut gaps, mut lengths) =
            (Rest(rest.take(frames * 4)?), Rest(rest.take(frames * 4)?), Rest(rest.take(frames * 8)?));
        let mut end = 0_u64;
        for _ in 0..frames {
            let index = indices.u32()? as usize;
            let object = *objects.get(index).ok_or_else(|| wrong("names an object that no layer has"))?;
            let (gap, length) = (u64::from(gaps.u32()?), lengths.u64()?);
            let offset = end + gap;
            end = offset
                .checked_add(length)
                .filter(|end| *end <= blob)
                .ok_or_else(|| wrong("leaves the blob"))?;
            toc.frames.push(Frame { object, offset, length });
        }
        Ok(toc)
    }

    /// The distinct objects of all layers, ascending.
    fn objects(&self) -> Result<Vec<Reference>, TocError> {
        let mut objects = vec![];
        for layer in &self.layers {
            let (references, _) =
                read_head(layer).map_err(|error| wrong(format!("has a bad layer: {error}")))?;
            objects.extend(references);
        }
        objects.sort_unstable();
        objects.dedup();
        Ok(objects)
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("fewer than 2^32 files")
}

/// What is not yet read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], TocError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| wrong("is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, TocError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, TocError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }
}
