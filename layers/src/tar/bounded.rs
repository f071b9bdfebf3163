//! Compressed archives, decompressed within bounds.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

/// Output below this is never too much.
const FREE: u64 = 64 << 20;
/// How many times its input the output may be: deflate cannot pass 1032, and what people store stays far below.
const MAX_RATIO: u64 = 1100;
/// The largest window of a zstd frame, as a power of two: 32 MiB. Level 19 writes 8 MiB.
const MAX_WINDOW: u32 = 25;

/// A plain, gzip or zstd stream, by its first bytes; reading fails once it gives far more than it takes.
pub struct Decompressed<'a> {
    decoder: Box<dyn Read + 'a>,
    taken: std::rc::Rc<std::cell::Cell<u64>>,
    given: u64,
    is_compressed: bool,
}

impl<'a> Decompressed<'a> {
    /// Looks at the first bytes of `input`.
    pub fn new(input: impl Read + 'a) -> io::Result<Self> {
        let taken = std::rc::Rc::new(std::cell::Cell::new(0));
        let mut input = BufReader::with_capacity(1 << 18, Counted { input, taken: taken.clone() });
        let (decoder, is_compressed): (Box<dyn Read + 'a>, bool) = match input.fill_buf()? {
            [0x1f, 0x8b, ..] => (Box::new(MultiGzDecoder::new(input)), true),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                let mut decoder = zstd::Decoder::with_buffer(input)?;
                decoder.window_log_max(MAX_WINDOW)?;
                (Box::new(decoder), true)
            }
            [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(unknown("xz")),
            [b'B', b'Z', b'h', ..] => return Err(unknown("bzip2")),
            [b'P', b'K', 3 | 5, ..] => return Err(unknown("zip")),
            _ => (Box::new(input), false),
        };
        Ok(Self { decoder, taken, given: 0, is_compressed })
    }

    /// Bytes of the input that were read so far.
    pub fn taken(&self) -> u64 {
        self.taken.get()
    }
}

fn unknown(compression: &str) -> io::Error {
    let text = format!("it is compressed with {compression}: only gzip, zstd and plain archives are read");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Read for Decompressed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        self.given += count as u64;
        if self.is_compressed && self.given > FREE && self.given / MAX_RATIO > self.taken.get() {
            let text = format!("it unpacks to more than {MAX_RATIO} times its size");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(count)
    }
}

impl std::fmt::Debug for Decompressed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressed")
            .field("taken", &self.taken)
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}

struct Counted<R> {
    input: R,
    taken: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.taken.set(self.taken.get() + count as u64);
        Ok(count)
    }
}
