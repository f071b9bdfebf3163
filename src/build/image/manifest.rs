//! From a tag or digest to the layers of one image, over lists of images for several platforms.

use std::io::Read;

use infradev_recipes::{Architecture, ImageLayer};
use serde::Deserialize;

use super::{Resolved, platform};
use crate::share::manifest::{AnyManifest, Descriptor, Manifest, parse};
use crate::share::{Digest, Remote, RemoteError};

/// No configuration of an image is larger.
const MAX_CONFIG: u64 = 16 << 20;

/// The configuration of an image, as far as it matters.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) architecture: String,
    pub(super) os: String,
    pub(super) rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
pub(super) struct RootFs {
    pub(super) diff_ids: Vec<Digest>,
}

impl Config {
    /// Reads a configuration; the image must be for Linux on `architecture`.
    pub(super) fn parse(bytes: &[u8], architecture: Architecture) -> Result<Self, String> {
        let config: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("its configuration cannot be read: {error}"))?;
        let wanted = platform(architecture);
        match config.os == "linux" && config.architecture == wanted {
            true => Ok(config),
            false => Err(format!("it is for {}/{}, not for linux/{wanted}", config.os, config.architecture)),
        }
    }
}

type Answer = Result<Resolved, String>;

/// Finds the image of `reference` for `architecture`. The inner error says what is wrong with it.
pub(super) fn resolve(
    remote: &dyn Remote,
    reference: &str,
    architecture: Architecture,
) -> Result<Answer, RemoteError> {
    let absent =
        |what: &str| RemoteError::Absent { place: remote.name(), what: format!("the image `{what}`") };
    let raw = remote.manifest(reference)?.ok_or_else(|| absent(reference))?;
    let digest = raw.digest.to_string();
    let manifest = match parse(&raw) {
        Err(error) => return Ok(Err(error.to_string())),
        Ok(AnyManifest::One(manifest)) => manifest,
        Ok(AnyManifest::Many(list)) => {
            let Some(chosen) = list.manifests.iter().find(|found| runs_on(found, architecture)) else {
                return Ok(Err(format!("it has no image for linux/{}", platform(architecture))));
            };
            let name = chosen.digest.to_string();
            let raw = remote.manifest(&name)?.ok_or_else(|| absent(&name))?;
            match parse(&raw) {
                Err(error) => return Ok(Err(error.to_string())),
                Ok(AnyManifest::One(manifest)) => manifest,
                Ok(AnyManifest::Many(_)) => return Ok(Err("it is a list of lists of images".to_owned())),
            }
        }
    };
    if manifest.artifact_type.is_some() {
        return Ok(Err("it is an artifact and no image that runs".to_owned()));
    }
    let config = match configuration(remote, &manifest.config)? {
        Ok(bytes) => bytes,
        Err(detail) => return Ok(Err(detail)),
    };
    let config = Config::parse(&config, architecture);
    Ok(config.and_then(|config| layers(&manifest, &config)).map(|layers| Resolved { digest, layers }))
}

fn runs_on(descriptor: &Descriptor, architecture: Architecture) -> bool {
    let fits = |variant: &Option<String>| variant.as_deref().is_none_or(|variant| variant == "v8");
    descriptor.platform.as_ref().is_some_and(|found| {
        found.os == "linux" && found.architecture == platform(architecture) && fits(&found.variant)
    })
}

fn configuration(
    remote: &dyn Remote,
    descriptor: &Descriptor,
) -> Result<Result<Vec<u8>, String>, RemoteError> {
    let Descriptor { digest, size, .. } = descriptor;
    if *size > MAX_CONFIG {
        return Ok(Err(format!("its configuration has {size} bytes")));
    }
    let mut bytes = vec![];
    let mut reader = remote.blob(digest, *size, 0)?.take(size + 1);
    if let Err(error) = reader.read_to_end(&mut bytes) {
        return Ok(Err(format!("its configuration cannot be read: {error}")));
    }
    match Digest::of(&bytes) == *digest {
        true => Ok(Ok(bytes)),
        false => Ok(Err(format!("its configuration is not {digest}"))),
    }
}

fn layers(manifest: &Manifest, config: &Config) -> Result<Vec<ImageLayer>, String> {
    let diff_ids = &config.rootfs.diff_ids;
    if diff_ids.len() != manifest.layers.len() {
        let (ids, blobs) = (diff_ids.len(), manifest.layers.len());
        return Err(format!("its configuration names {ids} layers, its manifest {blobs}"));
    }
    let layer = |(blob, diff_id): (&Descriptor, &Digest)| {
        let media_type = &blob.media_type;
        // Foreign layers are fetched from where their publisher wants, and are no Linux layers anyway.
        match media_type.contains(".tar")
            && !media_type.contains("foreign")
            && !media_type.contains("encrypted")
        {
            true => Ok(ImageLayer {
                digest: blob.digest.to_string(),
                size: blob.size,
                diff_id: diff_id.to_string(),
            }),
            false => Err(format!("it has a layer of the type `{media_type}`")),
        }
    };
    manifest.layers.iter().zip(diff_ids).map(layer).collect()
}
