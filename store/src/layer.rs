//! Reading layers.

use std::fs::{self, File};
use std::io::Read;

use crate::error::{Context, Error, Result};
use crate::layout::Layout;
use crate::references::{self, LAYER_MAGIC, Reference};
use crate::{LayerId, Store};

/// No layer encoding is longer; a compressed file that claims more is damaged. 1 GiB is about ten million entries.
const MAX_ENCODING: u64 = 1 << 30;

impl Store {
    /// Whether the layer is in the store itself, and so complete and durable.
    pub fn has_layer(&self, layer: &LayerId) -> bool {
        is_present(self.layout(), layer)
    }

    /// Whether the store has the object, plain or packed, as far as that can be seen without reading it.
    pub fn has_object(&self, object: &Reference) -> bool {
        self.trusts_object(&object.object) && self.tier_of(object).is_some()
    }

    /// Lists every layer.
    pub fn layers(&self) -> Result<Vec<LayerId>> {
        let names = crate::lease::names(&self.layout().directory("layers"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Returns the encoding of `layer`, checked against its id.
    pub fn layer(&self, layer: &LayerId) -> Result<Vec<u8>> {
        let damaged = |detail: String| Error::DamagedLayer { layer: *layer, detail };
        let mut encoding = Vec::new();
        let decoder = self.decoder(layer)?;
        decoder.take(MAX_ENCODING).read_to_end(&mut encoding).map_err(|error| damaged(error.to_string()))?;
        let found = LayerId::of(&encoding);
        if found != *layer {
            return Err(damaged(format!("its bytes hash to {found}")));
        }
        Ok(encoding)
    }

    /// Returns the objects of `layer` from the head of its encoding, unchecked against the id.
    pub fn references(&self, layer: &LayerId) -> Result<Vec<Reference>> {
        let damaged = |detail: String| Error::DamagedLayer { layer: *layer, detail };
        let mut decoder = self.decoder(layer)?;
        let mut head = vec![0; LAYER_MAGIC.len() + 4];
        decoder.read_exact(&mut head).map_err(|error| damaged(error.to_string()))?;
        let count = u32::from_le_bytes(head[LAYER_MAGIC.len()..].try_into().expect("four bytes"));
        decoder
            .take(u64::from(count) * 40)
            .read_to_end(&mut head)
            .map_err(|error| damaged(error.to_string()))?;
        let (references, _) = references::read_head(&head).map_err(|error| damaged(error.to_string()))?;
        Ok(references)
    }

    fn decoder(&self, layer: &LayerId) -> Result<impl Read + use<>> {
        for store in self.everywhere() {
            let path = store.layout().layer(layer);
            match File::open(&path) {
                Ok(file) => return zstd::Decoder::new(file).at("read", &path),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).at("open", &path),
            }
        }
        Err(Error::NoLayer(*layer))
    }

    /// Returns how many bytes the encoding of `layer` takes on the disk of this store: none if it is in a shared one.
    pub fn encoding_bytes(&self, layer: &LayerId) -> Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let path = self.layout().layer(layer);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.blocks() * 512),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.reaches_layer(layer) => Ok(0),
            Err(error) => Err(error).at("inspect", &path),
        }
    }
}

/// Whether a file with something in it has the layer's name: no encoding is empty.
pub(crate) fn is_present(layout: &Layout, layer: &LayerId) -> bool {
    fs::metadata(layout.layer(layer)).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
}
