//! What stands at one path of a layer.

use infradev_store::ObjectId;

use crate::path::TreePath;

/// An extended attribute: its full name and its value.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// Mode, owner, time and extended attributes of a directory, file or symlink.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Permission bits, `07777`; set-user-id and set-group-id never occur.
    pub mode: u16,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Modification time in whole seconds since 1970.
    pub mtime: i64,
    /// Extended attributes by full name, sorted; only `user.*` without `user.overlay.*`.
    pub xattrs: Vec<Xattr>,
}

impl Metadata {
    /// Returns metadata of root, without extended attributes; strips set-id bits from `mode`.
    pub fn new(mode: u32, mtime: i64) -> Self {
        Self { mode: clean_mode(mode), uid: 0, gid: 0, mtime, xattrs: Vec::new() }
    }

    /// What a directory gets that no layer describes: the date 1980-01-01, the earliest that every format can hold.
    pub fn implied() -> Self {
        Self::new(0o755, 315_532_800)
    }
}

/// Keeps the permission and sticky bits of `mode`; drops set-user-id and set-group-id.
///
/// A layer must never carry privilege: its files are readable by everyone on the host.
pub fn clean_mode(mode: u32) -> u16 {
    (mode & 0o1777) as u16
}

/// Whether an extended attribute may stand in a layer.
///
/// `user.overlay.*` would be obeyed by overlayfs when mounted, and the other namespaces carry privilege
/// (`security.capability`) or host policy (`security.selinux`).
pub fn xattr_allowed(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(b"user.overlay.")
}

/// The content of a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// No bytes; such a file needs no object.
    Empty,
    /// An object of the store and its size in bytes.
    Object(ObjectId, u64),
}

impl Content {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Content::Empty => 0,
            Content::Object(_, size) => *size,
        }
    }

    /// Returns the object; `None` for an empty file.
    pub fn object(&self) -> Option<ObjectId> {
        match self {
            Content::Empty => None,
            Content::Object(object, _) => Some(*object),
        }
    }
}

/// The kinds of thing at a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A directory. An opaque one hides everything that lower layers have below it.
    Directory {
        /// Its metadata.
        metadata: Metadata,
        /// Hides the lower layers' directory of the same path.
        opaque: bool,
    },
    /// A directory that only exists because something below it does; a lower layer's metadata wins.
    ImpliedDirectory,
    /// A regular file.
    File {
        /// Its metadata.
        metadata: Metadata,
        /// Its content.
        content: Content,
    },
    /// A symbolic link.
    Symlink {
        /// Its metadata; the mode is always `0777`.
        metadata: Metadata,
        /// Its target, not interpreted.
        target: Box<[u8]>,
    },
    /// Another name of the file or symlink at an earlier path of the same layer.
    Hardlink {
        /// The first path of the file.
        first: TreePath,
    },
    /// Hides the path in lower layers.
    Whiteout,
}

impl Kind {
    /// Whether this is a directory, implied or not.
    pub fn is_directory(&self) -> bool {
        matches!(self, Kind::Directory { .. } | Kind::ImpliedDirectory)
    }

    /// Returns the metadata, for kinds that carry their own.
    pub fn metadata(&self) -> Option<&Metadata> {
        match self {
            Kind::Directory { metadata, .. }
            | Kind::File { metadata, .. }
            | Kind::Symlink { metadata, .. } => Some(metadata),
            Kind::ImpliedDirectory | Kind::Hardlink { .. } | Kind::Whiteout => None,
        }
    }

    /// Returns a word for tables and messages.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Directory { .. } | Kind::ImpliedDirectory => "directory",
            Kind::File { .. } => "file",
            Kind::Symlink { .. } => "symlink",
            Kind::Hardlink { .. } => "hardlink",
            Kind::Whiteout => "whiteout",
        }
    }
}

/// A path and what stands there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Where.
    pub path: TreePath,
    /// What.
    pub kind: Kind,
}
