//! One resolution: requirements and preferences become one artifact per package.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use infradev_recipes::{
    Archive, Artifact, DistributionName, Package, Pruning, Resolution, Target, Timestamp,
};
use infradev_store::{Lease, Store};

use super::LockError;
use super::graph::fill_dependencies;
use super::requirements::RequirementFiles;
use super::siblings::{Preference, as_answer};
use super::uv::{Form, Question, Uv};
use crate::build::{BuildError, io};
use crate::net::NetError;
use crate::session::Session;

/// Where locks are resolved: the session, uv, and a directory that goes with the lease.
#[derive(Debug)]
pub(super) struct Resolver<'a> {
    session: &'a Session,
    store: &'a Store,
    uv: OnceCell<Uv<'a>>,
    lease: Lease,
}

/// What one lock is resolved from.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// The file of the lock, for messages.
    pub(super) lock: &'a str,
    /// Requirements of the recipe.
    pub(super) pins: &'a [String],
    /// Requirements of the source tree.
    pub(super) files: &'a RequirementFiles,
    /// How many of the files are named; the others are included by them.
    pub(super) named: usize,
    /// The machine.
    pub(super) target: Target,
    /// Nothing uploaded later is considered.
    pub(super) exclude_newer: Option<Timestamp>,
    /// Whether source distributions are out of the question.
    pub(super) only_wheels: bool,
}

const PINS: &str = "pins.in";
const ANSWER: &str = "pylock.answer.toml";
const ANNOTATED: &str = "answer.txt";

impl<'a> Resolver<'a> {
    /// Makes ready to resolve.
    pub(super) fn new(session: &'a Session, store: &'a Store) -> Result<Self, LockError> {
        let lease = store.lease("lock")?;
        Ok(Self { session, store, uv: OnceCell::new(), lease })
    }

    /// Returns uv, which is fetched when it is first needed.
    fn uv(&self) -> Result<&Uv<'a>, LockError> {
        if let Some(uv) = self.uv.get() {
            return Ok(uv);
        }
        let uv = Uv::fetch(self.session, self.store)?;
        Ok(self.uv.get_or_init(|| uv))
    }

    /// Makes a new directory that goes away with the resolver.
    pub(super) fn directory(&self) -> Result<PathBuf, LockError> {
        Ok(self.lease.new_directory("lock")?)
    }

    /// Resolves, and prunes to one artifact per package, which still carries its URL.
    pub(super) fn resolve(
        &self,
        request: &Request<'_>,
        preferences: &BTreeSet<Preference>,
    ) -> Result<Vec<Package>, LockError> {
        let directory = self.directory()?;
        let answer = directory.join(ANSWER);
        let write = |path: &Path, text: &str| fs::write(path, text).map_err(io("write", path));
        let mut pins = request.pins.join("\n");
        pins.push('\n');
        write(&directory.join(PINS), &pins)?;
        request.files.write(&directory.join("tree"))?;
        if !preferences.is_empty() {
            write(&answer, &as_answer(preferences))?;
        }
        let named = request.files.files.iter().take(request.named).map(|(path, _)| format!("tree/{path}"));
        let inputs: Vec<String> = [PINS.to_owned()].into_iter().chain(named).collect();
        let question = Question {
            inputs: &inputs,
            output: ANSWER,
            form: Form::Lock,
            target: &request.target,
            exclude_newer: request.exclude_newer,
            only_wheels: request.only_wheels,
        };
        let failed = |detail| LockError::Resolve { lock: request.lock.to_owned(), detail };
        self.uv()?.resolve(&directory, &question).map_err(failed)?;
        let resolution = Resolution::parse(request.lock, &read(&answer)?).map_err(LockError::Answer)?;
        let pruning = Pruning { target: request.target, index_prefixes: &[] };
        let prune = |source| LockError::Prune { lock: request.lock.to_owned(), source };
        let mut packages = resolution.prune(&pruning).map_err(prune)?;
        // Asked again with its own answer preferred, uv says the same in the form that tells who needs what.
        let annotated = directory.join(ANNOTATED);
        let pins = packages.iter().map(|package| format!("{}=={}\n", package.name, package.version));
        write(&annotated, &pins.collect::<String>())?;
        let again = Question { output: ANNOTATED, form: Form::Annotated, ..question };
        self.uv()?.resolve(&directory, &again).map_err(failed)?;
        fill_dependencies(&mut packages, &read(&annotated)?);
        Ok(packages)
    }

    /// Takes the URLs of files of the index away.
    pub(super) fn without_index_urls(&self, packages: &mut [Package]) -> Result<(), LockError> {
        let mut hosts = IndexHosts::default();
        for package in packages {
            let (Artifact::Wheel(archive) | Artifact::Sdist { archive, .. }) = &mut package.artifact;
            if hosts.serves(self.session, &package.name, archive)? {
                archive.url = None;
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, BuildError> {
    fs::read_to_string(path).map_err(io("read", path))
}

/// Where the package index keeps its files, learnt from its answers.
#[derive(Debug, Default)]
struct IndexHosts {
    known: BTreeMap<String, bool>,
}

impl IndexHosts {
    /// Whether the package index serves `archive`, so that its name finds it on any mirror.
    fn serves(
        &mut self,
        session: &Session,
        project: &DistributionName,
        archive: &Archive,
    ) -> Result<bool, LockError> {
        let Some(url) = &archive.url else { return Ok(true) };
        let host: String = url.split('/').take(3).collect::<Vec<_>>().join("/");
        if let Some(known) = self.known.get(&host) {
            return Ok(*known);
        }
        let serves = match session.index().find(session.client()?, project.as_str(), &archive.name) {
            Ok(found) => found.url.starts_with(&host),
            Err(NetError::NoFile { .. } | NetError::Status { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        self.known.insert(host, serves);
        Ok(serves)
    }
}
