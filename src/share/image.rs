//! A built task as an image: its configuration, its manifest, and both taken apart again.

use std::collections::BTreeMap;

use infradev_layers::{Compression, TocPlace};
use infradev_store::LayerId;
use oci_spec::image::{Arch, ConfigBuilder, ImageConfigurationBuilder, Os, RootFsBuilder};
use serde::{Deserialize, Serialize};

use super::Digest;
use super::manifest::{AnyManifest, CONFIG, Descriptor, Manifest, parse};
use super::remote::RawManifest;
use crate::build::root::BuiltTask;

/// Says which layers are in a blob: their ids, in stack order, with commas.
const LAYERS: &str = "dev.infradev.layers";
/// Says where a blob's table of contents is: offset, length and blake3, with commas.
const TOC: &str = "dev.infradev.toc";
/// Says which task an image is, for people.
const TASK: &str = "dev.infradev.task";
/// The kind of artifact of a task over the host's directories: layers, and no image that runs.
pub(super) const LAYERS_ONLY: &str = "application/vnd.infradev.layers.v1";
/// The configuration of such an artifact.
pub(super) const LAYERS_CONFIG: &str = "application/vnd.infradev.task.v1+json";
/// The kind of artifact that holds the action records of an image.
pub(super) const RECORDS: &str = "application/vnd.infradev.records.v1";

const TAR_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const TAR_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A blob of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerBlob {
    /// Its digest.
    pub(super) digest: Digest,
    /// How many bytes it has.
    pub(super) size: u64,
    /// sha256 of its archive; not known of blobs outside of images.
    pub(super) diff_id: Option<Digest>,
    /// How it is compressed.
    pub(super) compression: Compression,
    /// The layers in it; none of what only makes the image exact for engines.
    pub(super) layers: Vec<LayerId>,
    /// Its table of contents.
    pub(super) toc: TocPlace,
}

/// A published task, taken apart.
#[derive(Debug)]
pub(super) struct Published {
    /// The task.
    pub(super) built: BuiltTask,
    /// The blobs, lowest first.
    pub(super) blobs: Vec<LayerBlob>,
}

/// What an image says that other tools do not look at.
#[derive(Debug, Serialize, Deserialize)]
struct Ours {
    schema: u32,
    task: BuiltTask,
}

/// The configuration of a published task. Other fields of an image's configuration are for engines.
#[derive(Debug, Deserialize)]
struct OurConfig {
    rootfs: RootFs,
    infradev: Option<Ours>,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

/// An image that is not what this program publishes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct ImageError(pub(super) String);

impl LayerBlob {
    /// Describes it for a manifest.
    pub(super) fn descriptor(&self) -> Descriptor {
        let media_type = match self.compression {
            Compression::Zstd => TAR_ZSTD,
            Compression::Gzip => TAR_GZIP,
        };
        let mut descriptor = Descriptor::new(media_type, self.digest, self.size);
        let layers: Vec<String> = self.layers.iter().map(LayerId::to_hex).collect();
        descriptor.annotations.insert(LAYERS.to_owned(), layers.join(","));
        let TocPlace { offset, length, blake3 } = self.toc;
        let hash = blake3::Hash::from_bytes(blake3).to_hex();
        descriptor.annotations.insert(TOC.to_owned(), format!("{offset},{length},{hash}"));
        descriptor
    }

