//! The index (gitformat-index(5), version 3 where files are left out, else 2).

use std::collections::BTreeMap;

use sha1::{Digest, Sha1};

use super::objects::{GitObject, Oid};
use super::{EXECUTABLE, GitFile, SUBMODULE, SYMLINK};
use crate::path::TreePath;

/// Extended flag: the file is not in the work tree, on purpose.
const SKIP_WORKTREE: u16 = 1 << 14;
/// Flag: an extended flag word follows.
const EXTENDED: u16 = 1 << 14;
/// The longest path length that the flags can say.
const MAX_LENGTH: usize = 0xfff;

/// Writes an index in which every file has the time `time` and its true size.
pub(super) fn write(
    files: &BTreeMap<Vec<u8>, (TreePath, GitFile)>,
    objects: &BTreeMap<Oid, GitObject>,
    time: i64,
) -> Vec<u8> {
    let version: u32 = if files.values().any(|(_, file)| file.left_out) { 3 } else { 2 };
    let mut out = b"DIRC".to_vec();
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&u32::try_from(files.len()).expect("fewer than 2^32 files").to_be_bytes());
    for (path, (_, file)) in files {
        entry(path, file, objects, time, &mut out);
    }
    let checksum = Sha1::digest(&out);
    out.extend_from_slice(&checksum);
    out
}

fn entry(path: &[u8], file: &GitFile, objects: &BTreeMap<Oid, GitObject>, time: i64, out: &mut Vec<u8>) {
    let start = out.len();
    let mode = match file.mode {
        EXECUTABLE | SYMLINK | SUBMODULE => file.mode,
        _ => 0o100_644,
    };
    let size = objects.get(&file.object).map_or(0, |object| object.content.len());
    let seconds = u32::try_from(time).unwrap_or(0);
    // ctime, mtime (each seconds and nanoseconds), dev, ino, mode, uid, gid, size. Only the modification time
    // in seconds, the mode and the size are compared under core.checkStat=minimal and core.trustctime=false.
    for word in [seconds, 0, seconds, 0, 0, 0, mode, 0, 0, size as u32] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(file.object.as_bytes());
    let length = path.len().min(MAX_LENGTH) as u16;
    if file.left_out {
        out.extend_from_slice(&(length | EXTENDED).to_be_bytes());
        out.extend_from_slice(&SKIP_WORKTREE.to_be_bytes());
    } else {
        out.extend_from_slice(&length.to_be_bytes());
    }
    out.extend_from_slice(path);
    // At least one NUL, up to a multiple of eight bytes.
    let padding = 8 - (out.len() - start) % 8;
    out.resize(out.len() + padding, 0);
}
