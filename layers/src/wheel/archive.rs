//! The zip archive, checked to have one reading: what one reader sees, every reader sees.
//!
//! A zip file says everything twice: in the central directory, which this crate follows, and before each entry,
//! which readers of streams follow (APPNOTE.TXT 4.3.7, 4.3.12). An archive that shows a scanner one thing and
//! an installer another is refused, whichever of the two is harmless.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use zip::ZipArchive;

use super::{WheelError, damaged};

/// More entries than any wheel has; zip itself could hold four thousand million.
const MAX_ENTRIES: usize = 1_000_000;
/// Deflate makes at most 1032 bytes of one.
const MAX_RATIO: u64 = 1100;

/// Refuses an archive that could be read in two ways, or that unpacks to more than it can hold.
pub(super) fn check<R: Read + Seek>(path: &Path, zip: &mut ZipArchive<R>) -> Result<(), WheelError> {
    let mut file = io::BufReader::new(File::open(path).map_err(WheelError::Open)?);
    let size = file.get_ref().metadata().map_err(WheelError::Open)?.len();
    let refuse = |problem: &str| WheelError::Entry { entry: "the archive".into(), problem: problem.into() };
    if zip.len() > MAX_ENTRIES {
        return Err(refuse("has too many entries"));
    }
    check_directory(&mut file, zip)?;
    let mut total = 0u64;
    let mut places = Vec::with_capacity(zip.len());
    for number in 0..zip.len() {
        let entry = zip.by_index_raw(number).map_err(|error| damaged(None, error))?;
        total = total.saturating_add(entry.size());
        let start = entry.header_start();
        let data = entry.data_start().unwrap_or(start);
        places.push((start, data.saturating_add(entry.compressed_size())));
        let problem =
            Local::read(&mut file, start).map_err(|error| damaged(None, error))?.differs_from(&entry);
        if let Some(problem) = problem {
            return Err(WheelError::Entry { entry: entry.name().to_owned(), problem: problem.into() });
        }
    }
    if total > size.saturating_mul(MAX_RATIO) {
        return Err(refuse("unpacks to more than a zip of its size can hold"));
    }
    places.sort_unstable();
    if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(refuse("has entries that share their bytes"));
    }
    Ok(())
}

/// Walks the central directory itself, since `zip` keeps one of two entries of one name and does not tell.
fn check_directory<R: Read + Seek, Z>(
    file: &mut io::BufReader<R>,
    zip: &ZipArchive<Z>,
) -> Result<(), WheelError>
where
    Z: Read + Seek,
{
    const SIGNATURE: &[u8] = b"PK\x01\x02";
    let fail = |source| WheelError::Zip { entry: None, source };
    file.seek(SeekFrom::Start(zip.central_directory_start())).map_err(fail)?;
    let mut names = HashSet::new();
    let mut head = [0; 46];
    loop {
        file.read_exact(&mut head[..4]).map_err(fail)?;
        if &head[..4] != SIGNATURE {
            break;
        }
        file.read_exact(&mut head[4..]).map_err(fail)?;
        let length = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let mut name = vec![0; length(28).into()];
        file.read_exact(&mut name).map_err(fail)?;
        file.seek_relative(i64::from(length(30)) + i64::from(length(32))).map_err(fail)?;
        if let Some(name) = names.replace(name).filter(|name| !name.ends_with(b"/")) {
            let entry = String::from_utf8_lossy(&name).into_owned();
            return Err(WheelError::Entry { entry, problem: "is in the archive twice".into() });
        }
    }
    if names.len() == zip.len() {
        return Ok(());
    }
    Err(fail(io::Error::new(io::ErrorKind::InvalidData, "its directory is not where it says")))
}

/// What stands before an entry.
struct Local {
    flags: u16,
    method: u16,
    checksum: u32,
    compressed: u32,
    size: u32,
    name: Vec<u8>,
}

impl Local {
    /// The sizes and the checksum follow the content.
    const FOLLOWED: u16 = 1 << 3;
    /// The sizes stand in an extra field (APPNOTE.TXT 4.5.3).
    const ZIP64: u32 = u32::MAX;

    fn read(file: &mut (impl Read + Seek), start: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(start))?;
        let mut head = [0; 30];
        file.read_exact(&mut head)?;
        if &head[..4] != b"PK\x03\x04" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "an entry is not where the directory says",
            ));
        }
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let long = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut name = vec![0; short(26).into()];
        file.read_exact(&mut name)?;
        let (checksum, compressed, size) = (long(14), long(18), long(22));
        Ok(Self { flags: short(6), method: short(8), checksum, compressed, size, name })
    }

    /// Says in what the entry differs from what the directory says of it.
    fn differs_from(&self, entry: &zip::read::ZipFile<'_, impl Read>) -> Option<&'static str> {
        let same = |local: u32, central: u64| local == Self::ZIP64 || u64::from(local) == central;
        #[expect(deprecated, reason = "the only way to the number, which is compared and not interpreted")]
        let method = entry.compression().to_u16();
        if self.name != entry.name_raw() {
            return Some("has another name where its content stands");
        }
        if self.method != method {
            return Some("is compressed in another way than the directory says");
        }
        let is_followed = self.flags & Self::FOLLOWED != 0;
        let agrees = self.checksum == entry.crc32()
            && same(self.compressed, entry.compressed_size())
            && same(self.size, entry.size());
        (!is_followed && !agrees).then_some("has another size or checksum where its content stands")
    }
}
