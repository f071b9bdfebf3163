//! How a command fails: a kind that decides the exit code, a cause, and the next step for the user.

use std::fmt;

use infradev_layers::BlobError;

use crate::build::BuildError;
use crate::env::image::StackError;
use crate::env::launch::LaunchError;
use crate::env::state::EnvironmentError;
use crate::net::NetError;
use crate::share::{RemoteError, ShareError};
use crate::ui::bytes;

/// What kind of failure; the exit code follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The work itself failed: a build, a test, damage found.
    Failed,
    /// The command line, the configuration or a recipe is wrong.
    Usage,
    /// The machine, the disk or the network failed, or something could not be checked.
    Infrastructure,
    /// Something is not here, and fetching or building it was forbidden.
    Miss,
    /// The user interrupted.
    Interrupted,
}

/// Every exit code of the program is decided here.
pub fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::Failed => 1,
        Kind::Usage => 2,
        Kind::Infrastructure => 3,
        Kind::Miss => 4,
        Kind::Interrupted => 130,
    }
}

/// A command's failure.
#[derive(Debug)]
pub struct CommandError {
    /// What kind.
    pub kind: Kind,
    /// What happened, and why, outermost first.
    pub message: String,
    /// What to do next.
    pub hints: Vec<String>,
    /// The exit code, where it is not the kind's.
    pub code: Option<u8>,
}

/// The result of a command.
pub type CommandResult<T = ()> = Result<T, CommandError>;

