//! A pack and its index (gitformat-pack(5), version 2 of both), without deltas, in the order of the names.
//!
//! Compression is part of the layer's id, so its level and implementation (flate2's Rust back end) are fixed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use flate2::{Compression, CrcWriter, write::ZlibEncoder};
use rayon::prelude::*;
use sha1::{Digest, Sha1};

use super::objects::{GitObject, GitObjectKind, Oid};

/// A pack, its index, and the checksum that both are named after.
pub(super) struct Packed {
    pub(super) pack: Vec<u8>,
    pub(super) index: Vec<u8>,
    pub(super) checksum: String,
}

pub(super) fn write(objects: &BTreeMap<Oid, GitObject>) -> Packed {
    let encoded: Vec<(&Oid, Vec<u8>, u32)> = objects
        .par_iter()
        .map(|(oid, object)| {
            let mut writer = CrcWriter::new(vec![]);
            encode(object, &mut writer);
            let crc = writer.crc().sum();
            (oid, writer.into_inner(), crc)
        })
        .collect();
    let mut pack = b"PACK".to_vec();
    pack.extend_from_slice(&2u32.to_be_bytes());
    pack.extend_from_slice(&count(encoded.len()).to_be_bytes());
    let mut rows = vec![];
    for (oid, bytes, crc) in &encoded {
        let offset = u32::try_from(pack.len()).ok().filter(|offset| offset >> 31 == 0);
        rows.push((**oid, *crc, offset.expect("the sources of one commit are far below 2 GiB")));
        pack.extend_from_slice(bytes);
    }
    let checksum = Sha1::digest(&pack);
    pack.extend_from_slice(&checksum);
    let hex = checksum.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
        hex
    });
    Packed { index: index(&rows, &checksum), pack, checksum: hex }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).expect("a commit has fewer than 2^32 objects")
}

fn encode(object: &GitObject, out: &mut CrcWriter<Vec<u8>>) {
    let kind: u8 = match object.kind {
        GitObjectKind::Commit => 1,
        GitObjectKind::Tree => 2,
        GitObjectKind::Blob => 3,
    };
    let mut size = object.content.len();
    let mut byte = kind << 4 | (size & 15) as u8;
    size >>= 4;
    let mut header = vec![];
    while size > 0 {
        header.push(byte | 0x80);
        byte = (size & 0x7f) as u8;
        size >>= 7;
    }
    header.push(byte);
    let mut compress = || {
        out.write_all(&header)?;
        let mut encoder = ZlibEncoder::new(&mut *out, Compression::new(6));
        encoder.write_all(&object.content)?;
        encoder.finish().map(drop)
    };
    compress().expect("writing to memory cannot fail");
}

fn index(rows: &[(Oid, u32, u32)], pack_checksum: &[u8]) -> Vec<u8> {
    let mut out = b"\xfftOc\x00\x00\x00\x02".to_vec();
    for first in 0..=255u8 {
        let below = rows.partition_point(|(oid, ..)| oid.as_bytes()[0] <= first);
        out.extend_from_slice(&count(below).to_be_bytes());
    }
    rows.iter().for_each(|(oid, ..)| out.extend_from_slice(oid.as_bytes()));
    rows.iter().for_each(|(_, crc, _)| out.extend_from_slice(&crc.to_be_bytes()));
    rows.iter().for_each(|(.., offset)| out.extend_from_slice(&offset.to_be_bytes()));
    out.extend_from_slice(pack_checksum);
    let checksum = Sha1::digest(&out);
    out.extend_from_slice(&checksum);
    out
}
