//! Git objects: names, content, and the parts of commits and trees that a layer needs.

use std::fmt;
use std::io;
use std::str::FromStr;

use sha1::{Digest, Sha1};

use super::{GitError, SUBMODULE};
use crate::path::TreePath;

/// The name of a git object: sha1 of its kind, size and content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Oid([u8; 20]);

impl Oid {
    pub(super) fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Oid({self})")
    }
}

/// A string that is not 40 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the full name of a git object: expected 40 lower-case hexadecimal digits")]
pub struct ParseOidError(String);

impl FromStr for Oid {
    type Err = ParseOidError;
    fn from_str(text: &str) -> Result<Self, ParseOidError> {
        let well_formed =
            text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut bytes = [0; 20];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let pair = text.get(2 * at..2 * at + 2).filter(|_| well_formed);
            let pair = pair.ok_or_else(|| ParseOidError(text.to_owned()))?;
            *byte = u8::from_str_radix(pair, 16).expect("two hexadecimal digits");
        }
        Ok(Self(bytes))
    }
}

/// The kinds of object that a commit's tree consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitObjectKind {
    /// A commit.
    Commit,
    /// A directory.
    Tree,
    /// A file.
    Blob,
}

impl GitObjectKind {
    /// Returns the word that git uses.
    pub fn word(self) -> &'static str {
        match self {
            GitObjectKind::Commit => "commit",
            GitObjectKind::Tree => "tree",
            GitObjectKind::Blob => "blob",
        }
    }
}

/// An object's kind and content.
#[derive(Debug, Clone)]
pub struct GitObject {
    /// Its kind.
    pub kind: GitObjectKind,
    /// Its bytes, without git's header.
    pub content: Vec<u8>,
}

/// Where objects come from. Implementations need not be trusted: every object is checked against its name.
pub trait GitSource {
    /// Returns the object, or `None` if the repository does not have it.
    fn object(&mut self, object: Oid) -> io::Result<Option<GitObject>>;
}

/// Reads an object and checks that it is of `kind` and hashes to its name.
pub(super) fn read(
    source: &mut dyn GitSource,
    object: Oid,
    kind: GitObjectKind,
    path: Option<&TreePath>,
) -> Result<GitObject, GitError> {
    let missing = || GitError::Missing { object, path: path.cloned() };
    let found = source.object(object).map_err(GitError::Read)?.ok_or_else(missing)?;
    if found.kind != kind {
        return Err(GitError::Object { object, problem: "is of another kind than its use says" });
    }
    let mut hasher = Sha1::new();
    hasher.update(format!("{} {}\0", kind.word(), found.content.len()));
    hasher.update(&found.content);
    if hasher.finalize()[..] != object.0 {
        return Err(GitError::Object { object, problem: "does not hash to its name" });
    }
    Ok(found)
}

/// Returns the root tree and the committer's time of a commit.
pub(super) fn parse_commit(commit: Oid, object: &GitObject) -> Result<(Oid, i64), GitError> {
    let invalid = GitError::Object { object: commit, problem: "is not a well-formed commit" };
    let text = String::from_utf8_lossy(&object.content);
    let mut header = text.lines().take_while(|line| !line.is_empty());
    let tree = header.next().and_then(|line| line.strip_prefix("tree ")).and_then(|tree| tree.parse().ok());
    let committer = header.find_map(|line| line.strip_prefix("committer "));
    let time = committer.and_then(|line| line.rsplit(' ').nth(1)).and_then(|time| time.parse().ok());
    tree.zip(time).ok_or(invalid)
}

/// An entry of a git tree.
pub(super) struct GitTreeEntry {
    pub(super) mode: u32,
    pub(super) name: Vec<u8>,
    pub(super) object: Oid,
}

impl GitTreeEntry {
    pub(super) fn is_tree(&self) -> bool {
        self.mode == 0o40_000
    }
}

pub(super) fn parse_tree(tree: Oid, object: &GitObject) -> Result<Vec<GitTreeEntry>, GitError> {
    let invalid = || GitError::Object { object: tree, problem: "is not a well-formed tree" };
    let mut rest = object.content.as_slice();
    let mut entries = vec![];
    while !rest.is_empty() {
        let space = rest.iter().position(|&byte| byte == b' ').ok_or_else(invalid)?;
        let end = rest.iter().position(|&byte| byte == 0).filter(|&end| end > space).ok_or_else(invalid)?;
        let mode =
            std::str::from_utf8(&rest[..space]).ok().and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let mode = mode.ok_or_else(invalid)?;
        let name = rest[space + 1..end].to_vec();
        let (object, after) = rest[end + 1..].split_first_chunk::<20>().ok_or_else(invalid)?;
        // git itself refuses these names; a repository made by hand may have them.
        let hides_repository = name.eq_ignore_ascii_case(b".git");
        if hides_repository
            || !matches!(mode, 0o40_000 | 0o100_644 | 0o100_664 | 0o100_755 | 0o120_000 | SUBMODULE)
        {
            return Err(invalid());
        }
        entries.push(GitTreeEntry { mode, name, object: Oid(*object) });
        rest = after;
    }
    Ok(entries)
}
