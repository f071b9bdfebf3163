//! Grading bundles: what judges a task (probes, mutants, and the commits that hold the real change and the official
//! tests), published apart from its environment and fetched by evaluators alone.
//!
//! A bundle is a layer like any other, under a tag in a repository of its own. Fetched, it lies below the store's
//! caches as a catalog that all others overlay, and a bare repository with two commits.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use infradev_layers::{Compression, Owners, ScanOptions, Tree, scan, write_copy};
use infradev_recipes::TaskName;
use infradev_store::{LayerId, Lease, Store};

use super::group::loose_parts;
use super::image::{LayerBlob, manifest_of};
use super::manifest::{Descriptor, EMPTY, MANIFEST, Manifest};
use super::pull::Puller;
use super::push::Publisher;
use super::{Remote, RemoteError, ShareError};
use crate::build::Repository;
use crate::build::root::BuiltTask;
use crate::error::{CommandError, CommandResult, Kind};
use crate::session::Session;

/// The kind of artifact that a bundle is.
const GRADING: &str = "application/vnd.infradev.grading.v1";
/// What a bundle was made from, so that it is made once.
const KEY: &str = "dev.infradev.grading-key";

/// Returns the tag of a task's bundle, given that of the task.
pub fn grading_tag(tag: &str) -> String {
    format!("{tag}.grading")
}

/// Publishes the bundle of a built task; returns whether it was not there yet.
pub fn push_grading(
    session: &Session,
    store: &Store,
    lease: &Lease,
    built: &BuiltTask,
    remote: &dyn Remote,
    tag: &str,
) -> CommandResult<bool> {
    let name = task_name(built);
    let catalog = session.catalog()?;
    let recipe = catalog.recipe(&name, &built.variant)?;
    let mut files = built.catalog_files.clone();
    files.extend(catalog.files_below(&format!("{name}").replacen('/', "/tasks/", 1)));
    files.sort();
    files.dedup();
    let commits = commits_of(&recipe);
    let key = key_of(catalog, &files, &commits);
    let tag = grading_tag(tag);
    if let Some(there) = remote.manifest(&tag)?
        && manifest_of(&there).is_ok_and(|manifest| manifest.annotations.get(KEY) == Some(&key))
    {
        return Ok(false);
    }
    let staged = lease.new_directory("grading")?;
    for file in &files {
        let Some(from) = catalog.find(file) else { continue };
        let to = staged.join("catalog").join(file);
        let parent = to.parent().unwrap_or(&staged);
        let copied = fs::create_dir_all(parent).and_then(|()| fs::copy(&from, &to).map(drop));
        copied.map_err(|error| infradev_store::Error::io("copy", &from, error))?;
    }
    if let Some(url) = recipe.git.as_deref().filter(|_| !commits.is_empty()) {
        Repository::copy_commits(session, store, url, &commits, &staged.join("git"))?;
    }
    let ingest = store.ingest(lease)?;
    let scanned = scan(&staged, ScanOptions::plain(Owners::Root), &ingest)
        .map_err(|error| CommandError::caused(Kind::Infrastructure, &error))?;
    let tree = scanned.tree.with_mtime(0);
    let layer = ingest.put_layer(&tree.encode())?;
    ingest.commit()?;
    let trees = HashMap::from([(layer, tree)]);
    let publisher = Publisher::new(store, lease, remote, Compression::Zstd, &session.ui)?;
    let parts = loose_parts(&[layer], &trees);
    let blobs = publisher.publish(parts.iter().collect())?;
    publisher.small_blob("an empty configuration", b"{}")?;
    let layers = blobs.iter().map(LayerBlob::descriptor).collect();
    let mut manifest = Manifest::new(Descriptor::of(EMPTY, b"{}"), layers);
    manifest.artifact_type = Some(GRADING.to_owned());
    manifest.annotations.insert(KEY.to_owned(), key);
    remote.put_manifest(&tag, MANIFEST, &manifest.to_raw().bytes)?;
    Ok(true)
}

