//! Locks of image bases: what a reference led to, and every layer with its digests.

use std::fmt::Write;

use serde::Serialize;

use crate::error::RecipeErrors;
use crate::parse::{Document, Fields, Item, SCHEMA, read_architecture};
use crate::record::StepRecord;
use crate::target::Architecture;
use crate::toml_text::quoted;

/// A container image as a base, to the byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageLock {
    /// The image as the recipe names it; another name means that the lock is stale.
    pub image: String,
    /// The processor.
    pub architecture: Architecture,
    /// The digest that the name led to: of a manifest, of a list of manifests, or an image id of a docker archive.
    pub digest: String,
    /// The version of the image's glibc, such as `(2, 36)`; `None` if it has none.
    pub glibc: Option<(u16, u16)>,
    layers: Vec<ImageLayer>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageLayer {
    /// The digest of its blob.
    pub digest: String,
    /// The bytes of its blob.
    pub size: u64,
    /// The digest of its uncompressed archive, which names what is in it however it is compressed.
    pub diff_id: String,
}

impl ImageLayer {
    /// Returns what the key of the step that applies it follows from; `version` is that of how this is done.
    ///
    /// However a layer is compressed and wherever it is fetched from, its archive is the same.
    pub fn record(&self, version: u32) -> StepRecord {
        StepRecord::new("image-layer", version).text("diff-id", &self.diff_id)
    }
}

impl ImageLock {
    /// Makes a lock of `layers`, lowest first.
    ///
    /// A layer that occurs twice is kept where it is on top: what it says then holds, and what it does not speak of
    /// is up to the others.
    pub fn new(
        image: &str,
        architecture: Architecture,
        digest: &str,
        glibc: Option<(u16, u16)>,
        layers: Vec<ImageLayer>,
    ) -> Self {
        let again = |at: usize, layer: &ImageLayer| {
            layers[at + 1..].iter().any(|later| later.diff_id == layer.diff_id)
        };
        let kept = layers.iter().enumerate().filter(|(at, layer)| !again(*at, layer));
        let layers = kept.map(|(_, layer)| layer.clone()).collect();
        Self { image: image.to_owned(), architecture, digest: digest.to_owned(), glibc, layers }
    }

    /// Reads a lock; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, RecipeErrors> {
        Document::read(file, text, read_lock)
    }

    /// Returns the layers, lowest first.
    pub fn layers(&self) -> &[ImageLayer] {
        &self.layers
    }

    /// Says whether the lock was made for `image`.
    pub fn answers(&self, image: &str) -> bool {
        self.image == image
    }

    /// Returns the one text that stands for this lock.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "schema = {SCHEMA}\nimage = {}\narchitecture = \"{}\"\ndigest = {}\n",
            quoted(&self.image),
            self.architecture,
            quoted(&self.digest)
        );
        if let Some((major, minor)) = self.glibc {
            writeln!(text, "glibc = \"{major}.{minor}\"").expect("writing to a string cannot fail");
        }
        for layer in &self.layers {
            write!(
                text,
                "\n[[layer]]\ndigest = {}\nsize = {}\ndiff-id = {}\n",
                quoted(&layer.digest),
                layer.size,
                quoted(&layer.diff_id)
            )
            .expect("writing to a string cannot fail");
        }
        text
    }
}

fn read_lock(fields: &mut Fields<'_>) -> Option<ImageLock> {
    let schema = fields.schema();
    let image = fields.required("image", Item::line);
    let architecture = fields.required("architecture", read_architecture);
    let digest = fields.required("digest", read_digest);
    let glibc = fields.optional("glibc", |item| {
        let text = item.string()?;
        let numbers =
            text.split_once('.').and_then(|(major, minor)| major.parse().ok().zip(minor.parse().ok()));
        numbers.or_else(|| item.fail("a version such as \"2.36\"", format!("`{text}`")))
    });
    let layers = fields.required("layer", |item| item.list(|item| item.table(read_layer)));
    fields.close();
    schema?;
    Some(ImageLock::new(&image?, architecture?, &digest?, glibc?, layers?))
}

fn read_layer(fields: &mut Fields<'_>) -> Option<ImageLayer> {
    let digest = fields.required("digest", read_digest);
    let size = fields.required("size", Item::natural);
    let diff_id = fields.required("diff-id", read_digest);
    fields.close();
    Some(ImageLayer { digest: digest?, size: size?, diff_id: diff_id? })
}

fn read_digest(item: &Item<'_>) -> Option<String> {
    let text = item.string()?;
    match crate::parse::is_digest(&text) {
        true => Some(text),
        false => item.fail("`sha256:` and 64 hexadecimal digits", format!("`{text}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(digit: &str) -> ImageLayer {
        let digest = format!("sha256:{}", digit.repeat(64));
        ImageLayer { digest: digest.clone(), size: 7, diff_id: digest }
    }

    #[test]
    fn a_lock_is_read_as_it_was_written() {
        let digest = format!("sha256:{}", "d".repeat(64));
        let layers = vec![layer("a"), layer("b"), layer("a")];
        let lock = ImageLock::new("oci:base:1", Architecture::X86_64, &digest, Some((2, 36)), layers);
        assert_eq!(lock.layers(), [layer("b"), layer("a")], "the upper of two equal layers stays");
        assert_eq!(ImageLock::parse("base.cpu.lock", &lock.to_text()).expect("a lock"), lock);
        let bad = lock.to_text().replace("sha256:dd", "sha1:dd");
        let error = ImageLock::parse("base.cpu.lock", &bad).expect_err("a digest is sha256");
        assert!(error.to_string().contains("base.cpu.lock:4:10: digest: expected `sha256:`"), "{error}");
    }
}
