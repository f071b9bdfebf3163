//! One header block (POSIX.1-2017, pax, "ustar Interchange Format", and GNU's base-256 numbers).

use tar::{EntryType, Header};

/// The size of a block.
pub(super) const BLOCK: usize = 512;

/// The fields of a header block that matter, before extensions change them.
#[derive(Debug)]
pub(super) struct Fields {
    pub(super) kind: EntryType,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) size: u64,
    pub(super) mtime: i64,
}

/// The largest size that the octal field can hold: 8 GiB less one byte.
pub(super) const OCTAL_MAX: u64 = 0o777_7777_7777;

/// Takes a header apart. The error says what is wrong with it.
pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Fields, &'static str> {
    check_sum(block)?;
    let header = Header::from_byte_slice(block);
    let raw = header.as_old();
    // Flags of a GNU or ustar header are part of its magic; an unknown magic is the form of before 1988.
    let mode = number(&raw.mode)? as u32 & 0o7777;
    Ok(Fields {
        kind: header.entry_type(),
        path: header.path_bytes().into_owned(),
        link: header.link_name_bytes().unwrap_or_default().into_owned(),
        mode,
        uid: number(&raw.uid)?,
        gid: number(&raw.gid)?,
        size: number(&raw.size)?,
        mtime: signed(&raw.mtime)?,
    })
}

/// The sum of all bytes, with the field of the sum itself as blanks.
fn check_sum(block: &[u8; BLOCK]) -> Result<(), &'static str> {
    let field = 148..156;
    let sum: u64 = block
        .iter()
        .enumerate()
        .map(|(at, &byte)| u64::from(if field.contains(&at) { b' ' } else { byte }))
        .sum();
    if number(&block[field])? == sum { Ok(()) } else { Err("has a header whose checksum is wrong") }
}

fn number(field: &[u8]) -> Result<u64, &'static str> {
    u64::try_from(signed(field)?).map_err(|_| "has a negative number in its header")
}

/// Octal digits between blanks or NULs, or a big-endian number marked by the top bit; an empty field is 0.
fn signed(field: &[u8]) -> Result<i64, &'static str> {
    const MALFORMED: &str = "has a malformed number in its header";
    if field[0] & 0x80 != 0 {
        // The bit after the mark is the sign; the rest must be copies of it, down to 64 bits.
        let sign: u8 = if field[0] & 0x40 == 0 { 0x00 } else { 0xff };
        let first = (field[0] & 0x7f) | (sign & 0x80);
        let low = &field[field.len().saturating_sub(8)..];
        let high = &field[..field.len() - low.len()];
        let fits = match high.split_first() {
            None => true,
            Some((_, rest)) => first == sign && rest.iter().all(|&byte| byte == sign),
        };
        let mut bytes = [sign; 8];
        bytes[8 - low.len()..].copy_from_slice(low);
        if high.is_empty() {
            bytes[8 - low.len()] = first;
        }
        let value = i64::from_be_bytes(bytes);
        return if fits && (value < 0) == (sign == 0xff) {
            Ok(value)
        } else {
            Err("has a number in its header that is out of range")
        };
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let digits: Vec<u8> =
        field.iter().copied().skip_while(|byte| is_blank(byte)).take_while(|byte| !is_blank(byte)).collect();
    let after = field.iter().skip_while(|byte| is_blank(byte)).skip(digits.len());
    if !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) || !after.clone().all(is_blank) {
        return Err(MALFORMED);
    }
    Ok(digits.iter().fold(0, |value, digit| value * 8 + i64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(signed(b"0000644\0"), Ok(0o644));
        assert_eq!(signed(b"   644 \0"), Ok(0o644));
        assert_eq!(signed(&[0; 12]), Ok(0));
        assert_eq!(signed(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Ok(8 << 30));
        assert_eq!(signed(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"), Ok(-2));
        assert_eq!(signed(b"\x80\0\0\0\0\0\0\x01"), Ok(1));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff"), Err("has a negative number in its header"));
        for bad in [
            &b"0000648\0"[..],
            b"64 4\0\0\0\0",
            b"-0000644",
            b"\x80\x01\0\0\0\0\0\0\0\0\0\0",
            b"\x80\0\0\0\x80\0\0\0\0\0\0\0",
        ] {
            assert!(signed(bad).is_err(), "{bad:?}");
        }
    }
}
