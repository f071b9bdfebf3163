//! The entries of an archive one after the other, with every extension resolved.

use std::io::{self, Read};

use tar::EntryType;

use super::header::{self, BLOCK, OCTAL_MAX};
use super::pax::{self, Extension};
use super::{TarError, TarLimits};
use crate::entry::Xattr;

/// Zero bytes that may follow the end marker: tar programs fill up a record, of 10 KiB unless told otherwise.
const MAX_PADDING: u64 = 1 << 20;

/// An entry. Its content, if it is a file, is to be read from the reader before the next entry.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    pub(super) kind: MemberKind,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) mtime: i64,
    pub(super) xattrs: Vec<Xattr>,
}

#[derive(Debug)]
pub(super) enum MemberKind {
    File,
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    Hardlink {
        target: Vec<u8>,
    },
    /// A device, FIFO or socket, as a word.
    Special(&'static str),
}

/// Reads the entries of one archive.
pub(super) struct Reader<'a> {
    input: &'a mut dyn Read,
    limits: TarLimits,
    entries: usize,
    bytes: u64,
    /// Bytes of the current content that were not read yet.
    content: u64,
    /// Bytes after it up to the next block.
    padding: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a mut dyn Read, limits: TarLimits) -> Self {
        Self { input, limits, entries: 0, bytes: 0, content: 0, padding: 0 }
    }

    /// Returns the next entry; `None` after the end marker, when all input was read and found to be nothing else.
    pub(super) fn next(&mut self) -> Result<Option<Member>, TarError> {
        self.skip_content()?;
        let mut extension: Option<Extension> = None;
        let (mut long_path, mut long_link) = (None, None);
        loop {
            let Some(block) = self.block()? else {
                let pending = extension.is_some() || long_path.is_some() || long_link.is_some();
                if pending {
                    return Err(TarError::Archive("ends after an extended header".to_owned()));
                }
                self.finish()?;
                return Ok(None);
            };
            let fields = header::parse(&block).map_err(|problem| {
                let name = &block[..100];
                let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
                TarError::entry(&name[..end], problem)
            })?;
            match fields.kind {
                EntryType::XHeader => {
                    let found = pax::parse(&self.extension(&fields)?);
                    let found = found.map_err(|problem| TarError::entry(&fields.path, problem))?;
                    if extension.replace(found).is_some() {
                        return Err(TarError::entry(
                            &fields.path,
                            "is a second extended header for one entry",
                        ));
                    }
                }
                EntryType::XGlobalHeader => {
                    let data = self.extension(&fields)?;
                    pax::check_global(&data).map_err(|problem| TarError::entry(&fields.path, problem))?;
                }
                EntryType::GNULongName | EntryType::GNULongLink => {
                    let mut name = self.extension(&fields)?;
                    while name.last() == Some(&0) {
                        name.pop();
                    }
                    let place =
                        if fields.kind == EntryType::GNULongName { &mut long_path } else { &mut long_link };
                    if name.contains(&0) || name.is_empty() || place.replace(name).is_some() {
                        return Err(TarError::entry(&fields.path, "is a malformed long name"));
                    }
                }
                _ => {
                    return self
                        .member(fields, extension.unwrap_or_default(), long_path, long_link)
                        .map(Some);
                }
            }
        }
    }

    fn member(
        &mut self,
        fields: header::Fields,
        extension: Extension,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Member, TarError> {
        let twice = (long_path.is_some() && extension.path.is_some())
            || (long_link.is_some() && extension.link.is_some());
        let path = extension.path.or(long_path).unwrap_or(fields.path);
        let fail = |problem: &str| TarError::entry(&path, problem);
        if twice {
            return Err(fail("is named by two kinds of extended header"));
        }
        let size = match extension.size {
            None => fields.size,
            // What is too large for the octal field stands there as 0 or as its maximum; else both must agree,
            // since other readers believe the other one.
            Some(size) if size == fields.size => size,
            Some(size) if size > OCTAL_MAX && matches!(fields.size, 0 | OCTAL_MAX) => size,
            Some(_) => return Err(fail("has two different sizes")),
        };
        let target = extension.link.or(long_link).unwrap_or(fields.link);
        let kind = match fields.kind {
            // Before ustar, a directory was a file whose name ends in a slash.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") && size == 0 => {
                MemberKind::Directory
            }
            EntryType::Regular | EntryType::Continuous => MemberKind::File,
            EntryType::Directory => MemberKind::Directory,
            EntryType::Symlink => MemberKind::Symlink { target },
            EntryType::Link => MemberKind::Hardlink { target },
            EntryType::Char | EntryType::Block => MemberKind::Special("device"),
            EntryType::Fifo => MemberKind::Special("FIFO"),
            EntryType::GNUSparse => return Err(fail("is sparse")),
            other => return Err(fail(&format!("is of the unknown kind {:?}", char::from(other.as_byte())))),
        };
        if size != 0 && !matches!(kind, MemberKind::File) {
            return Err(fail("has content and is no file"));
        }
        self.entries += 1;
        if self.entries >= self.limits.entries {
            return Err(TarError::Archive(format!("has {} entries or more", self.limits.entries)));
        }
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes {
            return Err(fail(&format!("makes the archive larger than {} bytes", self.limits.bytes)));
        }
        (self.content, self.padding) = (size, padding(size));
        Ok(Member {
            kind,
            mode: fields.mode,
            uid: extension.uid.unwrap_or(fields.uid),
            gid: extension.gid.unwrap_or(fields.gid),
            mtime: extension.mtime.unwrap_or(fields.mtime),
            xattrs: extension.xattrs,
            path,
        })
    }

    /// Reads the content of an extended header.
    fn extension(&mut self, fields: &header::Fields) -> Result<Vec<u8>, TarError> {
        if fields.size > self.limits.extension {
            let problem = format!("has an extended header of {} bytes", fields.size);
            return Err(TarError::entry(&fields.path, problem));
        }
        (self.content, self.padding) = (fields.size, padding(fields.size));
        let mut data = Vec::with_capacity(fields.size as usize);
        self.read_to_end(&mut data).map_err(TarError::Read)?;
        self.skip_content()?;
        Ok(data)
    }

    fn skip_content(&mut self) -> Result<(), TarError> {
        let mut rest = self.content + self.padding;
        let mut buffer = [0; 16 << 10];
        while rest > 0 {
            let wanted = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
            self.input.read_exact(&mut buffer[..wanted]).map_err(truncated)?;
            rest -= wanted as u64;
        }
        (self.content, self.padding) = (0, 0);
        Ok(())
    }

    /// Reads the next block; `None` for the first block of the end marker.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        self.input.read_exact(&mut block).map_err(truncated)?;
        Ok(block.iter().any(|&byte| byte != 0).then_some(block))
    }

    /// Reads the rest of the end marker, and what fills the last record.
    fn finish(&mut self) -> Result<(), TarError> {
        if self.block()?.is_some() {
            return Err(TarError::Archive("goes on after one block of zeros".to_owned()));
        }
        let mut buffer = [0; 16 << 10];
        let mut after = 0;
        loop {
            let count = match self.input.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TarError::Read(error)),
            };
            after += count as u64;
            if buffer[..count].iter().any(|&byte| byte != 0) || after > MAX_PADDING {
                return Err(TarError::Archive("has something after its end".to_owned()));
            }
            if count == 0 {
                return Ok(());
            }
        }
    }
}

/// The content of the current entry.
impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.input.read(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends in the middle of a file"));
        }
        self.content -= count as u64;
        Ok(count)
    }
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

fn truncated(error: io::Error) -> TarError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => TarError::Archive("ends before its end marker".to_owned()),
        _ => TarError::Read(error),
    }
}
