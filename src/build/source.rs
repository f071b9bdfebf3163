//! Source steps: the tree of a commit, with a repository that holds only it, or the files of an sdist.

use std::fs;
use std::io::{self as stdio, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use infradev_layers::{GitObject, GitObjectKind, GitSource, Oid, TreePath, commit_tree};
use infradev_recipes::{Archive, Artifact, DistributionName, Origin, Package, Recipe};

use infradev_store::Store;

use super::sdist::sdist_tree;
use super::wheel::fetch;
use super::{BuildError, Product, Workshop, io};
use crate::config::Config;
use crate::session::Session;
use crate::share::grading::bundled_repositories;

/// Makes the source layer of `recipe`.
pub(crate) fn source<'a>(workshop: &Workshop<'a>, recipe: &Recipe) -> Result<Product<'a>, BuildError> {
    let directory: TreePath =
        recipe.workspace.trim_start_matches('/').parse().expect("checked by the recipe's parser");
    match &recipe.source.origin {
        Origin::Commit(commit) => from_git(workshop, recipe, commit, &directory),
        Origin::Sdist { name, sha256, .. } => from_sdist(workshop, recipe, name, sha256, &directory),
    }
}

fn from_git<'a>(
    workshop: &Workshop<'a>,
    recipe: &Recipe,
    commit: &str,
    directory: &TreePath,
) -> Result<Product<'a>, BuildError> {
    let mut product = workshop.product()?;
    let url = recipe.git.as_deref().unwrap_or_default();
    let repository = Repository::open(workshop.session, workshop.store, url, commit)?;
    let oid: Oid = commit.parse().expect("checked by the recipe's parser");
    let left_out = |path: &TreePath| {
        let text = String::from_utf8_lossy(path.as_bytes());
        recipe.source.exclude.iter().any(|pattern| pattern.matches(&text))
    };
    let mut objects = repository.objects()?;
    let made = commit_tree(&mut objects, oid, directory, &left_out, &product.ingest);
    let url = repository.url;
    product.tree = made.map_err(|source| BuildError::Git { commit: commit.to_owned(), url, source })?.tree;
    Ok(product)
}

fn from_sdist<'a>(
    workshop: &Workshop<'a>,
    recipe: &Recipe,
    name: &DistributionName,
    sha256: &str,
    directory: &TreePath,
) -> Result<Product<'a>, BuildError> {
    let mut product = workshop.product()?;
    let session = workshop.session;
    let file = session.index().find_by_hash(session.client()?, name.as_str(), sha256)?;
    let archive = Archive { name: file.name, size: None, sha256: sha256.to_owned(), url: Some(file.url) };
    let artifact = Artifact::Sdist { archive, build_lock: None };
    let package =
        Package { name: name.clone(), version: recipe.source.version.clone(), dependencies: None, artifact };
    let (path, downloaded) = fetch(workshop, &package)?;
    product.downloaded = downloaded;
    let mtime = recipe.source.date.map(|date| date.seconds());
    let tree = sdist_tree(&path, directory, mtime, &product.ingest)?;
    let prefix = directory.as_bytes().len() + 1;
    product.tree = tree.filter(|path| {
        let below = path.as_bytes().get(prefix..).unwrap_or_default();
        let text = String::from_utf8_lossy(below);
        !recipe.source.exclude.iter().any(|pattern| pattern.matches(&text))
    })?;
    infradev_store::remove_tree(&path)?;
    Ok(product)
}

/// A local repository with a commit.
pub(crate) struct Repository {
    git_dir: PathBuf,
    /// Where it came from, after mirrors.
    pub(crate) url: String,
}

