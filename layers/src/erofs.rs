//! A merged tree as a mountable EROFS image without any data.
//!
//! A non-empty file is an inode of the right size whose content is one hole, with the two attributes by which
//! the kernel's overlayfs finds its bytes in a data-only lower layer (Documentation/filesystems/overlayfs.rst,
//! "Data-only lower layers"): an empty `trusted.overlay.metacopy`, and `trusted.overlay.redirect`, the absolute
//! path of the object below the objects directory of the store. So path, mode, owner and time belong to the
//! image and the bytes to the store, where all images share them.
//!
//! ```text
//! 0      zeros
//! 1024   superblock, 128 bytes
//! 1152   inodes in path order, each at a multiple of 32: head (32 or 64 bytes), attributes,
//!        then the null chunk of a file, the end of a directory, or the target of a symlink
//! block  whole directory blocks, and what does not fit behind its inode
//! block  shared attributes; every attribute stands here once
//! ```
//!
//! The format is that of fs/erofs/erofs_fs.h and Documentation/filesystems/erofs.rst, restricted to what
//! Linux 5.16 already reads (chunk-based files). The same tree always gives the same bytes.
//!
//! # Performance
//! The superblock's build time is the most common mtime of the tree, because an inode of that time takes 32
//! bytes, and any other 64; layers clamp their times, so nearly every inode is small. Attributes are shared even
//! when used once: the 32-byte slots of the inodes waste more than the four bytes that a reference costs.

mod directory;
mod format;
mod plan;
mod read;
mod write;
mod xattr;

#[cfg(test)]
pub(crate) mod kernel_tests;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod walk;

use std::io::{self, Write};

use crate::path::TreePath;
use crate::tree::Tree;

pub use read::{ReadError, read_image};
pub(crate) use xattr::redirect;

/// Why a tree cannot be an image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The tree is a layer, not the merge of a stack.
    #[error("{path} is a {word}: only a merged tree can be an image")]
    NotMerged {
        /// The path that only a layer can have.
        path: TreePath,
        /// What stands there.
        word: &'static str,
    },
    /// The target of a symlink is not what the kernel could have made.
    #[error("symlink {path} has a target of {length} bytes, of 1 to 4095 without NUL")]
    Target {
        /// The symlink.
        path: TreePath,
        /// The length of its target.
        length: usize,
    },
    /// An extended attribute that the format or the kernel has no place for.
    #[error("extended attribute `{}` of {path} {what}", String::from_utf8_lossy(.name))]
    Xattr {
        /// The file or directory.
        path: TreePath,
        /// The full name of the attribute.
        name: Box<[u8]>,
        /// Which limit it breaks.
        what: &'static str,
    },
    /// A file of more than 8 TiB.
    #[error("{path} has {size} bytes, more than the 8 TiB of one chunk")]
    Size {
        /// The file.
        path: TreePath,
        /// Its size.
        size: u64,
    },
    /// The image has more blocks than 32 bits count.
    #[error("the tree is too large for an image")]
    TooLarge,
    /// The image could not be written.
    #[error("cannot write the image")]
    Write(#[from] io::Error),
}

/// What an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageStats {
    /// The size of the image.
    pub bytes: u64,
    /// Inodes; hardlinked names share one.
    pub inodes: u64,
    /// Those of 32 bytes.
    pub compact_inodes: u64,
    /// Bytes of shared attributes.
    pub xattr_bytes: u64,
}

/// Writes `tree`, the result of a merge, as an image. Opaque marks and attributes of symlinks are ignored: a
/// merged tree has no use for the former, and the kernel shows no `user.*` attribute of a symlink (xattr(7)).
pub fn write_image(tree: &Tree, out: &mut impl Write) -> Result<ImageStats, ImageError> {
    let plan = plan::Plan::new(tree)?;
    let image = write::image(&plan);
    out.write_all(&image)?;
    Ok(ImageStats {
        bytes: image.len() as u64,
        inodes: plan.inodes.len() as u64,
        compact_inodes: plan.inodes.iter().filter(|inode| inode.compact).count() as u64,
        xattr_bytes: plan.xattrs.shared_bytes().len() as u64,
    })
}
