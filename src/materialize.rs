//! Environments as plain files, for places where nothing can be mounted: which trees go where, what that takes, and
//! the variables by which programs use them.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use infradev_layers::{Content, Kind, Tree, TreeBuilder, TreePath, merge};
use infradev_store::ObjectId;

use crate::build::root::BuiltTask;
use crate::error::{CommandError, CommandResult, Kind as Failure};

/// A tree that goes to a place.
#[derive(Debug)]
pub(crate) struct Part {
    /// The place.
    pub(crate) target: PathBuf,
    /// What goes there.
    pub(crate) tree: Tree,
}

/// What a task adds to its base lies below these.
const ADDED: [&str; 2] = ["opt", "workspace"];

/// Cuts the merged tree of `built` into what goes to its real places if `at` is the root directory; else all of it
/// goes to `at`, but for what stands for the host's own directories.
pub(crate) fn parts(built: &BuiltTask, merged: &Tree, at: &Path) -> Vec<Part> {
    if at != Path::new("/") {
        let tree = match built.host_base {
            true => merge([&merged.filter(is_added).expect("a part of a tree is a tree")]),
            false => merged.clone(),
        };
        return vec![Part { target: at.to_owned(), tree }];
    }
    let part = |(target, root)| Part { target, tree: below(merged, &root) };
    real_places(merged).into_iter().map(part).collect()
}

/// The places on a machine where the parts of a merged tree belong that are not its base, and where these are in it:
/// /opt/env, /workspace/PROJECT and their like.
pub(crate) fn real_places(merged: &Tree) -> Vec<(PathBuf, TreePath)> {
    let roots = merged.entries().iter().filter(|entry| {
        let depth = entry.path.as_bytes().split(|&byte| byte == b'/').count();
        depth == 2 && entry.kind.is_directory() && is_added(&entry.path)
    });
    roots.map(|entry| (Path::new("/").join(entry.path.as_path()), entry.path.clone())).collect()
}

fn is_added(path: &TreePath) -> bool {
    let first = path.as_bytes().split(|&byte| byte == b'/').next().unwrap_or_default();
    ADDED.iter().any(|name| name.as_bytes() == first)
}

/// What lies at and below `root`, as a tree of its own.
pub(crate) fn below(tree: &Tree, root: &TreePath) -> Tree {
    let prefix = root.as_bytes().len() + 1;
    let moved = |path: &TreePath| TreePath::new(path.as_bytes().get(prefix..).unwrap_or_default());
    let part = tree.filter(|path| path.starts_with(root)).expect("a part of a tree is a tree");
    let mut builder = TreeBuilder::new();
    for entry in part.entries().iter().filter(|entry| entry.path.starts_with(root)) {
        let kind = match &entry.kind {
            Kind::Hardlink { first } => Kind::Hardlink { first: moved(first).expect("a path of the tree") },
            kind => kind.clone(),
        };
        builder.add(moved(&entry.path).expect("a path of the tree"), kind).expect("each path is there once");
    }
    merge([&builder.finish().expect("a part of a tree is a tree")])
}

/// Makes sure that the interpreter which the environment names is on this machine, where it is not in the tree.
pub(crate) fn check_interpreter(merged: &Tree, parts: &[Part]) -> CommandResult {
    let python: TreePath = "opt/env/bin/python".parse().expect("a plain path");
    let Some(Kind::Symlink { target, .. }) = merged.get(&python) else { return Ok(()) };
    let target = Path::new(std::ffi::OsStr::from_bytes(target));
    let inside = TreePath::new(target.as_os_str().as_bytes().strip_prefix(b"/").unwrap_or_default());
    let comes_with_it = inside.is_ok_and(|inside| parts.iter().any(|part| part.tree.get(&inside).is_some()));
    if comes_with_it || target.exists() {
        return Ok(());
    }
    let text = format!("the environment runs {}, which is not on this machine", target.display());
    Err(CommandError::new(Failure::Infrastructure, text)
        .hint("use a container with the same base, or write the whole tree with --at DIR"))
}

/// Finds the first path below `root` that is not what `tree` says: content, kind, mode, or there at all.
pub(crate) fn first_difference(tree: &Tree, root: &Path) -> Option<PathBuf> {
    let mut known = HashSet::new();
    for entry in tree.entries() {
        let path = match entry.path.is_root() {
            true => root.to_owned(),
            false => root.join(entry.path.as_path()),
        };
        let kind = match &entry.kind {
            Kind::Hardlink { first } => tree.get(first).expect("a tree has no dangling hardlinks"),
            kind => kind,
        };
        if !is_as(kind, &path) {
            return Some(path);
        }
        known.insert(path);
    }
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for found in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = found.path();
            if !known.contains(&path) {
                return Some(path);
            }
            if found.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path);
            }
        }
    }
    None
}

fn is_as(kind: &Kind, path: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(path) else { return false };
    let mode = |mode: u16| found.permissions().mode() & 0o7777 == u32::from(mode);
    match kind {
        Kind::Directory { metadata, .. } => found.is_dir() && mode(metadata.mode),
        Kind::Symlink { target, .. } => {
            fs::read_link(path).is_ok_and(|found| found.as_os_str().as_bytes() == &**target)
        }
        Kind::File { metadata, content } => {
            let same = |object: &ObjectId| {
                let mut hasher = blake3::Hasher::new();
                let hashed = fs::File::open(path).and_then(|mut file| std::io::copy(&mut file, &mut hasher));
                hashed.is_ok() && ObjectId::from(hasher.finalize()) == *object
            };
            found.is_file()
                && mode(metadata.mode)
                && found.len() == content.size()
                && match content {
                    Content::Empty => true,
                    Content::Object(object, _) => same(object),
                }
        }
        Kind::ImpliedDirectory | Kind::Hardlink { .. } | Kind::Whiteout => false,
    }
}

/// The variables by which a shell uses the environment at `at`.
pub(crate) fn activation(built: &BuiltTask, at: &Path) -> BTreeMap<String, String> {
    let place = |path: &str| match at == Path::new("/") {
        true => path.to_owned(),
        false => at.join(path.trim_start_matches('/')).display().to_string(),
    };
    let all = built.run_variables();
    let mut chosen = built.variables.clone();
    chosen.insert("VIRTUAL_ENV".to_owned(), place("/opt/env"));
    for name in ["PYTHONDONTWRITEBYTECODE", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"] {
        chosen.extend(all.get_key_value(name).map(|(name, value)| (name.clone(), value.clone())));
    }
    if at != Path::new("/") {
        // What installs the source tree names its real place.
        chosen.entry("PYTHONPATH".to_owned()).or_insert_with(|| place(&built.workspace));
    }
    chosen.insert("PATH".to_owned(), format!("{}:$PATH", place("/opt/env/bin")));
    chosen
}

/// Writes the variables as lines for a shell.
pub(crate) fn shell_lines(variables: &BTreeMap<String, String>) -> String {
    let line = |(name, value): (&String, &String)| {
        // `$PATH` alone is meant to be expanded.
        let (value, rest) = match value.strip_suffix(":$PATH") {
            Some(value) => (value, ":\"$PATH\""),
            None => (value.as_str(), ""),
        };
        format!("export {name}='{}'{rest}\n", value.replace('\'', "'\\''"))
    };
    variables.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_written() {
        let variables = [("A", "it's $HOME"), ("PATH", "/x y/bin:$PATH")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(shell_lines(&variables), "export A='it'\\''s $HOME'\nexport PATH='/x y/bin':\"$PATH\"\n");
    }
}
