//! Archives that are not compressed: for engines that read nothing else, and for tools that read a pipe.

use std::fs::File;
use std::io::{self, Read, Write};

use infradev_store::ObjectId;
use sha2::{Digest, Sha256};

use super::BlobError;
use super::archive::{Pieces, write_archive};
use crate::tree::Tree;

/// An archive that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveDone {
    /// sha256 of its bytes: its `DiffID`.
    pub diff_id: [u8; 32],
    /// How many these are.
    pub size: u64,
}

/// Writes the canonical archive of `tree`; `open` finds the bytes of objects, which are checked.
pub fn write_plain_archive(
    tree: &Tree,
    open: &dyn Fn(&ObjectId) -> io::Result<File>,
    out: &mut dyn Write,
) -> Result<ArchiveDone, BlobError> {
    let mut plain = Plain { open, out, hasher: Sha256::new(), size: 0, buffer: vec![0; 1 << 18] };
    write_archive(tree, &mut plain)?;
    plain.out.flush().map_err(BlobError::Write)?;
    Ok(ArchiveDone { diff_id: plain.hasher.finalize().into(), size: plain.size })
}

/// Returns how long the archive of `tree` is, without reading any object.
pub fn plain_archive_size(tree: &Tree) -> Result<u64, BlobError> {
    let mut size = Size(0);
    write_archive(tree, &mut size)?;
    Ok(size.0)
}

struct Size(u64);

impl Pieces for Size {
    fn plain(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.0 += bytes.len() as u64;
        Ok(())
    }

    fn object(&mut self, _object: ObjectId, size: u64) -> Result<(), BlobError> {
        self.0 += size;
        Ok(())
    }
}

struct Plain<'a> {
    open: &'a dyn Fn(&ObjectId) -> io::Result<File>,
    out: &'a mut dyn Write,
    hasher: Sha256,
    size: u64,
    buffer: Vec<u8>,
}

impl Pieces for Plain<'_> {
    fn plain(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        self.out.write_all(bytes).map_err(BlobError::Write)
    }

    fn object(&mut self, object: ObjectId, size: u64) -> Result<(), BlobError> {
        let unreadable = |source| BlobError::Object { object, source };
        let mut file = (self.open)(&object).map_err(unreadable)?;
        let (mut hasher, mut count) = (blake3::Hasher::new(), 0);
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let read = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(error)),
            };
            hasher.update(&buffer[..read]);
            count += read as u64;
            // The header said how many there are; what follows must not be pushed away.
            if count > size {
                break;
            }
            self.plain(&buffer[..read])?;
        }
        self.buffer = buffer;
        let found: ObjectId = hasher.finalize().into();
        match count == size && found == object {
            true => Ok(()),
            false => Err(BlobError::Damaged { object, detail: format!("its bytes hash to {found}") }),
        }
    }
}
