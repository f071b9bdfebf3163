//! The grading bundle: the real change, the official test files and mutants, made from the source repository
//! when they are needed and never part of an environment.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder, TreePath};
use infradev_recipes::{Mutant, Origin, Tests};

use super::Evaluation;
use crate::build::{BuildError, Repository, io};

/// Which patch is judged.
#[derive(Debug, Clone)]
pub enum PatchChoice {
    /// The real change.
    Gold,
    /// No change at all.
    Base,
    /// A small wrong change on top of the real one.
    Mutant(Mutant),
    /// A file.
    File(PathBuf),
}

impl fmt::Display for PatchChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatchChoice::Gold => f.write_str("gold"),
            PatchChoice::Base => f.write_str("base"),
            PatchChoice::Mutant(mutant) => f.write_str(&mutant.name),
            PatchChoice::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Evaluation<'_> {
    /// Returns the patch as text for `git apply`; empty for no change.
    pub(super) fn patch(&self, choice: &PatchChoice) -> Result<Vec<u8>, BuildError> {
        match choice {
            PatchChoice::Base => Ok(vec![]),
            PatchChoice::File(path) => fs::read(path).map_err(io("read", path)),
            PatchChoice::Gold => self.gold(&[]),
            PatchChoice::Mutant(mutant) => self.mutant(mutant),
        }
    }

    /// The real change without its tests, and without the files in `except`.
    fn gold(&self, except: &[String]) -> Result<Vec<u8>, BuildError> {
        let (repository, base, merge) = self.commits()?;
        let changed = repository.changed(&base, &merge)?;
        let tests = self.tests()?;
        let wanted = |path: &String| !is_test(path, tests) && !except.contains(path);
        let paths: Vec<String> = changed.into_iter().filter(wanted).collect();
        if paths.is_empty() { Ok(vec![]) } else { repository.diff(&base, &merge, &paths) }
    }

    fn mutant(&self, mutant: &Mutant) -> Result<Vec<u8>, BuildError> {
        let (repository, base, merge) = self.commits()?;
        let wrong =
            |detail: String| BuildError::Tool { tool: format!("mutant {}", mutant.name), detail, hint: None };
        let place = self.workshop.lease.new_directory("mutant")?;
        for side in ["a", "b"] {
            let side = place.join(side);
            fs::create_dir(&side).map_err(io("create", &side))?;
        }
        let mut edited: Vec<String> = vec![];
        for edit in &mutant.edits {
            let new = place.join("b").join(&edit.file);
            if !edited.contains(&edit.file) {
                let missing = || wrong(format!("{} is not in the real change's tree", edit.file));
                write(&new, &repository.file(&merge, &edit.file)?.ok_or_else(missing)?)?;
                if let Some(old) = repository.file(&base, &edit.file)? {
                    write(&place.join("a").join(&edit.file), &old)?;
                }
                edited.push(edit.file.clone());
            }
            let text = fs::read_to_string(&new).map_err(io("read", &new))?;
            let found = text.matches(edit.find.as_str()).count();
            if found != 1 {
                return Err(wrong(format!("`{}` occurs {found} times in {}", edit.find, edit.file)));
            }
            write(&new, text.replacen(edit.find.as_str(), &edit.replace, 1).as_bytes())?;
        }
        let mut patch = self.gold(&edited)?;
        patch.extend(repository.diff_directories(&place)?);
        Ok(patch)
    }

    /// The official test files as they are in the real change.
    pub(super) fn official_tree(&self) -> Result<Tree, BuildError> {
        let (repository, _, merge) = self.commits()?;
        let ingest = self.workshop.store.ingest(self.workshop.lease)?;
        let workspace: TreePath =
            self.built.workspace.trim_start_matches('/').parse().expect("checked by the recipe's parser");
        let mut builder = TreeBuilder::new();
        for file in &self.tests()?.files {
            let path = workspace.join(file.as_bytes()).expect("checked by the recipe's parser");
            let kind = match repository.file(&merge, file)? {
                Some(bytes) => {
                    let content = match bytes.as_slice() {
                        [] => Content::Empty,
                        bytes => Content::Object(ingest.put_bytes(bytes)?, bytes.len() as u64),
                    };
                    Kind::File { metadata: Metadata::new(0o644, crate::build::BUILD_MTIME), content }
                }
                None => Kind::Whiteout,
            };
            builder.add(path, kind)?;
        }
        let tree = builder.finish()?;
        ingest.put_layer(&tree.encode())?;
        ingest.commit()?;
        Ok(tree)
    }

    pub(super) fn tests(&self) -> Result<&Tests, BuildError> {
        let missing = || BuildError::Tool {
            tool: self.built.task.clone(),
            detail: "the task has no official tests".to_owned(),
            hint: None,
        };
        self.recipe.tests.as_ref().ok_or_else(missing)
    }

    fn commits(&self) -> Result<(Repository, String, String), BuildError> {
        let missing = |detail: &str| BuildError::Tool {
            tool: self.built.task.clone(),
            detail: detail.to_owned(),
            hint: None,
        };
        let Origin::Commit(base) = &self.recipe.source.origin else {
            return Err(missing("its source is no commit, so there is no real change"));
        };
        let merge = self.tests()?.merge.clone().ok_or_else(|| missing("its tests name no merge commit"))?;
        let url = self.recipe.git.as_deref().unwrap_or_default();
        let repository = Repository::open(self.workshop.session, self.workshop.store, url, &merge)?;
        Ok((repository, base.clone(), merge))
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), BuildError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(io("create", parent))?;
    fs::write(path, bytes).map_err(io("write", path))
}

/// Whether a path of the change belongs to its tests.
fn is_test(path: &str, tests: &Tests) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    tests.files.iter().any(|file| file == path)
        || path.split('/').any(|part| part == "tests" || part == "test")
        || name.starts_with("test_")
        || name == "conftest.py"
}