impl Repository {
    /// Finds or fetches a repository that has `commit` of the project at `url`.
    pub(crate) fn open(
        session: &Session,
        store: &Store,
        url: &str,
        commit: &str,
    ) -> Result<Self, BuildError> {
        let place = session.config.mirror(url);
        let local = Path::new(place.strip_prefix("file://").unwrap_or(place));
        if local.is_dir() {
            let inside = local.join(".git");
            let git_dir = if inside.is_dir() { inside } else { local.to_owned() };
            let repository = Self { git_dir, url: place.to_owned() };
            return if repository.has(commit) { Ok(repository) } else { Err(repository.lacks(commit)) };
        }
        if place.starts_with('/') || place.starts_with("file://") {
            let detail = "there is no such directory".to_owned();
            return Err(BuildError::Repository { url: place.to_owned(), detail });
        }
        let bundled = bundled_repositories(store);
        let bundled = bundled.into_iter().map(|git_dir| Self { git_dir, url: place.to_owned() });
        match bundled.into_iter().find(|repository| repository.has(commit)) {
            Some(repository) => Ok(repository),
            None => Self::fetch(session, store, place, commit),
        }
    }

    /// Makes a bare repository at `to` that holds these commits of the project at `url`, and nothing before or
    /// after them.
    pub(crate) fn copy_commits(
        session: &Session,
        store: &Store,
        url: &str,
        commits: &[String],
        to: &Path,
    ) -> Result<(), BuildError> {
        fs::create_dir_all(to).map_err(io("create", to))?;
        let copy = Self { git_dir: to.to_owned(), url: url.to_owned() };
        copy.run(&["init", "--quiet", "--bare", "--template="])?;
        for commit in commits {
            let from = Self::open(session, store, url, commit)?;
            let from = from.git_dir.display().to_string();
            copy.run(&["fetch", "--quiet", "--depth=1", "--no-tags", "--", &from, commit])?;
        }
        let _says_where_it_came_from = fs::remove_file(to.join("FETCH_HEAD"));
        Ok(())
    }

    fn fetch(session: &Session, store: &Store, url: &str, commit: &str) -> Result<Self, BuildError> {
        let name = blake3::hash(url.as_bytes()).to_hex();
        let git_dir = store.layout().cache("git").join(&name[..32]);
        let repository = Self { git_dir, url: url.to_owned() };
        if repository.has(commit) {
            return Ok(repository);
        }
        if session.config.offline.value {
            let what = format!("commit {commit} of {url}");
            return Err(crate::net::NetError::Offline { what }.into());
        }
        fs::create_dir_all(&repository.git_dir).map_err(io("create", &repository.git_dir))?;
        repository.run(&["init", "--quiet", "--bare"])?;
        let authorities = session
            .authorities_for_tools()
            .map_err(|error| BuildError::Repository { url: url.to_owned(), detail: error.message })?;
        let setting = authorities.map(|file| format!("http.sslCAInfo={}", file.display()));
        let mut arguments: Vec<&str> = setting.iter().flat_map(|setting| ["-c", setting]).collect();
        arguments.extend(["fetch", "--quiet", "--depth=1", "--no-tags", "--", url, commit]);
        repository.run(&arguments)?;
        Ok(repository)
    }

