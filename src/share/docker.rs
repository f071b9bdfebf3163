//! Docker archives, as `docker save` writes them: every layer as a plain archive, then the configuration, then
//! `manifest.json`. For engines without a registry; nothing in one can be shared.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};

use infradev_layers::{Compression, TocPlace, Tree, plain_archive_size, write_plain_archive};
use infradev_store::{LayerId, ObjectId};
use tar::{EntryType, Header};

use super::group::{Part, parts};
use super::image::{LayerBlob, compose};
use super::push::exact_directories;
use super::{Digest, ShareError, tag_of};
use crate::build::root::BuiltTask;

const BLOCK: u64 = 512;

/// A task that is ready to be written as a docker archive.
#[derive(Debug)]
pub struct DockerArchive<'a> {
    built: &'a BuiltTask,
    parts: Vec<Part>,
    sizes: Vec<u64>,
}

/// A docker archive that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerDone {
    /// The digest of the configuration, by which engines know the image.
    pub image_id: String,
    /// What `load` calls the image.
    pub name: String,
    /// How many layers it has.
    pub layers: usize,
}

impl<'a> DockerArchive<'a> {
    /// Decides which layers the archive has; `trees` has the tree of each layer of the stack.
    pub fn new(built: &'a BuiltTask, trees: &HashMap<LayerId, Tree>) -> Result<Self, ShareError> {
        let mut parts = parts(built, trees);
        parts.extend(exact_directories(built, trees, &parts));
        let sizes = parts.iter().map(|part| plain_archive_size(&part.tree)).collect::<Result<_, _>>()?;
        Ok(Self { built, parts, sizes })
    }

    /// How many bytes it will have, but for two small documents.
    pub fn size(&self) -> u64 {
        self.sizes.iter().map(|size| BLOCK + size.next_multiple_of(BLOCK)).sum::<u64>() + 2 * BLOCK
    }

    /// Writes it; `open` finds the bytes of objects.
    pub fn write(
        &self,
        open: &dyn Fn(&ObjectId) -> io::Result<File>,
        out: &mut dyn Write,
    ) -> Result<DockerDone, ShareError> {
        let failed = |error: io::Error| ShareError::Blob(infradev_layers::BlobError::Write(error));
        let (mut names, mut blobs) = (vec![], vec![]);
        for (number, (part, size)) in self.parts.iter().zip(&self.sizes).enumerate() {
            // Named by their number: what they hash to is known when they are written.
            let name = format!("layer-{number:03}.tar");
            out.write_all(header(&name, *size).as_bytes()).map_err(failed)?;
            let done = write_plain_archive(&part.tree, open, out)?;
            assert_eq!(done.size, *size, "two passes over one tree");
            pad(out, *size).map_err(failed)?;
            let diff_id = Digest::from_bytes(done.diff_id);
            blobs.push(LayerBlob {
                digest: diff_id,
                size: *size,
                diff_id: Some(diff_id),
                compression: Compression::Zstd,
                layers: part.layers.clone(),
                toc: TocPlace { offset: 0, length: 0, blake3: [0; 32] },
            });
            names.push(name);
        }
        let (configuration, _manifest_of_a_registry) = compose(self.built, &blobs);
        let image_id = Digest::of(&configuration);
        let config = format!("{}.json", image_id.hex());
        let (_, id) = self.built.task.rsplit_once('/').unwrap_or(("", &self.built.task));
        let project = self.built.task.split('/').next().unwrap_or(id);
        // Names of repositories are lower-case (OCI distribution specification, "Pulling manifests").
        let name =
            format!("infradev/{}:{}", project.to_lowercase(), tag_of(&self.built.task, &self.built.variant));
        let manifest = serde_json::json!([{ "Config": config, "RepoTags": [name], "Layers": names }]);
        let manifest = serde_json::to_vec(&manifest).expect("plain data");
        for (name, content) in [(config.as_str(), &configuration), ("manifest.json", &manifest)] {
            out.write_all(header(name, content.len() as u64).as_bytes()).map_err(failed)?;
            out.write_all(content).map_err(failed)?;
            pad(out, content.len() as u64).map_err(failed)?;
        }
        out.write_all(&[0; 2 * BLOCK as usize]).map_err(failed)?;
        out.flush().map_err(failed)?;
        Ok(DockerDone { image_id: image_id.to_string(), name, layers: names.len() })
    }
}

fn pad(out: &mut dyn Write, size: u64) -> io::Result<()> {
    let rest = size.next_multiple_of(BLOCK) - size;
    out.write_all(&[0; BLOCK as usize][..rest as usize])
}

fn header(name: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_path(name).expect("a short name");
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    // Beyond 8 GiB in base 256, which readers of these archives know.
    header.set_size(size);
    header.set_cksum();
    header
}
