//! What this machine allows, and skipping what it does not.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Something that a test cannot do without.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    /// Root, with the right to mount.
    Root,
    /// Namespaces to run a command in, as the tests' own user.
    Sandbox,
    /// Namespaces of an ordinary user.
    UserNamespaces,
    /// A program.
    Program(&'static str),
    /// A package index to download a few small wheels from.
    Index,
}

/// Whether `need` is not met; says so, since a skipped test proves nothing.
pub(crate) fn lacks(need: Need) -> bool {
    let met = match need {
        Need::Root => is_root() && works("unshare", &["--mount", "true"]),
        Need::Sandbox if is_root() => works("unshare", &["--mount", "--pid", "--net", "--fork", "true"]),
        Need::Sandbox => {
            works("unshare", &["--user", "--map-root-user", "--mount", "--pid", "--fork", "true"])
        }
        Need::UserNamespaces => {
            let unshare = ["unshare", "--user", "--map-root-user", "--mount", "true"];
            let as_user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
            match is_root() {
                true => works("setpriv", &[&as_user[..], &unshare[..]].concat()),
                false => works(unshare[0], &unshare[1..]),
            }
        }
        Need::Program(program) => works("sh", &["-c", "command -v \"$0\"", program]),
        Need::Index => super::packages::downloaded().is_some(),
    };
    if !met {
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
        {
            eprintln!("skipped: {name}: this machine lacks {need:?}");
        }
        // Continuous integration has a network; there, silence would hide a failure for ever.
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!(ci && matches!(need, Need::Index)), "no package index answers, and CI=true");
    }
    !met
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn works(program: &str, arguments: &[&str]) -> bool {
    let null = Stdio::null;
    let status = Command::new(program).args(arguments).stdin(null()).stdout(null()).stderr(null()).status();
    status.is_ok_and(|status| status.success())
}

/// Whether the loops run at full length.
pub(crate) fn long() -> bool {
    std::env::var_os("INFRADEV_TEST_LONG").is_some()
}

/// How often a loop runs: `short` times, or `full` times in the long run.
pub(crate) fn rounds(short: usize, full: usize) -> usize {
    if long() { full } else { short }
}

/// Where the tests' files go.
pub(crate) fn work_directory() -> PathBuf {
    std::env::var_os("INFRADEV_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}
