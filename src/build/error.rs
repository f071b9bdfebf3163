//! Why a step could not be built.

use std::path::PathBuf;

use infradev_layers::{GitError, ScanError, TarError, TreeError, WheelError};

use crate::env::image::StackError;
use crate::env::launch::LaunchError;
use crate::error::{CommandError, Kind};
use crate::net::NetError;

/// A step that could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] infradev_store::Error),
    /// The stack below the step cannot be mounted.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A download failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A wheel cannot become a layer.
    #[error("{file} cannot become a layer")]
    Wheel {
        /// The wheel.
        file: String,
        /// Why.
        source: WheelError,
    },
    /// A commit cannot become a layer.
    #[error("commit {commit} of {url} cannot become a layer")]
    Git {
        /// The commit.
        commit: String,
        /// The repository, after mirrors.
        url: String,
        /// Why.
        source: GitError,
    },
    /// An archive cannot become a layer.
    #[error("{file} cannot become a layer")]
    Archive {
        /// The archive.
        file: String,
        /// Why.
        source: TarError,
    },
    /// What a command left cannot become a layer.
    #[error("what the step wrote cannot become a layer")]
    Scan(#[from] ScanError),
    /// Entries made here do not fit together.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The sandbox could not be made.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A command of the step failed.
    #[error("`{command}` failed with status {status}")]
    Command {
        /// The command.
        command: String,
        /// Its status.
        status: i32,
        /// Where its output is kept.
        log: PathBuf,
        /// The last lines of its output.
        tail: String,
    },
    /// A declared input matches nothing.
    #[error("the input `{pattern}` of build step `{step}` matches no file of the source tree")]
    NoInput {
        /// The pattern.
        pattern: String,
        /// The step.
        step: String,
    },
    /// A declared output is missing although the command succeeded.
    #[error("build step `{step}` succeeded but left nothing at `{pattern}`")]
    NoOutput {
        /// The pattern.
        pattern: String,
        /// The step.
        step: String,
        /// Where the command's output is kept.
        log: PathBuf,
        /// The last lines of its output.
        tail: String,
    },
    /// A tool of the host is missing or failed.
    #[error("{tool}: {detail}")]
    Tool {
        /// The tool.
        tool: String,
        /// What is wrong.
        detail: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// A package of a base lock is no longer on the mirror.
    #[error("the mirror no longer has {name} {version} ({file})")]
    VanishedPackage {
        /// The package.
        name: String,
        /// Its version.
        version: String,
        /// Where the mirror kept it.
        file: String,
    },
    /// An image cannot be a base.
    #[error("the {image} cannot be the base: {detail}")]
    Image {
        /// The image, or root file system, and its name.
        image: String,
        /// Why.
        detail: String,
    },
    /// The file of a base is not the one that was locked.
    #[error("the {image} was changed: its bytes hash to {found}, and the lock names {locked}")]
    ImageChanged {
        /// The root file system, and its name.
        image: String,
        /// What it had.
        locked: String,
        /// What it has.
        found: String,
    },
    /// A place for images failed.
    #[error(transparent)]
    Remote(#[from] crate::share::RemoteError),
    /// A source repository is not there.
    #[error("the repository {url} cannot be fetched: {detail}")]
    Repository {
        /// The repository, after mirrors.
        url: String,
        /// Why.
        detail: String,
    },
    /// Two wheels disagree on a path.
    #[error("{first} and {second} both hold {path}, with different content")]
    Disagreement {
        /// The path.
        path: String,
        /// A distribution.
        first: String,
        /// Another.
        second: String,
    },
    /// A file could not be written or read.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The places of environments cannot be used.
    #[error("cannot {action} {}", .path.display())]
    Place {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The places of environments hold something else.
    #[error("{} is not empty, and steps without a sandbox are run there", .path.display())]
    Occupied {
        /// The place.
        path: PathBuf,
    },
    /// The places of environments are used by others.
    #[error("the commands of another build without a sandbox still run (they hold the lock {})", .lock.display())]
    Lent {
        /// The lock.
        lock: PathBuf,
    },
    /// A step would have to run in a base of its own.
    #[error("{task} has a base of its own, whose commands cannot be run without a sandbox")]
    OwnBase {
        /// The task.
        task: String,
    },
    /// The step is not in the store, and building it was forbidden.
    #[error("the step is not in the store, and --require-hit forbids building it")]
    Miss,
    /// Another step that it needs failed.
    #[error("`{0}`, which it needs, failed")]
    Needed(String),
    /// A catalog document cannot be read.
    #[error(transparent)]
    Catalog(#[from] infradev_recipes::CatalogError),
    /// The plan lacks something.
    #[error(transparent)]
    Key(#[from] infradev_recipes::KeyError),
}

impl BuildError {
    /// Adds the kind and the next step.
    pub(crate) fn into_command_error(self) -> CommandError {
        match self {
            Self::Store(error) => error.into(),
            Self::Stack(error) => error.into(),
            Self::Launch(error) => error.into(),
            Self::Io { action, path, source } => infradev_store::Error::io(action, &path, source).into(),
            Self::Catalog(error) => error.into(),
            Self::Net(NetError::Write { path, source }) => {
                infradev_store::Error::io("write", &path, source).into()
            }
            Self::Net(error) => net_error(&error),
            Self::Remote(error) => error.into(),
            // What a full disk did deep below is still a full disk.
            Self::Wheel { source: WheelError::Store(error), .. }
            | Self::Git { source: GitError::Store(error), .. }
            | Self::Archive { source: TarError::Store(error), .. }
            | Self::Scan(ScanError::Store(error)) => error.into(),
            Self::Command { ref log, ref tail, .. } | Self::NoOutput { ref log, ref tail, .. } => {
                let text = format!("{self}\n{}", indented(tail));
                CommandError::new(Kind::Failed, text).hint(format!("the whole log is {}", log.display()))
            }
            Self::Tool { hint: Some(ref hint), .. } => {
                let hint = hint.clone();
                CommandError::caused(Kind::Infrastructure, &self).hint(hint)
            }
            Self::ImageChanged { .. } => CommandError::caused(Kind::Failed, &self)
                .hint("put the old file back, or take the new one with `infradev lock TASK --refresh-base`"),
            Self::VanishedPackage { .. } => CommandError::caused(Kind::Failed, &self).hint(
                "run `infradev lock TASK --refresh-base`, or name a mirror that keeps old packages with --mirror debian=URL",
            ),
            Self::Repository { ref url, .. } => {
                let hint = if url.starts_with('/') || url.starts_with("file:") {
                    "it was named by --mirror, INFRADEV_MIRRORS or [mirrors] of the configuration".to_owned()
                } else {
                    format!("if you have a copy, name it with --mirror {url}=PATH or [mirrors] of the configuration")
                };
                CommandError::caused(Kind::Infrastructure, &self).hint(hint)
            }
            Self::Disagreement { ref first, .. } => {
                let hint = format!("say in the task's [python] which one is right, for instance prefer = {{ \"PATH\" = \"{first}\" }}");
                CommandError::caused(Kind::Usage, &self).hint(hint)
            }
            Self::NoInput { .. } => CommandError::caused(Kind::Usage, &self).hint("patterns are relative to the source tree"),
            Self::Place { .. } => CommandError::caused(Kind::Infrastructure, &self)
                .hint("steps without a sandbox run at /opt/env and /workspace: run as root of a container, or let its image make both for this user"),
            Self::Occupied { .. } => CommandError::caused(Kind::Usage, &self)
                .hint("run it in a fresh container, or move what is there away (what `env materialize` wrote can be removed)"),
            Self::Lent { .. } => CommandError::caused(Kind::Infrastructure, &self)
                .hint("wait for it to end, or end what a killed one has left running"),
            Self::OwnBase { .. } => CommandError::caused(Kind::Usage, &self)
                .hint("build it where namespaces are allowed, `ci save` or `push` it there, and restore it here"),
            Self::Miss => CommandError::caused(Kind::Miss, &self).hint("`infradev why` tells what differs from what is there"),
            Self::Git { source: GitError::Missing { .. }, .. } => CommandError::caused(Kind::Infrastructure, &self)
                .hint("the copy of the repository is incomplete; use another mirror, or leave the file out with `exclude` in the task's [source]"),
            other => CommandError::caused(Kind::Failed, &other),
        }
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  | {line}\n")).collect::<String>().trim_end().to_owned()
}

/// A failed transfer is the network's fault, a wrong hash is not.
pub(crate) fn net_error(error: &NetError) -> CommandError {
    let (kind, hint) = match error {
        NetError::Offline { .. } => (Kind::Miss, "run it once without --offline"),
        NetError::Hash { .. } => (
            Kind::Failed,
            "the index or something on the way changed the file; if the new one is right, run `infradev lock`",
        ),
        NetError::NoFile { .. } => (
            Kind::Failed,
            "it was removed from the index, or the index is another one; run `infradev lock --check`",
        ),
        NetError::NoIndex => {
            (Kind::Usage, "name one with `index` in the configuration, INFRADEV_INDEX, or PIP_INDEX_URL")
        }
        NetError::Setting { .. } => (Kind::Usage, crate::error::SETTING),
        NetError::Transfer { source, .. } if source.is_certificate() => {
            (Kind::Infrastructure, crate::error::CERTIFICATE)
        }
        _ => (Kind::Infrastructure, "check the network, the proxy and the index"),
    };
    CommandError::caused(kind, error).hint(hint)
}
