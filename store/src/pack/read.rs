//! Reading objects of packs, block by block.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::table::{Packed, STORED, stored_bytes};
use super::{Pack, frame};
use crate::error::{Context, Result};
use crate::{ObjectId, Store};

/// A pack whose image is open.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) pack: &'a Pack,
    file: File,
}

/// Why an object could not be read from a pack.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The pack is damaged there.
    Damaged(String),
    /// The image could not be read, or the receiver failed.
    Failed(io::Error),
}

impl Store {
    /// Opens the image of `pack`; `None` if the pack is gone.
    pub(crate) fn open_pack<'a>(&self, pack: &'a Pack) -> Result<Option<Reading<'a>>> {
        let path = self.layout().pack(&pack.id);
        match File::open(&path) {
            Ok(file) => Ok(Some(Reading { pack, file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("open", &path),
        }
    }
}

impl Reading<'_> {
    /// Gives the content of an object to `receive`, block by block, and checks it against its id at the end.
    pub(crate) fn read(
        &self,
        packed: &Packed,
        mut receive: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Unread> {
        let mut hasher = blake3::Hasher::new();
        let mut decompressor = zstd::bulk::Decompressor::new().map_err(Unread::Failed)?;
        let block_size = self.pack.table.block();
        let mut content = Vec::with_capacity(block_size as usize);
        let mut left = packed.size;
        self.frames(packed, |word, frame| {
            let expected = left.min(block_size) as usize;
            let block: &[u8] = if word & STORED != 0 {
                frame
            } else {
                content.clear();
                let decompressed = decompressor.decompress_to_buffer(frame, &mut content);
                decompressed
                    .map_err(|error| Unread::Damaged(format!("a block is no zstd frame: {error}")))?;
                &content
            };
            if block.len() != expected {
                return Err(Unread::Damaged(format!("a block has {} of {expected} bytes", block.len())));
            }
            hasher.update(block);
            left -= block.len() as u64;
            receive(block).map_err(Unread::Failed)
        })?;
        let found: ObjectId = hasher.finalize().into();
        match found == packed.object {
            true => Ok(()),
            false => Err(Unread::Damaged(format!("its bytes hash to {found}"))),
        }
    }

    /// Gives the blocks of an object to `receive` as they are in the image, each with its word.
    pub(crate) fn frames(
        &self,
        packed: &Packed,
        mut receive: impl FnMut(u32, &[u8]) -> Result<(), Unread>,
    ) -> Result<(), Unread> {
        let mut buffer = vec![];
        let mut at = packed.start;
        for word in self.pack.table.words(packed) {
            buffer.resize(stored_bytes(*word) as usize, 0);
            match self.file.read_exact_at(&mut buffer, at) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(Unread::Damaged("the image is cut short".to_owned()));
                }
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                    return Err(Unread::Damaged("the image is not a regular file".to_owned()));
                }
                other => other.map_err(Unread::Failed)?,
            }
            at += buffer.len() as u64;
            receive(*word, &buffer)?;
        }
        Ok(())
    }

    /// Compares the length of the image with what the table makes; says what is wrong.
    pub(crate) fn check_length(&self) -> io::Result<Result<(), String>> {
        let metadata = self.file.metadata()?;
        if !metadata.is_file() {
            return Ok(Err("its image is not a regular file".to_owned()));
        }
        let expected = self.pack.table.end() + frame(&self.pack.table).tail.len() as u64;
        Ok(match metadata.len() == expected {
            true => Ok(()),
            false => Err(format!("its image has {} of {expected} bytes", metadata.len())),
        })
    }

    /// Compares what stands around the blocks with what the table makes; says what is wrong.
    pub(crate) fn check_frame(&self) -> io::Result<Result<(), String>> {
        let expected = frame(&self.pack.table);
        let mut head = vec![0; expected.head.len()];
        let mut tail = vec![0; expected.tail.len()];
        self.file.read_exact_at(&mut head, 0)?;
        self.file.read_exact_at(&mut tail, self.pack.table.end())?;
        Ok(match (head, tail) == (expected.head, expected.tail) {
            true => Ok(()),
            false => Err("its image is not what its table makes".to_owned()),
        })
    }
}
