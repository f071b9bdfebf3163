//! Image bases: the layers of a container image, wherever it is, one layer of ours for each.

mod archive;
mod manifest;
mod tarball;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use infradev_layers::{Decompressed, LayerArchive, LayerTarOptions, SpecialFiles, layer_tar_tree};
use infradev_recipes::{Architecture, ImageLayer, ROOTFS};
use infradev_store::Ingest;
use sha2::Digest as _;

use super::{BuildError, Product, Workshop};
use crate::session::Session;
use crate::share::{Digest, Remote};
use archive::DockerArchive;
use tarball::Tarball;

/// How a layer of an image becomes one of ours; raised when that changes.
pub(crate) const IMAGE_LAYER_VERSION: u32 = 1;

/// An image that can be a base.
pub(crate) struct BaseImage {
    /// The image as the recipe names it.
    name: String,
    place: Place,
}

enum Place {
    /// A repository of a registry or an image layout, and the tag or digest there.
    Remote(Box<dyn Remote>, String),
    Archive(DockerArchive),
    Tarball(Tarball),
}

/// What the name of an image led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The digest that names it for good.
    pub(crate) digest: String,
    /// Its layers for the processor that was asked for, lowest first.
    pub(crate) layers: Vec<ImageLayer>,
}

impl BaseImage {
    /// Finds the image that a recipe of `project` names. Relative paths are relative to the project's folder.
    pub(crate) fn open(session: &Session, project: &str, text: &str) -> Result<Self, BuildError> {
        let fail = |detail: String| BuildError::Image { image: shown(text), detail };
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.to_owned())),
            None => (text, None),
        };
        let folder = folder_of(session, project);
        if let Some(path) = name.strip_prefix("docker-archive:") {
            let archive = DockerArchive::open(&folder.join(path), digest.as_deref());
            let place = Place::Archive(archive.map_err(fail)?);
            return Ok(Self { name: text.to_owned(), place });
        }
        if let Some(place) = name.strip_prefix(ROOTFS) {
            let tarball = Tarball::open(session, &folder, place, digest.as_deref())?;
            return Ok(Self { name: text.to_owned(), place: Place::Tarball(tarball.map_err(fail)?) });
        }
        let is_local = name.starts_with("oci:") || name.starts_with("dir:");
        let (remote, tag) = match name.strip_prefix("oci:").or_else(|| name.strip_prefix("dir:")) {
            Some(rest) => {
                let (path, tag) = match rest.rsplit_once(':') {
                    Some((path, tag)) if !tag.contains('/') => (path, Some(tag.to_owned())),
                    _ => (rest, None),
                };
                let place = format!("dir:{}", folder.join(path).display());
                let (remote, _) = session.remote(&place).map_err(|error| fail(error.message))?;
                (remote, tag)
            }
            None => session.image_place(name).map_err(|error| fail(error.message))?,
        };
        let reference = match digest.or(tag) {
            Some(reference) => reference,
            None if is_local => match remote.tags()?.as_slice() {
                [one] => one.clone(),
                tags => return Err(fail(format!("the layout has {} tags: name one", tags.len()))),
            },
            None => "latest".to_owned(),
        };
        Ok(Self { name: text.to_owned(), place: Place::Remote(remote, reference) })
    }

    /// Says what the name leads to now.
    pub(crate) fn resolve(&self, architecture: Architecture) -> Result<Resolved, BuildError> {
        match &self.place {
            Place::Archive(archive) => archive.resolve(architecture).map_err(|detail| self.fail(detail)),
            Place::Tarball(tarball) => tarball.resolve().map_err(|detail| self.fail(detail)),
            Place::Remote(remote, reference) => {
                manifest::resolve(&**remote, reference, architecture)?.map_err(|detail| self.fail(detail))
            }
        }
    }

    /// Reads a layer strictly, into `ingest`; its blob and its archive must be those that are locked.
    pub(crate) fn read_layer(
        &self,
        layer: &ImageLayer,
        ingest: &Ingest<'_>,
        progress: &dyn Fn(u64),
    ) -> Result<LayerArchive, BuildError> {
        let (input, locked): (Box<dyn Read + '_>, Option<&str>) = match &self.place {
            Place::Archive(archive) => {
                // The archive of an image names no blobs: what is in them is checked below.
                (archive.layer(layer).map_err(|detail| self.fail(detail))?, None)
            }
            Place::Tarball(tarball) => {
                let file = tarball.layer().map_err(|detail| self.fail(detail))?;
                (Box::new(file), Some(&layer.digest))
            }
            Place::Remote(remote, _) => {
                let digest: Digest = layer.digest.parse().expect("a lock has digests");
                (remote.blob(&digest, layer.size, 0)?, Some(&layer.digest))
            }
        };
        let mut blob = Hashed { input, hasher: sha2::Sha256::new(), count: 0, progress };
        let unreadable =
            |error: io::Error| self.fail(format!("layer {} cannot be read: {error}", layer.digest));
        let read = {
            let mut plain = Decompressed::new(&mut blob).map_err(unreadable)?;
            let options = LayerTarOptions { special_files: SpecialFiles::Drop, ..LayerTarOptions::default() };
            layer_tar_tree(&mut plain, options, ingest)
        };
        // Even when it makes no sense: other bytes than the locked ones are the better explanation.
        io::copy(&mut blob, &mut io::sink()).map_err(unreadable)?;
        let (found, count) = (Digest::from_bytes(blob.hasher.finalize().into()).to_string(), blob.count);
        if locked.is_some_and(|locked| locked != found || count != layer.size) {
            if let Place::Tarball(_) = self.place {
                let (image, locked) = (shown(&self.name), layer.digest.clone());
                return Err(BuildError::ImageChanged { image, locked, found });
            }
            let detail = format!("{count} bytes came for layer {}, and they hash to {found}", layer.digest);
            return Err(self.fail(detail));
        }
        let read = read.map_err(|source| {
            let file = format!("layer {} of the {}", layer.digest, shown(&self.name));
            BuildError::Archive { file, source }
        })?;
        let found = Digest::from_bytes(read.diff_id).to_string();
        if found != layer.diff_id {
            return Err(self.fail(format!("layer {} unpacks to {found}", layer.diff_id)));
        }
        Ok(read)
    }

    fn fail(&self, detail: String) -> BuildError {
        BuildError::Image { image: shown(&self.name), detail }
    }
}

