//! From a patch to the submission layer: applied inside a fresh environment, captured from its upper.

use std::path::PathBuf;
use std::time::Duration;

use infradev_layers::{Tree, TreePath};

use super::Evaluation;
use super::bundle::PatchChoice;
use super::run::Request;
use super::verdict::{Verdict, VerdictKind};
use crate::build::scratch::tail;
use crate::build::{BuildError, io};
use crate::commands_env::APPLY;
use crate::env::capture::capture;
use crate::env::default_mapping;

/// How long applying a patch may take.
const LIMIT: Duration = Duration::from_secs(120);

impl Evaluation<'_> {
    /// Returns the submission layer of `choice`; `None` if `verdict` says why there is none.
    pub(super) fn submit(
        &self,
        choice: &PatchChoice,
        verdict: &mut Verdict,
    ) -> Result<Option<Tree>, BuildError> {
        let patch = self.patch(choice)?;
        if matches!(choice, PatchChoice::Base) {
            return Ok(Some(Tree::default()));
        }
        if patch.iter().all(u8::is_ascii_whitespace) {
            verdict.kind = VerdictKind::EmptyPatch;
            verdict.reason = "the patch changes nothing".to_owned();
            return Ok(None);
        }
        let directory = self.workshop.lease.new_directory("patch")?;
        let file = directory.join("patch");
        std::fs::write(&file, patch).map_err(io("write", &file))?;
        let log = self.log("patch")?;
        let outcome = self.run(Request {
            over: &[],
            command: ["sh", "-c", APPLY].map(str::to_owned).to_vec(),
            directory: PathBuf::from(&self.built.workspace),
            variables: Default::default(),
            binds: vec![],
            input: Some(&file),
            limit: LIMIT,
            output: &log,
            errors: None,
        })?;
        if outcome.status != Some(0) {
            verdict.kind = VerdictKind::PatchFailed;
            let last = tail(&log).lines().next_back().unwrap_or("it took too long").to_owned();
            verdict.reason = format!("the patch does not apply: {last}");
            return Ok(None);
        }
        // The run is over and its processes are gone: nothing can change the upper any more.
        let ingest = self.workshop.store.ingest(self.workshop.lease)?;
        let (back_end, below) = (self.workshop.back_end, &self.below);
        let written = capture(&outcome.upper, back_end, default_mapping(), below, &ingest)?.tree;
        let tree = self.of_submission(&written)?;
        if tree.entries().iter().all(|entry| entry.kind.is_directory()) {
            verdict.kind = VerdictKind::EmptyPatch;
            verdict.reason = "the patch changes nothing".to_owned();
            return Ok(None);
        }
        verdict.submission = Some(ingest.put_layer(&tree.encode())?);
        ingest.commit()?;
        Ok(Some(tree))
    }

    /// What of an upper is the submission: changes of the source tree, but not of its repository.
    fn of_submission(&self, written: &Tree) -> Result<Tree, BuildError> {
        let workspace: TreePath =
            self.built.workspace.trim_start_matches('/').parse().expect("checked by the recipe's parser");
        let repository = workspace.join(b".git").expect("a short path");
        Ok(written.filter(|path| path.starts_with(&workspace) && !path.starts_with(&repository))?)
    }

    /// Returns a new file for the output of a part of this evaluation.
    pub(super) fn log(&self, part: &str) -> Result<PathBuf, BuildError> {
        let name = format!("{}-{}", self.built.name().replace('/', "-"), self.workshop.lease.id());
        let directory = self.workshop.store.layout().cache("tests").join(name);
        std::fs::create_dir_all(&directory).map_err(io("create", &directory))?;
        Ok(directory.join(format!("{part}.log")))
    }
}
