//! Files that a recipe writes, as a layer.

use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder, TreePath};
use infradev_recipes::GeneratedFile;
use infradev_store::Ingest;

use super::{BUILD_MTIME, BuildError};

/// Makes a layer of `files`, whose paths are absolute.
pub(crate) fn files_tree(files: &[GeneratedFile], ingest: &Ingest<'_>) -> Result<Tree, BuildError> {
    let mut builder = TreeBuilder::new();
    for file in files {
        let path: TreePath =
            file.path.trim_start_matches('/').parse().expect("checked by the recipe's parser");
        let content = match file.content.as_slice() {
            [] => Content::Empty,
            bytes => Content::Object(ingest.put_bytes(bytes)?, bytes.len() as u64),
        };
        let metadata = Metadata::new(file.mode, BUILD_MTIME);
        builder.add(path, Kind::File { metadata, content })?;
    }
    Ok(builder.finish()?)
}