/// Fetches the bundle of a built task.
pub fn pull_grading(
    session: &Session,
    store: &Store,
    lease: &Lease,
    built: &BuiltTask,
    remote: &dyn Remote,
    tag: &str,
) -> CommandResult {
    let tag = grading_tag(tag);
    let raw = remote.manifest(&tag)?.ok_or_else(|| RemoteError::Absent {
        place: remote.name(),
        what: format!("the grading bundle `{tag}`"),
    })?;
    let wrong = |detail: String| ShareError::Image { reference: format!("{}:{tag}", remote.name()), detail };
    let manifest = manifest_of(&raw).map_err(|error| wrong(error.to_string()))?;
    let blobs: Vec<LayerBlob> =
        manifest.layers.iter().filter_map(|layer| LayerBlob::read(layer, None)).collect();
    let layers: HashSet<LayerId> = blobs.iter().flat_map(|blob| blob.layers.clone()).collect();
    let is_bundle = manifest.artifact_type.as_deref() == Some(GRADING);
    let (Some(layer), 1, true) = (layers.iter().next(), layers.len(), is_bundle) else {
        return Err(wrong("it is no grading bundle".to_owned()).into());
    };
    let missing: HashSet<LayerId> = lease.hold(&[*layer])?.into_iter().collect();
    Puller::new(store, lease, remote, &session.ui)?.layers(&missing, &blobs)?;
    let tree = Tree::decode(&store.layer(layer)?).map_err(|error| wrong(error.to_string()))?;
    let merged = infradev_layers::merge([&tree]);
    let staged = lease.new_directory("grading")?.join("bundle");
    write_copy(&merged, &store.object_directories(), Owners::Root, &staged)
        .map_err(|error| CommandError::caused(Kind::Infrastructure, &error))?;
    let place = bundles(store).join(&built.task);
    let failed = |error| infradev_store::Error::io("write", &place, error);
    fs::create_dir_all(place.parent().unwrap_or(&place)).map_err(failed)?;
    only_for_the_owner(&bundles(store)).map_err(failed)?;
    infradev_store::remove_tree(&place)?;
    fs::rename(&staged, &place).map_err(failed)?;
    Ok(())
}

/// Where bundles lie: `<project>/<id>/catalog` and `git`.
fn bundles(store: &Store) -> PathBuf {
    store.layout().cache("grading")
}

/// Lists the directories of bundles that are there.
fn all_bundles(root: &Path) -> Vec<PathBuf> {
    let below = |path: &Path| {
        let mut found: Vec<PathBuf> =
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        found.sort();
        found
    };
    below(root).iter().flat_map(|project| below(project)).collect()
}

/// Lists the catalogs of bundles below the store at `store`.
pub fn bundled_catalogs(store: &Path) -> Vec<PathBuf> {
    let catalogs =
        all_bundles(&store.join("caches/grading")).into_iter().map(|bundle| bundle.join("catalog"));
    catalogs.filter(|catalog| catalog.is_dir()).collect()
}

/// Lists the repositories of bundles.
pub fn bundled_repositories(store: &Store) -> Vec<PathBuf> {
    let repositories = all_bundles(&bundles(store)).into_iter().map(|bundle| bundle.join("git"));
    repositories.filter(|repository| repository.is_dir()).collect()
}

fn task_name(built: &BuiltTask) -> TaskName {
    let (project, id) = built.task.split_once('/').unwrap_or((&built.task, ""));
    TaskName::new(project, id)
}

/// The base commit, and the one with the real change and its tests.
fn commits_of(recipe: &infradev_recipes::Recipe) -> Vec<String> {
    let mut commits = vec![];
    if let infradev_recipes::Origin::Commit(base) = &recipe.source.origin {
        commits.push(base.clone());
    }
    commits.extend(recipe.tests.as_ref().and_then(|tests| tests.merge.clone()));
    commits
}

fn key_of(catalog: &infradev_recipes::Catalog, files: &[String], commits: &[String]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("infradev grading v1");
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for file in files {
        add(file.as_bytes());
        add(&catalog.find(file).and_then(|path| fs::read(path).ok()).unwrap_or_default());
    }
    commits.iter().for_each(|commit| add(commit.as_bytes()));
    hasher.finalize().to_hex().to_string()
}

fn only_for_the_owner(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}