    /// Reads the description of a blob of ours; `None` if it is none.
    pub(super) fn read(descriptor: &Descriptor, diff_id: Option<Digest>) -> Option<Self> {
        let compression = match descriptor.media_type.as_str() {
            TAR_ZSTD => Compression::Zstd,
            TAR_GZIP => Compression::Gzip,
            _ => return None,
        };
        let names = descriptor.annotations.get(LAYERS)?.split(',').filter(|name| !name.is_empty());
        let layers = names.map(str::parse).collect::<Result<_, _>>().ok()?;
        let mut place = descriptor.annotations.get(TOC)?.splitn(3, ',');
        let (offset, length): (u64, u64) = (place.next()?.parse().ok()?, place.next()?.parse().ok()?);
        let blake3 = *blake3::Hash::from_hex(place.next()?).ok()?.as_bytes();
        let is_within = offset.checked_add(length).is_some_and(|end| end <= descriptor.size);
        let (digest, size) = (descriptor.digest, descriptor.size);
        let toc = TocPlace { offset, length, blake3 };
        is_within.then_some(Self { digest, size, diff_id, compression, layers, toc })
    }
}

/// Makes the configuration and the manifest of a task.
pub(super) fn compose(built: &BuiltTask, blobs: &[LayerBlob]) -> (Vec<u8>, Manifest) {
    let diff_ids: Vec<String> =
        blobs.iter().map(|blob| blob.diff_id.expect("just written").to_string()).collect();
    let variables: Vec<String> =
        built.run_variables().iter().map(|(name, value)| format!("{name}={value}")).collect();
    let rootfs = RootFsBuilder::default().typ("layers").diff_ids(diff_ids).build();
    let config = ConfigBuilder::default()
        .env(variables)
        .working_dir(built.workspace.clone())
        .cmd(vec!["/bin/sh".to_owned()])
        .build();
    let configuration = ImageConfigurationBuilder::default()
        .architecture(architecture())
        .os(Os::Linux)
        .rootfs(rootfs.expect("every required field is given"))
        .config(config.expect("every required field is given"))
        .build()
        .expect("every required field is given");
    let mut configuration = serde_json::to_value(configuration).expect("plain data");
    let ours = Ours { schema: 1, task: built.clone() };
    configuration["infradev"] = serde_json::to_value(ours).expect("plain data");
    let configuration = serde_json::to_vec(&configuration).expect("plain data");
    let media_type = if built.host_base { LAYERS_CONFIG } else { CONFIG };
    let layers = blobs.iter().map(LayerBlob::descriptor).collect();
    let mut manifest = Manifest::new(Descriptor::of(media_type, &configuration), layers);
    manifest.artifact_type = built.host_base.then(|| LAYERS_ONLY.to_owned());
    manifest.annotations = BTreeMap::from([(TASK.to_owned(), built.name())]);
    (configuration, manifest)
}

/// The architecture of this machine, whose layers these are.
fn architecture() -> Arch {
    match std::env::consts::ARCH {
        "aarch64" => Arch::ARM64,
        _ => Arch::Amd64,
    }
}

/// Reads a manifest of ours; an error says why it is none.
pub(super) fn manifest_of(raw: &RawManifest) -> Result<Manifest, ImageError> {
    match parse(raw).map_err(|error| ImageError(error.to_string()))? {
        AnyManifest::One(manifest) => Ok(*manifest),
        AnyManifest::Many(_) => {
            Err(ImageError("it is a list of images, which this program does not publish".to_owned()))
        }
    }
}

/// Whether a text is a task's name. It becomes part of paths, and an image may say anything.
fn is_task(text: &str) -> bool {
    text.split_once('/').is_some_and(|(project, id)| is_plain(project) && is_plain(id))
}

fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(plain)
}

/// Takes a published task apart.
pub(super) fn take_apart(manifest: &Manifest, configuration: &[u8]) -> Result<Published, ImageError> {
    let foreign = || ImageError("it was not published by infradev: it names no layers of a store".to_owned());
    let config: OurConfig = serde_json::from_slice(configuration)
        .map_err(|error| ImageError(format!("its configuration cannot be read: {error}")))?;
    let Some(Ours { schema, task: built }) = config.infradev else { return Err(foreign()) };
    if schema != 1 {
        return Err(ImageError(format!("it was published by a newer infradev (schema {schema})")));
    }
    if !is_task(&built.task) || !is_plain(&built.variant) {
        return Err(ImageError("the name of its task is none".to_owned()));
    }
    let diff_ids = config.rootfs.diff_ids;
    if diff_ids.len() != manifest.layers.len() {
        let (ids, layers) = (diff_ids.len(), manifest.layers.len());
        return Err(ImageError(format!("its configuration names {ids} layers, its manifest {layers}")));
    }
    let blobs: Option<Vec<LayerBlob>> = manifest
        .layers
        .iter()
        .zip(diff_ids)
        .map(|(layer, diff_id)| LayerBlob::read(layer, Some(diff_id)))
        .collect();
    let blobs = blobs.ok_or_else(foreign)?;
    let is_there = |layer: &LayerId| blobs.iter().any(|blob| blob.layers.contains(layer));
    match built.layers.iter().find(|layer| !is_there(layer)) {
        Some(layer) => Err(ImageError(format!("none of its blobs has layer {layer}"))),
        None => Ok(Published { built, blobs }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_task_stays_below_its_directory() {
        for good in ["verl/3567", "quickstart-verl/0.4.1", "demo/one.mine"] {
            assert!(is_task(good), "{good}");
        }
        for bad in
            ["", "one", "/x", "demo/", "../x", "demo/..", "demo/../x", "demo/a/b", "demo/a b", "demo/.x"]
        {
            assert!(!is_task(bad), "{bad}");
        }
    }
}
