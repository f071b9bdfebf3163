//! The requirement files of a source tree, as they are at the base commit.

use std::fs;
use std::path::{Path, PathBuf};

use infradev_recipes::{Origin, Recipe};
use infradev_store::Store;

use super::LockError;
use super::sdist::SourceArchive;
use crate::build::io;
use crate::build::source::Repository;
use crate::session::Session;

/// Requirement files by their paths in the source tree: those that the recipe names in its order, then those
/// that they include.
#[derive(Debug, Default)]
pub(super) struct RequirementFiles {
    pub(super) files: Vec<(String, Vec<u8>)>,
}

/// Makes a directory for downloads, where one is needed.
pub(super) type Scratch<'a> = &'a dyn Fn() -> Result<PathBuf, LockError>;

impl RequirementFiles {
    /// Reads them from the source tree of `recipe`.
    pub(super) fn read(
        session: &Session,
        store: &Store,
        recipe: &Recipe,
        scratch: Scratch<'_>,
    ) -> Result<Self, LockError> {
        let named = &recipe.requirements.files;
        if named.is_empty() {
            return Ok(Self::default());
        }
        let tree = SourceTree::open(session, store, recipe, scratch)?;
        let mut found: Vec<(String, Vec<u8>)> = vec![];
        let mut wanted: Vec<String> = named.clone();
        let mut at = 0;
        while at < wanted.len() {
            let path = wanted[at].clone();
            let content = tree.file(&path)?.ok_or_else(|| LockError::NoRequirementFile {
                task: recipe.task.clone(),
                path: path.clone(),
            })?;
            for include in included(&path, &String::from_utf8_lossy(&content)) {
                if !wanted.contains(&include) {
                    wanted.push(include);
                }
            }
            found.push((path, content));
            at += 1;
        }
        Ok(Self { files: found })
    }

    /// Names what `recipe` is locked from.
    pub(super) fn digest(&self, recipe: &Recipe) -> String {
        let contents: Vec<Vec<u8>> = self.files.iter().map(|(_, content)| content.clone()).collect();
        recipe.requirement_digest(&contents)
    }

    /// Writes the files below `directory`, at their paths in the tree.
    pub(super) fn write(&self, directory: &Path) -> Result<(), LockError> {
        for (path, content) in &self.files {
            let path = directory.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(io("create the directory of", &path))?;
            fs::write(&path, content).map_err(io("write", &path))?;
        }
        Ok(())
    }
}

/// Returns the paths of the files that the requirement file at `path` includes: `-r`, `-c` and their long forms.
fn included(path: &str, text: &str) -> Vec<String> {
    const OPTIONS: [&str; 4] = ["-r", "--requirement", "-c", "--constraint"];
    let place = |line: &str| {
        let line = line.trim();
        let option = OPTIONS.into_iter().find(|option| line.starts_with(option))?;
        let rest = &line[option.len()..];
        let separated = rest.starts_with([' ', '\t', '=']) || option.len() == 2;
        let file = rest.trim_start_matches([' ', '\t', '=']).split(" #").next()?.trim();
        (separated && !file.is_empty() && !file.contains("://")).then(|| beside(path, file))
    };
    text.lines().filter_map(place).collect()
}

/// Returns `file` relative to the directory of `path`, without `.` and `..`.
fn beside(path: &str, file: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Where the files of a source tree are read from.
enum SourceTree<'a> {
    Repository(Repository, &'a str),
    Archive(SourceArchive),
}

impl<'a> SourceTree<'a> {
    fn open(
        session: &Session,
        store: &Store,
        recipe: &'a Recipe,
        scratch: Scratch<'_>,
    ) -> Result<Self, LockError> {
        match &recipe.source.origin {
            Origin::Commit(commit) => {
                let url = recipe.git.as_deref().unwrap_or_default();
                Ok(Self::Repository(Repository::open(session, store, url, commit)?, commit))
            }
            Origin::Sdist { name, version, sha256 } => {
                let archive = SourceArchive::fetch(session, name, version, sha256, &scratch()?)?;
                Ok(Self::Archive(archive))
            }
        }
    }

    fn file(&self, path: &str) -> Result<Option<Vec<u8>>, LockError> {
        match self {
            Self::Archive(archive) => archive.file(path),
            Self::Repository(repository, commit) => Ok(repository.file(commit, path)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_relative_to_the_file() {
        let text = "-r common.txt # all\n--constraint=../limits.txt\nrequests\n-rextra/x.txt\n--requirements-x\n-c https://host/x\n";
        let expected = ["requirements/common.txt", "limits.txt", "requirements/extra/x.txt"];
        assert_eq!(included("requirements/cpu.txt", text), expected);
    }
}