/// Names a base for people.
fn shown(name: &str) -> String {
    match name.strip_prefix(ROOTFS) {
        Some(place) => format!("root file system {place}"),
        None => format!("image {name}"),
    }
}

/// Fetches and applies a layer of the base of a task of `project`.
pub(crate) fn image_layer<'a>(
    workshop: &Workshop<'a>,
    project: &str,
    image: &str,
    layer: &ImageLayer,
) -> Result<Product<'a>, BuildError> {
    let mut product = workshop.product()?;
    let ui = &workshop.session.ui;
    let done = std::cell::Cell::new(0);
    let progress = |count: u64| {
        done.set(done.get() + count);
        ui.moving("fetch", || crate::ui::bytes(done.get()));
    };
    let base = BaseImage::open(workshop.session, project, image)?;
    let read = base.read_layer(layer, &product.ingest, &progress)?;
    for note in &read.notes {
        ui.detail(format!("layer {}: {note}", layer.diff_id));
    }
    product.tree = read.tree;
    product.downloaded = match &base.place {
        Place::Remote(..) => layer.size,
        Place::Tarball(tarball) if tarball.is_downloaded() => layer.size,
        Place::Tarball(_) | Place::Archive(_) => 0,
    };
    Ok(product)
}

/// The folder of a project in the catalog.
fn folder_of(session: &Session, project: &str) -> PathBuf {
    let catalog = session.catalog().ok();
    let document = catalog.and_then(|catalog| catalog.find(&format!("{project}/project.toml")));
    let folder = document.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
    folder.canonicalize().unwrap_or(folder)
}

/// The word that images have for a processor.
fn platform(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "amd64",
        Architecture::Aarch64 => "arm64",
    }
}

/// Hashes and counts what is read.
struct Hashed<'a> {
    input: Box<dyn Read + 'a>,
    hasher: sha2::Sha256,
    count: u64,
    progress: &'a dyn Fn(u64),
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.count += count as u64;
        (self.progress)(count as u64);
        Ok(count)
    }
}
