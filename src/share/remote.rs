//! What a place that holds images must be able to do: a repository of a registry, or an image layout.

use std::fs::File;
use std::io::Read;

use super::Digest;
use crate::net::NetError;

/// No manifest is larger: the least that registries must take (OCI distribution specification, "Pushing Manifests").
pub const MAX_MANIFEST: u64 = 4 << 20;

/// A manifest as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawManifest {
    /// Its media type, as the place names it.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its bytes, which hash to that; at most [`MAX_MANIFEST`].
    pub bytes: Vec<u8>,
}

/// Something that a place did not do, or did wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The connection or the server failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// What arrived is not what was asked for.
    #[error("{place} gives {what} that {detail}")]
    Corrupt {
        /// The place.
        place: String,
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// It is not there.
    #[error("{place} does not have {what}")]
    Absent {
        /// The place.
        place: String,
        /// What was asked for.
        what: String,
    },
    /// A file of an image layout could not be read or written.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: std::path::PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl RemoteError {
    /// Whether the place forbids what was asked of it.
    pub fn is_denied(&self) -> bool {
        use reqwest::StatusCode;
        match self {
            RemoteError::Net(NetError::Status { status, .. }) => {
                matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            }
            RemoteError::Net(NetError::Denied { .. }) => true,
            RemoteError::Io { source, .. } => {
                use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
                matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem)
            }
            _ => false,
        }
    }
}

/// A place for images of one name. Used by several threads at once.
pub trait Remote: Sync {
    /// Names it for people, without its scheme and any password.
    fn name(&self) -> String;

    /// Whether it has the blob, of this size; asked by writers, who then need not upload it.
    fn has_blob(&self, digest: &Digest, size: u64) -> Result<bool, RemoteError>;

    /// Makes the blob of another repository of the same registry one of this, if it may; says whether it did.
    fn mount_blob(&self, digest: &Digest, from: &str) -> Result<bool, RemoteError>;

    /// Uploads a blob: `size` bytes from the start of `content`, which hash to `digest`. `progress` hears of bytes
    /// that went over; after a failure in between it may hear of some again.
    fn put_blob(
        &self,
        digest: &Digest,
        size: u64,
        content: &mut File,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), RemoteError>;

    /// Opens a blob from its byte `from` on: an answer that ends early or reads longer than `size` in all is an
    /// error of the reader. Its digest is for the caller to check, who has the bytes before.
    fn blob<'a>(
        &'a self,
        digest: &Digest,
        size: u64,
        from: u64,
    ) -> Result<Box<dyn Read + Send + 'a>, RemoteError>;

    /// Returns `length` bytes of a blob; `None` if the place gives no parts.
    fn blob_part(&self, digest: &Digest, offset: u64, length: u64) -> Result<Option<Vec<u8>>, RemoteError>;

    /// Returns the manifest of a tag or digest, checked against the digest; `None` if there is none.
    fn manifest(&self, reference: &str) -> Result<Option<RawManifest>, RemoteError>;

    /// Stores a manifest under a tag or its digest.
    fn put_manifest(&self, reference: &str, media_type: &str, bytes: &[u8]) -> Result<(), RemoteError>;

    /// Lists the manifests whose subject is `digest`, and which are of this type of artifact.
    fn referrers(&self, digest: &Digest, artifact_type: &str) -> Result<Vec<Digest>, RemoteError>;

    /// Makes a manifest findable by its `subject`, where the place does not do so by itself; an earlier one of the same
    /// type may no longer be.
    fn add_referrer(
        &self,
        subject: &Digest,
        manifest: &RawManifest,
        artifact_type: &str,
    ) -> Result<(), RemoteError>;

    /// Lists the tags.
    fn tags(&self) -> Result<Vec<String>, RemoteError>;

    /// Removes a manifest by its digest, and with it its tags; `false` if the place does not do that.
    fn remove_manifest(&self, digest: &Digest) -> Result<bool, RemoteError>;

    /// Removes the blobs that no manifest names any more, and returns their bytes; `None` where that is not for
    /// this program to do, or somebody is writing.
    fn sweep(&self) -> Result<Option<u64>, RemoteError> {
        Ok(None)
    }
}
