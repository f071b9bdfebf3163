//! Root file systems: one archive of the maintainer, as an image of one layer that the archive's own hash names.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use infradev_layers::Decompressed;
use infradev_recipes::ImageLayer;
use infradev_store::Lease;
use sha2::{Digest as _, Sha256};

use super::super::BuildError;
use super::{Hashed, Resolved};
use crate::net::NetError;
use crate::session::Session;
use crate::share::Digest;

/// An archive of a root file system.
pub(super) struct Tarball {
    path: PathBuf,
    /// What the recipe says that it hashes to.
    digest: Option<String>,
    /// Holds the directory into which it was downloaded.
    downloaded: Option<Lease>,
}

impl Tarball {
    /// Finds the archive: a path, relative to the project's `folder`, or a URL, which a mirror may stand for.
    pub(super) fn open(
        session: &Session,
        folder: &Path,
        place: &str,
        digest: Option<&str>,
    ) -> Result<Result<Self, String>, BuildError> {
        let digest = digest.map(str::to_owned);
        let found = session.config.mirror(place);
        if !found.starts_with("https://") && !found.starts_with("http://") {
            let path = folder.join(found);
            let problem = match std::fs::metadata(&path) {
                Ok(there) if there.is_dir() => Some(format!(
                    "{} is a directory: make an archive of it (tar -C DIR -cf FILE .)",
                    path.display()
                )),
                Ok(there) if !there.is_file() => Some(format!("{} is no file", path.display())),
                Ok(_) => None,
                Err(error) => Some(format!("{}: {error}", path.display())),
            };
            return Ok(problem.map_or(Ok(Self { path, digest, downloaded: None }), Err));
        }
        // A mirror may stand for a path.
        let Some(digest) = digest else {
            return Ok(Err("what a URL leads to may change: add `@sha256:` and 64 digits".to_owned()));
        };
        let sha256 = digest.trim_start_matches("sha256:");
        let lease = session
            .store()
            .map_err(|error| BuildError::Image { image: place.to_owned(), detail: error.message })?;
        let lease = lease.lease("download a root file system")?;
        let path = lease.new_directory("download")?.join("rootfs");
        let received = std::cell::Cell::new(0);
        let progress = |count| {
            received.set(received.get() + count);
            session.ui.moving("fetch", || crate::ui::bytes(received.get()));
        };
        match session.client()?.download(found, sha256, &path, &progress) {
            Err(NetError::Hash { found, .. }) => Ok(Err(other_bytes(&format!("sha256:{found}"), &digest))),
            done => done
                .map(|_| Ok(Self { path, digest: Some(digest), downloaded: Some(lease) }))
                .map_err(BuildError::from),
        }
    }

    /// Whether its bytes came over the network.
    pub(super) fn is_downloaded(&self) -> bool {
        self.downloaded.is_some()
    }

    /// Reads the archive: what it and its uncompressed form hash to. The error is for people.
    pub(super) fn resolve(&self) -> Result<Resolved, String> {
        let mut whole =
            Hashed { input: Box::new(self.layer()?), hasher: Sha256::new(), count: 0, progress: &|_| () };
        let unreadable = |error: io::Error| format!("{} cannot be read: {error}", self.path.display());
        let mut plain = Sha256::new();
        io::copy(&mut Decompressed::new(&mut whole).map_err(unreadable)?, &mut plain).map_err(unreadable)?;
        // Padding after the end of the compressed stream.
        io::copy(&mut whole, &mut io::sink()).map_err(unreadable)?;
        let digest = Digest::from_bytes(whole.hasher.finalize().into()).to_string();
        if let Some(wanted) = self.digest.as_ref().filter(|wanted| **wanted != digest) {
            return Err(other_bytes(&digest, wanted));
        }
        let diff_id = Digest::from_bytes(plain.finalize().into()).to_string();
        let layers = vec![ImageLayer { digest: digest.clone(), size: whole.count, diff_id }];
        Ok(Resolved { digest, layers })
    }

    /// Opens the archive.
    pub(super) fn layer(&self) -> Result<File, String> {
        File::open(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

fn other_bytes(found: &str, wanted: &str) -> String {
    format!("it hashes to {found}, and the recipe says {wanted}")
}
