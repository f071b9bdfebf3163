//! Sdist steps: a source distribution built into a wheel once, in a sandbox, from locked tools.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use infradev_layers::{
    Content, Decompressed, Kind, Metadata, SourceTarOptions, Tree, TreeBuilder, TreePath, merge,
    source_tar_tree,
};
use infradev_recipes::Package;
use infradev_store::{Ingest, LayerId};
use sha2::{Digest, Sha256};

use super::scratch::{StepCommand, variables};
use super::wheel::fetch;
use super::{BUILD_MTIME, BuildError, Product, Workshop, io};
use crate::env::plan::Network;
use crate::hex::hex;

/// The output of an sdist step that wheel steps need: what the wheel hashes to.
pub(crate) const WHEEL_SHA256: &str = "wheel-sha256";

/// Calls the build backend that pyproject.toml names, or setuptools where it names none (PEP 517).
const BUILDER: &str = r#"
import importlib, os, sys
out = sys.argv[1]
backend, path = "setuptools.build_meta:__legacy__", []
if os.path.exists("pyproject.toml"):
    try:
        import tomllib
    except ImportError:
        import tomli as tomllib
    with open("pyproject.toml", "rb") as file:
        system = tomllib.load(file).get("build-system", {})
    backend = system.get("build-backend", backend)
    path = system.get("backend-path", [])
sys.path[:0] = [os.path.abspath(entry) for entry in path]
module, _, attribute = backend.partition(":")
target = importlib.import_module(module)
for name in filter(None, attribute.split(".")):
    target = getattr(target, name)
print("built", target.build_wheel(out))
"#;

/// Builds the sdist `package` over the layers `below`; the product holds the wheel as its only file.
pub(crate) fn sdist<'a>(
    workshop: &Workshop<'a>,
    package: &Package,
    below: &[LayerId],
    log: &Path,
) -> Result<Product<'a>, BuildError> {
    let mut product = workshop.product()?;
    let (archive, downloaded) = fetch(workshop, package)?;
    product.downloaded = downloaded;
    // The source's objects must be visible to be mounted; as a layer of their own they are, under the lease.
    let source = {
        let ingest = workshop.store.ingest(workshop.lease)?;
        let tree = sdist_tree(&archive, &"workspace/sdist".parse().expect("a plain path"), None, &ingest)?;
        ingest.put_layer(&tree.encode())?;
        ingest.commit()?;
        tree
    };
    let mut trees = workshop.trees(below)?;
    trees.push(source);
    let merged = merge(&trees);
    let output = workshop.lease.new_directory("wheel")?;
    let mut binds = workshop.host_binds(&merged);
    let place = workshop.lend(&mut binds, &output, "/tmp/wheel", true)?;
    let command = StepCommand {
        arguments: ["/opt/env/bin/python", "-c", BUILDER, &place].map(str::to_owned).to_vec(),
        directory: PathBuf::from("/workspace/sdist"),
        variables: variables(),
        network: Network::None,
        binds,
        log,
    };
    workshop.run(&merged, command)?;
    let (name, path) = only_wheel(&output, package, log)?;
    let bytes = fs::read(&path).map_err(io("read", &path))?;
    product.outputs.insert(WHEEL_SHA256.to_owned(), hex(&Sha256::digest(&bytes)));
    let content = Content::Object(product.ingest.put_bytes(&bytes)?, bytes.len() as u64);
    let mut builder = TreeBuilder::new();
    let place = TreePath::new(name.as_bytes()).expect("a file name");
    builder.add(place, Kind::File { metadata: Metadata::new(0o644, BUILD_MTIME), content })?;
    product.tree = builder.finish()?;
    infradev_store::remove_tree(&archive)?;
    Ok(product)
}

fn only_wheel(output: &Path, package: &Package, log: &Path) -> Result<(String, PathBuf), BuildError> {
    let entries = fs::read_dir(output).map_err(io("list", output))?;
    let wheel =
        entries.flatten().find(|entry| entry.path().extension().is_some_and(|extension| extension == "whl"));
    let missing = || BuildError::NoOutput {
        pattern: "*.whl".to_owned(),
        step: format!("sdist {}", package.name),
        log: log.to_owned(),
        tail: super::scratch::tail(log),
    };
    let wheel =
        wheel.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).ok_or_else(missing)?;
    Ok((wheel.file_name().to_string_lossy().into_owned(), wheel.path()))
}

/// Reads a `.tar.gz` of sources into a tree below `directory`, without its top directory.
pub(crate) fn sdist_tree(
    archive: &Path,
    directory: &TreePath,
    mtime: Option<i64>,
    ingest: &Ingest<'_>,
) -> Result<Tree, BuildError> {
    let file = File::open(archive).map_err(io("open", archive))?;
    let mut reader = Decompressed::new(file).map_err(io("read", archive))?;
    let mtime = Some(mtime.unwrap_or(BUILD_MTIME));
    let options = SourceTarOptions { directory: directory.clone(), strip_top: true, mtime };
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    source_tar_tree(&mut reader, &options, ingest)
        .map_err(|source| BuildError::Archive { file: name, source })
}
