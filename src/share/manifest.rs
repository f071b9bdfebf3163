//! Manifests, read strictly: one meaning or refused (OCI image specification 1.1, `manifest.md`, `descriptor.md`).
//!
//! The bytes were checked against their digest before. Fields that are not listed here have no effect: in
//! particular, nothing is fetched from the `urls` of a descriptor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Digest;
use super::remote::RawManifest;

/// The media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of a list of manifests.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The older names of the two, of the same form.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// The older name of a list.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// The media type of an image's configuration.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// The empty object, where a manifest needs a configuration and has none.
pub const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// More blobs than any engine takes.
const MAX_LAYERS: usize = 4096;

/// Content elsewhere: what it is, which, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// Which.
    pub digest: Digest,
    /// How many bytes.
    pub size: u64,
    /// Notes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Of a manifest: what kind of artifact it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Of an image in a list: what it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// What an image runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// As Go names it, such as `amd64`.
    pub architecture: String,
    /// As Go names it, such as `linux`.
    pub os: String,
    /// Such as `v8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// An image, or an artifact of the same form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    schema_version: u32,
    media_type: Option<String>,
    /// What kind of artifact it is; none is an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The configuration.
    pub config: Descriptor,
    /// The blobs, lowest first.
    pub layers: Vec<Descriptor>,
    /// The manifest that this one says something about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Notes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Only lists have it; refused.
    #[serde(default, skip_serializing)]
    manifests: Option<serde_json::Value>,
}

/// A list of manifests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    schema_version: u32,
    media_type: Option<String>,
    /// The manifests.
    pub manifests: Vec<Descriptor>,
    /// Notes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Only images have it; refused.
    #[serde(default, skip_serializing)]
    layers: Option<serde_json::Value>,
}

/// What a reference may lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyManifest {
    /// One image or artifact.
    One(Box<Manifest>),
    /// A list, of images for several platforms.
    Many(Index),
}

/// A manifest that is not in order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not a manifest: {0}")]
pub struct ManifestError(String);

impl Manifest {
    /// Makes a manifest.
    pub fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(MANIFEST.to_owned()),
            artifact_type: None,
            config,
            layers,
            subject: None,
            annotations: BTreeMap::new(),
            manifests: None,
        }
    }

    /// Returns its bytes, digest and media type.
    pub fn to_raw(&self) -> RawManifest {
        let bytes = serde_json::to_vec(self).expect("plain data");
        RawManifest { media_type: MANIFEST.to_owned(), digest: Digest::of(&bytes), bytes }
    }
}

impl Index {
    /// Makes a list.
    pub fn new(manifests: Vec<Descriptor>) -> Self {
        let media_type = Some(INDEX.to_owned());
        Self { schema_version: 2, media_type, manifests, annotations: BTreeMap::new(), layers: None }
    }
}

impl Descriptor {
    /// Describes `content`.
    pub fn of(media_type: &str, content: &[u8]) -> Self {
        Self::new(media_type, Digest::of(content), content.len() as u64)
    }

    /// Describes content by its digest and size.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let media_type = media_type.to_owned();
        Self { media_type, digest, size, annotations: BTreeMap::new(), artifact_type: None, platform: None }
    }
}

/// Reads what `raw` holds.
pub fn parse(raw: &RawManifest) -> Result<AnyManifest, ManifestError> {
    // A media type that the place gives may have parameters.
    let said = raw.media_type.split(';').next().unwrap_or_default().trim();
    let wrong = |text: String| ManifestError(text);
    let read = |error: serde_json::Error| ManifestError(error.to_string());
    let agrees = |within: &Option<String>| match within {
        Some(within) if within != said => {
            Err(wrong(format!("it says that it is {within}, and the server that it is {said}")))
        }
        _ => Ok(()),
    };
    match said {
        MANIFEST | DOCKER_MANIFEST => {
            let manifest: Manifest = serde_json::from_slice(&raw.bytes).map_err(read)?;
            agrees(&manifest.media_type)?;
            if manifest.schema_version != 2 {
                return Err(wrong(format!("its schema version is {}", manifest.schema_version)));
            }
            if manifest.manifests.is_some() {
                return Err(wrong("it has both layers and manifests".to_owned()));
            }
            if manifest.layers.len() > MAX_LAYERS {
                return Err(wrong(format!("it has {} layers", manifest.layers.len())));
            }
            Ok(AnyManifest::One(Box::new(manifest)))
        }
        INDEX | DOCKER_LIST => {
            let index: Index = serde_json::from_slice(&raw.bytes).map_err(read)?;
            agrees(&index.media_type)?;
            if index.schema_version != 2 {
                return Err(wrong(format!("its schema version is {}", index.schema_version)));
            }
            if index.layers.is_some() {
                return Err(wrong("it has both layers and manifests".to_owned()));
            }
            Ok(AnyManifest::Many(index))
        }
        other => Err(wrong(format!("its media type is `{other}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(media_type: &str, text: &str) -> RawManifest {
        let bytes = text.as_bytes().to_vec();
        RawManifest { media_type: media_type.to_owned(), digest: Digest::of(&bytes), bytes }
    }

    #[test]
    fn a_manifest_means_one_thing() {
        let config = Descriptor::of(EMPTY, b"{}");
        let made = Manifest::new(config, vec![]).to_raw();
        assert!(matches!(parse(&made), Ok(AnyManifest::One(_))));
        let text = String::from_utf8(made.bytes).unwrap();
        for (media_type, text) in [
            (MANIFEST, text.replace("\"layers\":[]", "\"layers\":[],\"manifests\":[]")),
            (MANIFEST, text.replace("\"layers\":[]", "\"layers\":[],\"layers\":[]")),
            (MANIFEST, text.replace("sha256:", "sha256:../")),
            (MANIFEST, text.replace("\"schemaVersion\":2", "\"schemaVersion\":1")),
            (DOCKER_MANIFEST, text.clone()),
            (INDEX, text.clone()),
            ("text/html", text.clone()),
            (MANIFEST, text.replace("\"size\":2", "\"size\":-2")),
            (MANIFEST, "<html>".to_owned()),
        ] {
            assert!(parse(&raw(media_type, &text)).is_err(), "{media_type} {text}");
        }
    }
}
