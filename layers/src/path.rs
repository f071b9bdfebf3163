//! Paths inside a layer: relative, raw bytes, checked once at the door.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest name of one directory entry in bytes (NAME_MAX of every Linux file system).
pub const MAX_COMPONENT: usize = 255;
/// The longest path in bytes: PATH_MAX less the terminator, so that every path can be opened in one call.
pub const MAX_PATH: usize = 4095;

/// Why some bytes cannot be a path inside a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// It begins with a slash.
    #[error("is absolute")]
    Absolute,
    /// It has an empty, `.` or `..` component.
    #[error("has an empty, `.` or `..` component")]
    Component,
    /// It holds a NUL byte.
    #[error("holds a NUL byte")]
    Nul,
    /// A component is over 255 bytes, or the whole over 4095.
    #[error("is longer than a file system allows")]
    TooLong,
}

/// Bytes that cannot be a path inside a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path `{}` {problem}", String::from_utf8_lossy(.path))]
pub struct PathError {
    /// The offending bytes.
    pub path: Vec<u8>,
    /// What is wrong with them.
    pub problem: PathProblem,
}

/// A path relative to the root of a layer; the empty path is the root itself.
///
/// Ordered component-wise, so a directory sorts directly before everything below it.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct TreePath(Box<[u8]>);

impl TreePath {
    /// The root of a layer.
    pub fn root() -> Self {
        Self::default()
    }

    /// Checks `bytes` and takes them as a path.
    pub fn new(bytes: &[u8]) -> Result<Self, PathError> {
        Self::from_vec(bytes.to_vec())
    }

    /// As [`Self::new`], without a copy.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> Result<Self, PathError> {
        match check(&bytes) {
            Ok(()) => Ok(Self(bytes.into())),
            Err(problem) => Err(PathError { path: bytes, problem }),
        }
    }

    /// Returns `self/name`.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        let separator: &[u8] = if self.is_root() || name.is_empty() { b"" } else { b"/" };
        Self::from_vec([&self.0, separator, name].concat())
    }

    /// Whether this is the root of the layer.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the raw bytes, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for use with system calls, relative to a root.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns the directory that holds this path; `None` for the root.
    pub fn parent(&self) -> Option<TreePath> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].into()))
    }

    /// Returns the last component; empty for the root.
    pub fn file_name(&self) -> &[u8] {
        self.0.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }

    /// Iterates over the components; none for the root.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }

    /// Whether this path is `ancestor` or lies below it.
    pub fn starts_with(&self, ancestor: &TreePath) -> bool {
        ancestor.is_root()
            || self.0.strip_prefix(&*ancestor.0).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }
}

fn check(bytes: &[u8]) -> Result<(), PathProblem> {
    if bytes.is_empty() {
        return Ok(());
    }
    if bytes[0] == b'/' {
        return Err(PathProblem::Absolute);
    }
    if bytes.contains(&0) {
        return Err(PathProblem::Nul);
    }
    if bytes.len() > MAX_PATH {
        return Err(PathProblem::TooLong);
    }
    for name in bytes.split(|&byte| byte == b'/') {
        if matches!(name, b"" | b"." | b"..") {
            return Err(PathProblem::Component);
        }
        if name.len() > MAX_COMPONENT {
            return Err(PathProblem::TooLong);
        }
    }
    Ok(())
}

/// Compares component-wise: as bytes, with the separator below every other byte.
fn compare(left: &[u8], right: &[u8]) -> Ordering {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    let rank = |byte: Option<&u8>| match byte {
        None => 0,
        Some(b'/') => 1,
        Some(&byte) => u16::from(byte) + 2,
    };
    rank(left.get(common)).cmp(&rank(right.get(common)))
}

impl Ord for TreePath {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

impl PartialOrd for TreePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Borrow<[u8]> for TreePath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl std::str::FromStr for TreePath {
    type Err = PathError;
    fn from_str(text: &str) -> Result<Self, PathError> {
        Self::new(text.as_bytes())
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", String::from_utf8_lossy(&self.0).escape_debug())
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_could_leave_the_layer() {
        for (bytes, problem) in [
            (&b"/etc/passwd"[..], PathProblem::Absolute),
            (b"a/../b", PathProblem::Component),
            (b"a//b", PathProblem::Component),
            (b"./a", PathProblem::Component),
            (b"a/", PathProblem::Component),
            (b"a\0b", PathProblem::Nul),
            (&[b'x'; 256], PathProblem::TooLong),
        ] {
            assert_eq!(TreePath::new(bytes).map_err(|error| error.problem), Err(problem));
        }
        assert!(TreePath::new(b"caf\xe9/\xff").is_ok(), "names are bytes, not UTF-8");
    }

    #[test]
    fn a_directory_sorts_directly_before_its_children() {
        let mut paths: Vec<TreePath> =
            ["a.b", "a/b", "a", "", "a-", "a/b/c", "b"].iter().map(|p| p.parse().unwrap()).collect();
        paths.sort();
        let sorted: Vec<_> = paths.iter().map(|p| std::str::from_utf8(p.as_bytes()).unwrap()).collect();
        assert_eq!(sorted, ["", "a", "a/b", "a/b/c", "a-", "a.b", "b"]);
    }

    #[test]
    fn parents_and_prefixes() {
        let path: TreePath = "a/bc/d".parse().unwrap();
        assert_eq!(path.parent().unwrap().as_bytes(), b"a/bc");
        assert_eq!(path.file_name(), b"d");
        assert!(path.starts_with(&"a/bc".parse().unwrap()));
        assert!(!path.starts_with(&"a/b".parse().unwrap()));
        assert_eq!(TreePath::root().parent(), None);
    }
}
