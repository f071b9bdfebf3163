//! Extended headers: records of the form `LENGTH KEY=VALUE\n` (POSIX.1-2017, pax, "pax Extended Header").

use std::collections::BTreeMap;

use crate::entry::Xattr;

/// The records of one extended header that this crate understands.
#[derive(Debug, Default)]
pub(super) struct Extension {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<i64>,
    pub(super) xattrs: Vec<Xattr>,
}

/// Takes an extended header apart. The error says what is wrong with it.
pub(super) fn parse(data: &[u8]) -> Result<Extension, String> {
    let mut extension = Extension::default();
    for (key, value) in records(data)? {
        // An empty value takes a record back, and there is nothing to take back.
        if value.is_empty() {
            continue;
        }
        match key {
            b"path" => extension.path = Some(no_nul(value)?),
            b"linkpath" => extension.link = Some(no_nul(value)?),
            b"size" => extension.size = Some(decimal(value)?),
            b"uid" => extension.uid = Some(decimal(value)?),
            b"gid" => extension.gid = Some(decimal(value)?),
            b"mtime" => extension.mtime = Some(seconds(value)?),
            _ if key.starts_with(b"GNU.sparse") => return Err("is sparse".to_owned()),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    extension.xattrs.push((name.into(), value.into()));
                }
            }
        }
    }
    Ok(extension)
}

/// Checks a global extended header, of which only comments are accepted: git writes the commit there.
pub(super) fn check_global(data: &[u8]) -> Result<(), String> {
    match records(data)?.into_keys().find(|key| *key != b"comment") {
        None => Ok(()),
        Some(key) => Err(format!("sets `{}` for all entries", String::from_utf8_lossy(key))),
    }
}

fn records(mut data: &[u8]) -> Result<BTreeMap<&[u8], &[u8]>, String> {
    let malformed = || "has a malformed extended header".to_owned();
    let mut records = BTreeMap::new();
    while !data.is_empty() {
        let space = data.iter().take(20).position(|&byte| byte == b' ').ok_or_else(malformed)?;
        let length = usize::try_from(decimal(&data[..space])?).map_err(|_| malformed())?;
        if length > data.len() || length < space + 3 || data[length - 1] != b'\n' {
            return Err(malformed());
        }
        let record = &data[space + 1..length - 1];
        let equals =
            record.iter().position(|&byte| byte == b'=').filter(|&at| at > 0).ok_or_else(malformed)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        if key.contains(&0) {
            return Err(malformed());
        }
        if records.insert(key, value).is_some() {
            return Err(format!("has two records `{}`", String::from_utf8_lossy(key)));
        }
        data = &data[length..];
    }
    Ok(records)
}

fn no_nul(value: &[u8]) -> Result<Vec<u8>, String> {
    if value.contains(&0) { Err("has a NUL byte in a name".to_owned()) } else { Ok(value.to_vec()) }
}

fn decimal(value: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(value).ok().filter(|_| value.iter().all(u8::is_ascii_digit));
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("has `{}` where a number belongs", String::from_utf8_lossy(value)))
}

/// Whole seconds of a time that may have a sign and a fraction; towards the past, as file systems cut it.
fn seconds(value: &[u8]) -> Result<i64, String> {
    let (negative, digits) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let (whole, fraction) = match digits.iter().position(|&byte| byte == b'.') {
        Some(dot) => (&digits[..dot], &digits[dot + 1..]),
        None => (digits, &[][..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err("has a malformed time".to_owned());
    }
    let whole = i64::try_from(decimal(whole)?).map_err(|_| "has a time out of range".to_owned())?;
    let cut = negative && fraction.iter().any(|&digit| digit != b'0');
    Ok(if negative { -whole - i64::from(cut) } else { whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_taken_apart() {
        let extension = parse(b"12 path=a/b\n20 mtime=1234567.89\n27 SCHILY.xattr.user.x=\0\n\xff\n")
            .expect("is in order");
        assert_eq!(extension.path.as_deref(), Some(&b"a/b"[..]));
        assert_eq!(extension.mtime, Some(1_234_567));
        assert_eq!(extension.xattrs, [(b"user.x"[..].into(), b"\0\n\xff"[..].into())]);
        assert_eq!(parse(b"15 mtime=-12.5\n").expect("is in order").mtime, Some(-13));
    }

    #[test]
    fn malformed_records_are_refused() {
        for bad in [
            &b"11 path=a/b\n"[..],
            b"13 path=a/b\n",
            b"12 path=a/b",
            b"+12 path=a/b\n",
            b"99999999999999999999 path=a\n",
            b"6 =ab\n",
            b"7 path\n",
            b"3 \n",
            b"12 path=a\0b\n",
            b"12 path=a/b\n12 path=a/c\n",
            b"10 size=a\n",
            b"11 size=-1\n",
            b"22 GNU.sparse.major=1\n",
            b"\0",
        ] {
            assert!(parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert!(check_global(b"13 comment=x\n").is_ok());
        assert!(check_global(b"10 path=x\n").is_err());
    }
}
