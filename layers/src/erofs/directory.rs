//! Directory content: blocks of sorted entries, each block its table first and then its names.

use super::format::{BLOCK, DIRENT_SIZE};

/// One name and the inode that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dirent<'a> {
    pub(super) name: &'a [u8],
    pub(super) nid: u64,
    pub(super) file_type: u8,
}

/// Returns the size of the content of a directory with these names. All blocks but the last are whole.
pub(super) fn size<'a>(names: impl Iterator<Item = &'a [u8]>) -> usize {
    let (mut whole, mut used) = (0, 0);
    for name in names {
        let more = DIRENT_SIZE + name.len();
        if used + more > BLOCK {
            whole += BLOCK;
            used = 0;
        }
        used += more;
    }
    whole + used
}

/// Appends the content of a directory; `dirents` are sorted by name, `.` and `..` among them.
pub(super) fn write(mut dirents: &[Dirent<'_>], out: &mut Vec<u8>) {
    while !dirents.is_empty() {
        let (count, names) = fitting(dirents);
        let mut name_offset = count * DIRENT_SIZE;
        for dirent in &dirents[..count] {
            out.extend_from_slice(&dirent.nid.to_le_bytes());
            out.extend_from_slice(&(name_offset as u16).to_le_bytes());
            out.extend_from_slice(&[dirent.file_type, 0]);
            name_offset += dirent.name.len();
        }
        for dirent in &dirents[..count] {
            out.extend_from_slice(dirent.name);
        }
        dirents = &dirents[count..];
        if !dirents.is_empty() {
            out.resize(out.len() + BLOCK - count * DIRENT_SIZE - names, 0);
        }
    }
}

/// Returns how many of `dirents` fit in one block, and the bytes of their names.
fn fitting(dirents: &[Dirent<'_>]) -> (usize, usize) {
    let mut names = 0;
    for (count, dirent) in dirents.iter().enumerate() {
        if (count + 1) * DIRENT_SIZE + names + dirent.name.len() > BLOCK {
            return (count, names);
        }
        names += dirent.name.len();
    }
    (dirents.len(), names)
}

/// Reads the content of a directory; `None` if it is damaged.
pub(super) fn read(content: &[u8]) -> Option<Vec<Dirent<'_>>> {
    let mut dirents = vec![];
    for block in content.chunks(BLOCK) {
        let offset_at = |number: usize| {
            let bytes = block.get(number * DIRENT_SIZE + 8..)?.first_chunk::<2>()?;
            Some(usize::from(u16::from_le_bytes(*bytes)))
        };
        let names = offset_at(0)?;
        let count = names / DIRENT_SIZE;
        if count == 0 || names % DIRENT_SIZE != 0 {
            return None;
        }
        for number in 0..count {
            let entry = block.get(number * DIRENT_SIZE..(number + 1) * DIRENT_SIZE)?;
            let start = offset_at(number)?;
            let name = match number + 1 {
                next if next < count => block.get(start..offset_at(next)?)?,
                _ => block.get(start..)?.split(|&byte| byte == 0).next()?,
            };
            let nid = u64::from_le_bytes(*entry.first_chunk()?);
            dirents.push(Dirent { name, nid, file_type: entry[10] });
        }
    }
    Some(dirents)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn reads_what_it_wrote(mut names in prop::collection::vec(prop::collection::vec(1u8.., 1..=255), 1..90)) {
            names.sort();
            let dirents: Vec<_> =
                names.iter().enumerate().map(|(n, name)| Dirent { name, nid: n as u64, file_type: 1 }).collect();
            let mut content = vec![];
            write(&dirents, &mut content);
            prop_assert_eq!(content.len(), size(names.iter().map(|name| &name[..])));
            prop_assert_eq!(read(&content), Some(dirents));
        }

        #[test]
        fn damage_is_no_panic(content in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&content);
        }
    }
}
