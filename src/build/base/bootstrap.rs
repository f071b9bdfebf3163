//! mmdebstrap over a local repository.

use std::fs::{self, File};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use infradev_layers::TarError;
use infradev_recipes::BaseLock;

use super::BASE_MTIME;
use crate::build::scratch::tail;
use crate::build::{BuildError, io};
use crate::config::Config;

/// The repository inside the new system, from where also a mapped user can read it.
const INSIDE: &str = "/infradev-repository";

/// Makes the system of `lock` from the packages in `repository`, below `scratch`; `read` takes the archive of it.
pub(super) fn bootstrap<T>(
    lock: &BaseLock,
    repository: &Path,
    scratch: &Path,
    log: &Path,
    read: impl FnOnce(&mut ChildStdout) -> Result<T, BuildError>,
) -> Result<T, BuildError> {
    let output = open_log(log)?;
    let mut command = Command::new("mmdebstrap");
    Config::clear_for_tool(&mut command);
    command.envs([("LC_ALL", "C.UTF-8"), ("DEBIAN_FRONTEND", "noninteractive"), ("TZ", "UTC")]);
    command.env("SOURCE_DATE_EPOCH", BASE_MTIME.to_string());
    if is_root() {
        // Where the whole system lies for a while; the default, /tmp, may be small or in memory. A mapped user
        // must be able to reach it, which is certain only there.
        command.env("TMPDIR", scratch);
    }
    command.args(arguments(lock, repository));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output);
    let mut child = command.spawn().map_err(|error| BuildError::Tool {
        tool: "mmdebstrap".to_owned(),
        detail: error.to_string(),
        hint: Some("install the package mmdebstrap on this machine to build Debian bases".to_owned()),
    })?;
    let mut archive = child.stdout.take().expect("it is piped");
    let read = read(&mut archive);
    // A reader that gave up must not leave the other side waiting.
    drop(archive);
    let status = child.wait().map_err(io("wait for", Path::new("mmdebstrap")))?;
    let read = match read {
        // When mmdebstrap fails, its archive ends early: that is not what went wrong.
        Err(error) if status.success() || !is_truncation(&error) => return Err(error),
        read => read,
    };
    if !status.success() {
        return Err(BuildError::Command {
            command: format!("mmdebstrap {}", lock.suite),
            status: status.code().unwrap_or(1),
            tail: tail(log),
            log: log.to_owned(),
        });
    }
    read
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether an archive could not be read to its end.
fn is_truncation(error: &BuildError) -> bool {
    matches!(error, BuildError::Archive { source: TarError::Read(_), .. })
}

fn arguments(lock: &BaseLock, repository: &Path) -> Vec<String> {
    let names: Vec<&str> = lock.packages().iter().map(|package| package.name.as_str()).collect();
    let repository = repository.display();
    vec![
        format!("--mode={}", if is_root() { "root" } else { "unshare" }),
        "--variant=essential".to_owned(),
        "--format=tar".to_owned(),
        format!("--architectures={}", lock.architecture.debian()),
        format!("--include={}", names.join(",")),
        // The lock names all; a package that wants another one must fail.
        "--aptopt=APT::Install-Recommends \"false\"".to_owned(),
        "--aptopt=APT::Sandbox::User \"root\"".to_owned(),
        format!("--setup-hook={}", merged_usr()),
        format!("--setup-hook=mkdir -p \"$1{INSIDE}\""),
        format!("--setup-hook=sync-in '{repository}' {INSIDE}"),
        format!("--setup-hook=echo \"deb [trusted=yes] copy:$1{INSIDE} ./\" > \"$1/etc/apt/sources.list\""),
        format!("--customize-hook=rm -rf \"$1{INSIDE}\""),
        lock.suite.clone(),
        "-".to_owned(),
        // Replaced by the hook above, which alone knows where the new system is.
        format!("deb [trusted=yes] copy:{INSIDE} ./"),
    ]
}

/// Since bookworm Debian wants these in /usr from the first package on.
fn merged_usr() -> String {
    let names = if cfg!(target_arch = "aarch64") { "bin sbin lib" } else { "bin sbin lib lib64" };
    format!("for name in {names}; do mkdir -p \"$1/usr/$name\"; ln -s \"usr/$name\" \"$1/$name\"; done")
}

fn open_log(log: &Path) -> Result<File, BuildError> {
    if let Some(parent) = log.parent() {
        fs::create_dir_all(parent).map_err(io("create", parent))?;
    }
    File::create(log).map_err(io("create", log))
}
