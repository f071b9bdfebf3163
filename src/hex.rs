//! Digests of other systems, as they write them. The store's own ids print themselves.

/// Returns two lower-case digits for every byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]).collect()
}

/// Returns digits for the name of a temporary file, which no other process makes: containers that share a directory
/// count their processes alike.
pub(crate) fn unique() -> String {
    let mut bytes = [0u8; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(count) if count == bytes.len() => hex(&bytes),
        _ => format!("{}", std::process::id()),
    }
}
