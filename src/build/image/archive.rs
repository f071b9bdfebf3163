//! Docker archives, as `docker save` writes them: a plain tar of layers, configurations and `manifest.json`.
//!
//! The image id, the digest of its configuration, names such an image for good.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use infradev_recipes::{Architecture, ImageLayer};
use serde::Deserialize;

use super::Resolved;
use super::manifest::Config;
use crate::share::Digest;

/// No document in an archive is larger.
const MAX_DOCUMENT: u64 = 16 << 20;

/// An image of a docker archive.
pub(super) struct DockerArchive {
    path: PathBuf,
    /// Where the bytes of each file are, and how many.
    files: HashMap<String, (u64, u64)>,
    layers: Vec<String>,
    config: Vec<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl DockerArchive {
    /// Reads what is in the archive; `id` says which of several images is meant. The error is for people.
    pub(super) fn open(path: &Path, id: Option<&str>) -> Result<Self, String> {
        let files = list(path)?;
        let manifest = document(path, &files, "manifest.json")?;
        let listed: Vec<Listed> = serde_json::from_slice(&manifest)
            .map_err(|error| format!("its manifest.json cannot be read: {error}"))?;
        let mut found = vec![];
        for image in listed {
            let config = document(path, &files, &image.config)?;
            found.push((Digest::of(&config).to_string(), config, image));
        }
        let names: Vec<String> = found
            .iter()
            .map(|(id, _, image)| {
                format!("{id} {}", image.repo_tags.iter().flatten().cloned().collect::<String>())
            })
            .collect();
        found.retain(|(digest, ..)| id.is_none_or(|id| id == digest));
        let (Some((_, config, image)), None) = (found.pop(), found.pop()) else {
            return Err(format!(
                "name one of its images by its id, as in `docker-archive:PATH@sha256:…`: it has {}",
                names.join(", ")
            ));
        };
        Ok(Self { path: path.to_owned(), files, layers: image.layers, config })
    }

    /// Returns the image's id and layers.
    pub(super) fn resolve(&self, architecture: Architecture) -> Result<Resolved, String> {
        let diff_ids = Config::parse(&self.config, architecture)?.rootfs.diff_ids;
        if diff_ids.len() != self.layers.len() {
            let (ids, layers) = (diff_ids.len(), self.layers.len());
            return Err(format!("its configuration names {ids} layers, its manifest.json {layers}"));
        }
        let layer = |(file, diff_id): (&String, Digest)| {
            let (_, size) = self.files.get(file).ok_or_else(|| format!("it lacks the layer {file}"))?;
            // Its layers are not compressed, or the archive does not say what they hash to then.
            Ok(ImageLayer { digest: diff_id.to_string(), size: *size, diff_id: diff_id.to_string() })
        };
        let layers = self.layers.iter().zip(diff_ids).map(layer).collect::<Result<_, String>>()?;
        Ok(Resolved { digest: Digest::of(&self.config).to_string(), layers })
    }

    /// Opens a layer.
    pub(super) fn layer(&self, layer: &ImageLayer) -> Result<Box<dyn Read>, String> {
        #[derive(Deserialize)]
        struct Ids {
            rootfs: super::manifest::RootFs,
        }
        let ids: Ids = serde_json::from_slice(&self.config)
            .map_err(|error| format!("its configuration cannot be read: {error}"))?;
        let at = ids.rootfs.diff_ids.iter().position(|id| id.to_string() == layer.diff_id);
        let place = at.and_then(|at| self.files.get(self.layers.get(at)?));
        let (offset, size) = place.ok_or_else(|| format!("it does not have layer {}", layer.diff_id))?;
        Ok(Box::new(open_part(&self.path, *offset, *size)?))
    }
}

/// Finds the files of an archive.
fn list(path: &Path) -> Result<HashMap<String, (u64, u64)>, String> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    let mut file = File::open(path).map_err(unreadable)?;
    let mut head = [0; 2];
    if file.read_exact(&mut head).is_ok() && head == [0x1f, 0x8b] {
        return Err("it is compressed: decompress it, so that its layers can be found".to_owned());
    }
    file.rewind().map_err(unreadable)?;
    let mut files = HashMap::new();
    let mut links = vec![];
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries_with_seek().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        let kind = entry.header().entry_type();
        if kind.is_file() {
            files.insert(name, (entry.raw_file_position(), entry.size()));
        } else if let (true, Some(target)) =
            (kind.is_symlink() || kind.is_hard_link(), entry.link_name_bytes())
        {
            let target = String::from_utf8_lossy(&target).into_owned();
            // Layers that images share are symlinks to `../ID/layer.tar`.
            links.push((name, target.trim_start_matches("../").to_owned()));
        }
    }
    for (name, target) in links {
        if let Some(place) = files.get(&target).copied() {
            files.insert(name, place);
        }
    }
    Ok(files)
}

fn document(path: &Path, files: &HashMap<String, (u64, u64)>, name: &str) -> Result<Vec<u8>, String> {
    let (offset, size) =
        *files.get(name).ok_or_else(|| format!("it is no docker archive: it lacks {name}"))?;
    if size > MAX_DOCUMENT {
        return Err(format!("its {name} has {size} bytes"));
    }
    let mut bytes = vec![];
    let read = open_part(path, offset, size)?.read_to_end(&mut bytes);
    read.map_err(|error| format!("its {name} cannot be read: {error}"))?;
    Ok(bytes)
}

fn open_part(path: &Path, offset: u64, size: u64) -> Result<std::io::Take<File>, String> {
    let open = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(file.take(size))
    };
    open().map_err(|error: std::io::Error| format!("it cannot be read: {error}"))
}