impl CommandError {
    /// Makes a failure from a message.
    pub fn new(kind: Kind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string(), hints: vec![], code: None }
    }

    /// Makes a usage failure from a message.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Makes a failure from an error and its causes.
    pub fn caused(kind: Kind, error: &dyn std::error::Error) -> Self {
        Self::new(kind, chain(error))
    }

    /// Makes a failure of a file that is not the store's.
    pub fn file(action: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let (kind, hint) = match error.kind() {
            StorageFull | QuotaExceeded => {
                (Kind::Infrastructure, Some("free some space there, or choose another place"))
            }
            PermissionDenied | ReadOnlyFilesystem => {
                (Kind::Usage, Some("choose a place that you may write, or become a user who may write there"))
            }
            _ => (Kind::Infrastructure, None),
        };
        let failure = Self::new(kind, format!("cannot {action} {}: {error}", path.display()));
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Puts what was being done before the message.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

const NO_SPACE: &str = "free some space, or run `infradev gc`; the store is as it was";

/// Whether an error comes from a full disk, however deep below.
fn is_full_disk(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let mut next = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if matches!(kind, Some(StorageFull | QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Returns an error and its causes as one line, each once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

impl From<infradev_store::Error> for CommandError {
    fn from(error: infradev_store::Error) -> Self {
        use infradev_store::Error as E;
        let (kind, hint) = match &error {
            E::NoSpace { .. } => (Kind::Infrastructure, Some(NO_SPACE)),
            E::NewerFormat { .. } => {
                (Kind::Usage, Some("use a newer infradev, or another store with --store"))
            }
            E::ReadOnly { .. } => {
                (Kind::Usage, Some("choose a store that you may write with --store or INFRADEV_STORE"))
            }
            E::Absent { .. } => (Kind::Usage, Some("build something first, or name the store with --store")),
            E::NotAStore { .. } => (Kind::Usage, Some("name an empty or absent directory with --store")),
            E::FileSystem { .. } => {
                (Kind::Usage, Some("put the store on a local disk, for instance below $TMPDIR, with --store"))
            }
            E::NoLayer(_) | E::DamagedLayer { .. } | E::DamagedPack { .. } | E::NoObject(_) => (
                Kind::Failed,
                Some(
                    "`infradev verify --read-data --repair` finds all damage and makes it anew (--dry-run says how)",
                ),
            ),
            E::UnreadableRoot { .. } => (
                Kind::Infrastructure,
                Some("nothing was removed; `infradev verify --repair` mends it, or says what to do"),
            ),
            E::Busy { .. } => (
                Kind::Infrastructure,
                Some("a command on this store is stopped: let it go on or end it, then try again"),
            ),
            E::NoRoots { .. } => (Kind::Usage, Some("give --all if everything may go")),
            E::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                (Kind::Usage, Some("choose a store that you may write with --store or INFRADEV_STORE"))
            }
            _ => (Kind::Infrastructure, None),
        };
        let error = Self::caused(kind, &error);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl From<StackError> for CommandError {
    fn from(error: StackError) -> Self {
        match error {
            StackError::Store(error) => error.into(),
            StackError::DamagedImage { ref path, .. } => {
                let hint = format!("delete {}; it is made anew from its layers", path.display());
                Self::caused(Kind::Failed, &error).hint(hint)
            }
            StackError::Io { action, path, source } => {
                infradev_store::Error::io(action, &path, source).into()
            }
            other if is_full_disk(&other) => Self::caused(Kind::Infrastructure, &other).hint(NO_SPACE),
            other => Self::caused(Kind::Failed, &other),
        }
    }
}

impl From<EnvironmentError> for CommandError {
    fn from(error: EnvironmentError) -> Self {
        match error {
            EnvironmentError::Store(error) => error.into(),
            EnvironmentError::Stack(error) => error.into(),
            EnvironmentError::Io { action, path, source } => {
                infradev_store::Error::io(action, &path, source).into()
            }
            EnvironmentError::Absent(_) => Self::caused(Kind::Usage, &error)
                .hint("`infradev env ls` lists the environments, `infradev ls` the tasks"),
            EnvironmentError::Exists(_) => Self::caused(Kind::Usage, &error)
                .hint("choose another name, or remove it with `infradev env rm`"),
            EnvironmentError::Busy(_) => {
                Self::caused(Kind::Infrastructure, &error).hint("wait for the other command to end")
            }
            EnvironmentError::Entered(_) => {
                Self::caused(Kind::Infrastructure, &error).hint("end them, then try again")
            }
            EnvironmentError::Name(_) => Self::caused(Kind::Usage, &error),
        }
    }
}

/// A sandbox that could not be made is infradev's failure: 125, so that no command's own status is mistaken for it.
const NO_NAMESPACES: &str = "in a container that forbids namespaces, `build --sandbox none` builds tasks over the host's system, and `env materialize` writes what is built as plain files; `infradev doctor` says what this machine allows";

impl From<LaunchError> for CommandError {
    fn from(error: LaunchError) -> Self {
        let (kind, code, hint) = match &error {
            LaunchError::NotFound(_) => (Kind::Usage, 127, None),
            LaunchError::NotExecutable { .. } => (Kind::Usage, 126, None),
            LaunchError::Stage { action, .. } if action.starts_with("change to the directory") => {
                (Kind::Usage, 125, None)
            }
            LaunchError::Stage { action, .. } if action.starts_with("create ") => {
                (Kind::Infrastructure, 125, Some(NO_NAMESPACES))
            }
            _ => (Kind::Infrastructure, 125, Some("`infradev doctor` says what this machine allows")),
        };
        let mut failure = Self::caused(kind, &error);
        failure.code = Some(code);
        failure.hints.extend(hint.map(str::to_owned));
        failure
    }
}

impl From<ShareError> for CommandError {
    fn from(error: ShareError) -> Self {
        match error {
            ShareError::Store(error) => error.into(),
            ShareError::Stack(error) => error.into(),
            ShareError::Remote(error) => error.into(),
            ShareError::Room { needed, free } => {
                let (needed, free) = (bytes(needed), bytes(free));
                Self::new(
                    Kind::Infrastructure,
                    format!("{needed} are missing here, and the disk has {free} left"),
                )
                .hint("free some space; nothing was fetched")
            }
            ShareError::Blob(BlobError::Damaged { .. } | BlobError::Object { .. }) => {
                Self::caused(Kind::Failed, &error)
                    .hint("`infradev verify --read-data --repair` makes it anew")
            }
            _ => Self::caused(Kind::Failed, &error),
        }
    }
}

impl From<RemoteError> for CommandError {
    fn from(error: RemoteError) -> Self {
        let failure = |kind| Self::caused(kind, &error);
        match &error {
            RemoteError::Net(net) => {
                let (kind, hint) = of_registry(net);
                let mut failure = failure(kind);
                failure.hints.extend(hint.map(str::to_owned));
                failure
            }
            RemoteError::Absent { .. } => failure(Kind::Miss).hint("`infradev push` publishes what is built"),
            RemoteError::Corrupt { .. } => failure(Kind::Failed)
                .hint("nothing of it was kept; tell those who run the place, or publish it anew"),
            RemoteError::Io { .. } => failure(Kind::Infrastructure),
        }
    }
}

/// What kind of failure of a registry it is, and what to do next.
fn of_registry(error: &NetError) -> (Kind, Option<&'static str>) {
    match error {
        NetError::Offline { .. } => (Kind::Miss, Some("run it once without --offline")),
        NetError::Name { .. } => (
            Kind::Usage,
            Some("expected HOST[:PORT]/REPOSITORY[:TAG|@DIGEST], or dir:PATH of an image layout"),
        ),
        NetError::Setting { .. } => (Kind::Usage, Some(SETTING)),
        NetError::Credentials { .. } => {
            (Kind::Usage, Some("log in anew with `podman login` or `docker login`, or mend the file"))
        }
        NetError::Denied { known: false, .. } => (
            Kind::Infrastructure,
            Some(
                "log in with `podman login` or `docker login`, or name the credentials with REGISTRY_AUTH_FILE",
            ),
        ),
        NetError::Denied { .. } => (
            Kind::Infrastructure,
            Some(
                "the credentials may be old or lack a right: `podman login` or `docker login` replaces them",
            ),
        ),
        NetError::Talk { source, .. } if source.is_certificate() => (Kind::Infrastructure, Some(CERTIFICATE)),
        NetError::Talk { source, .. } if source.is_plain() => (
            Kind::Infrastructure,
            Some(
                "it speaks no TLS; if that is meant, list it in plain-http of the configuration, or INFRADEV_PLAIN_HTTP",
            ),
        ),
        NetError::Talk { .. } => (
            Kind::Infrastructure,
            Some("check the network, the proxy and the name; what was moved so far is kept"),
        ),
        NetError::Strange { .. } => (
            Kind::Infrastructure,
            Some("something that is no registry may answer in its place, such as a proxy's login page"),
        ),
        NetError::Unsafe { .. } => {
            (Kind::Infrastructure, Some("nothing was sent there; tell those who run the registry"))
        }
        _ => (Kind::Infrastructure, None),
    }
}

/// What to do about a certificate that is not trusted.
pub(crate) const CERTIFICATE: &str = "if its authority is your own, name it with ca-file of the configuration, INFRADEV_CA_FILE or SSL_CERT_FILE";
/// What to do about a setting of the network that cannot be used.
pub(crate) const SETTING: &str = "mend or unset it; nothing else is used in its place";

impl From<infradev_recipes::CatalogError> for CommandError {
    fn from(error: infradev_recipes::CatalogError) -> Self {
        let hint = error.hint();
        let mut failure = Self::caused(Kind::Usage, &error);
        failure.hints.extend(hint);
        failure
    }
}

impl From<infradev_recipes::SelectError> for CommandError {
    fn from(error: infradev_recipes::SelectError) -> Self {
        let hint = error.hint();
        let mut failure = Self::caused(Kind::Usage, &error);
        failure.hints.extend(hint);
        failure.hint("`infradev ls` lists the tasks")
    }
}

impl From<infradev_recipes::PlanError> for CommandError {
    fn from(error: infradev_recipes::PlanError) -> Self {
        let hint = error.hint();
        let mut failure = Self::caused(Kind::Usage, &error);
        failure.hints.extend(hint);
        failure
    }
}

impl From<BuildError> for CommandError {
    fn from(error: BuildError) -> Self {
        error.into_command_error()
    }
}