    fn has(&self, commit: &str) -> bool {
        let check = self.git().args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).output();
        check.is_ok_and(|output| output.status.success())
    }

    fn lacks(&self, commit: &str) -> BuildError {
        BuildError::Repository { url: self.url.clone(), detail: format!("it does not have commit {commit}") }
    }

    fn run(&self, arguments: &[&str]) -> Result<Vec<u8>, BuildError> {
        let failed = |detail: String| BuildError::Repository { url: self.url.clone(), detail };
        let output = self
            .git()
            .args(arguments)
            .output()
            .map_err(|error| failed(format!("cannot run git: {error}")))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(failed(text.trim().lines().last().unwrap_or("git failed").to_owned()))
    }

    /// The difference from one commit to another, as `git apply` takes it; only paths that `keep` allows.
    pub(crate) fn diff(&self, from: &str, to: &str, paths: &[String]) -> Result<Vec<u8>, BuildError> {
        let mut arguments = vec![
            "diff-tree",
            "-p",
            "--binary",
            "--full-index",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            from,
            to,
            "--",
        ];
        arguments.extend(paths.iter().map(String::as_str));
        self.run(&arguments)
    }

    /// The difference from the directory `a` to the directory `b` below `place`, with paths as [`Self::diff`] has.
    pub(crate) fn diff_directories(&self, place: &Path) -> Result<Vec<u8>, BuildError> {
        let mut command = self.git();
        command.current_dir(place).args([
            "diff",
            "--no-index",
            "--no-prefix",
            "--binary",
            "--full-index",
            "a",
            "b",
        ]);
        let failed = |error: stdio::Error| BuildError::Repository {
            url: self.url.clone(),
            detail: format!("cannot run git: {error}"),
        };
        let output = command.output().map_err(failed)?;
        // Its status is 1 where there is a difference, and more where it failed.
        match output.status.code() {
            Some(0 | 1) => Ok(output.stdout),
            _ => {
                let detail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(BuildError::Repository { url: self.url.clone(), detail })
            }
        }
    }

    /// Lists the paths that differ between two commits.
    pub(crate) fn changed(&self, from: &str, to: &str) -> Result<Vec<String>, BuildError> {
        let output = self.run(&["diff-tree", "-r", "-z", "--name-only", "--no-renames", from, to])?;
        Ok(String::from_utf8_lossy(&output)
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect())
    }

    /// Returns the content of a file in a commit; `None` if the commit does not have it.
    pub(crate) fn file(&self, commit: &str, path: &str) -> Result<Option<Vec<u8>>, BuildError> {
        let name = format!("{commit}:{path}");
        if !self.git().args(["cat-file", "-e", &name]).output().is_ok_and(|output| output.status.success()) {
            return Ok(None);
        }
        self.run(&["cat-file", "blob", &name]).map(Some)
    }

    fn objects(&self) -> Result<CatFile, BuildError> {
        let failed = |error: stdio::Error| BuildError::Repository {
            url: self.url.clone(),
            detail: format!("cannot run git: {error}"),
        };
        let mut command = self.git();
        command
            .args(["cat-file", "--batch"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).expect("both are piped");
        Ok(CatFile { child, input, output: BufReader::with_capacity(1 << 18, output) })
    }

    /// A git that obeys nothing but its command line: the repository may be anybody's.
    fn git(&self) -> Command {
        let mut command = Command::new("git");
        Config::clear_for_tool(&mut command);
        command
            .envs([
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_NO_LAZY_FETCH", "1"),
                ("GIT_TERMINAL_PROMPT", "0"),
                ("GIT_OPTIONAL_LOCKS", "0"),
                ("LC_ALL", "C"),
            ])
            .args(["-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"])
            .arg("--git-dir")
            .arg(&self.git_dir);
        command
    }
}

/// `git cat-file --batch`, asked for one object after the other.
struct CatFile {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl GitSource for CatFile {
    fn object(&mut self, object: Oid) -> stdio::Result<Option<GitObject>> {
        writeln!(self.input, "{object}")?;
        let mut header = String::new();
        self.output.read_line(&mut header)?;
        let mut words = header.split_whitespace().skip(1);
        let kind = match words.next() {
            Some("commit") => GitObjectKind::Commit,
            Some("tree") => GitObjectKind::Tree,
            Some("blob") => GitObjectKind::Blob,
            Some("missing") => return Ok(None),
            _ => return Err(stdio::Error::other(format!("git answers `{}`", header.trim()))),
        };
        let size = words.next().and_then(|size| size.parse().ok());
        let mut content = vec![0; size.ok_or_else(|| stdio::Error::other("git answers without a size"))?];
        self.output.read_exact(&mut content)?;
        self.output.read_exact(&mut [0])?;
        Ok(Some(GitObject { kind, content }))
    }
}

impl Drop for CatFile {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _nothing_to_learn = self.child.wait();
    }
}
