//! uv: fetched by its hash into the store, and used to resolve; it never installs.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use infradev_recipes::{Target, Timestamp};

use super::LockError;
use crate::build::{BuildError, io};
use crate::config::Config;
use crate::hex::unique;
use crate::session::Session;

/// The release of uv that resolves. Another one may choose otherwise, so it changes only on purpose.
const VERSION: &str = "0.13.9";

/// The wheel of uv for the processor of this machine, and what its bytes hash to.
#[cfg(not(target_arch = "aarch64"))]
const WHEEL: (&str, &str) = (
    "uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
);
#[cfg(target_arch = "aarch64")]
const WHEEL: (&str, &str) = (
    "uv-0.13.9-py3-none-manylinux_2_28_aarch64.whl",
    "ecb6028d79dc96fbeafffe5c8af62a7099487ebc05a701e76714eebcffd06375",
);

/// The versions of glibc that this uv takes as a platform; older ones than the target's are right for it too.
const PLATFORMS: [u16; 12] = [17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40];

/// uv, ready to resolve.
#[derive(Debug)]
pub(super) struct Uv<'a> {
    session: &'a Session,
    program: PathBuf,
    cache: PathBuf,
}

/// What is to be resolved. All paths are relative to the directory that uv runs in.
#[derive(Debug)]
pub(super) struct Question<'a> {
    /// Requirement files.
    pub(super) inputs: &'a [String],
    /// A file that holds preferred versions, and receives the answer.
    pub(super) output: &'a str,
    /// Its form.
    pub(super) form: Form,
    /// The machine to resolve for.
    pub(super) target: &'a Target,
    /// Nothing uploaded later is considered.
    pub(super) exclude_newer: Option<Timestamp>,
    /// Whether source distributions are out of the question.
    pub(super) only_wheels: bool,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// PEP 751: every artifact of every package.
    Lock,
    /// Requirements, each with the packages that it came for.
    Annotated,
}

impl<'a> Uv<'a> {
    /// Finds uv in the store, or fetches it.
    pub(super) fn fetch(session: &'a Session, store: &infradev_store::Store) -> Result<Self, LockError> {
        let tools = store.layout().cache("tools");
        let program = tools.join(format!("uv-{}", &WHEEL.1[..16]));
        if !program.exists() {
            let label = format!("fetch uv {VERSION}");
            session.ui.started(&label);
            let fetched = download(session, &tools, &program);
            session.ui.finished(&label, if fetched.is_ok() { "done" } else { "failed" }, "");
            fetched?;
        }
        Ok(Self { session, program, cache: store.layout().cache("uv") })
    }

    /// Returns the name of a file of uv on the index, by which the place of the index's files is known.
    pub(super) fn own_wheel() -> (&'static str, &'static str) {
        ("uv", WHEEL.0)
    }

    /// Resolves in `directory`; the answer is in the output file.
    pub(super) fn resolve(&self, directory: &Path, question: &Question<'_>) -> Result<(), String> {
        let python = interpreter(question.target).ok_or("there is no Python on this machine to ask")?;
        let mut command = Command::new(&self.program);
        command.current_dir(directory).stdin(Stdio::null());
        // The environment of the caller must not change what is chosen; the index's URL may hold a password,
        // and arguments are seen by everyone.
        Config::clear_for_tool(&mut command);
        if let Some(file) = self.session.authorities_for_tools().map_err(|error| error.message)? {
            command.env("SSL_CERT_FILE", file);
        }
        command.env("HOME", directory).env("TMPDIR", directory);
        command.env("UV_DEFAULT_INDEX", self.session.index().url().map_err(|error| error.to_string())?);
        command.args(["pip", "compile"]).args(question.inputs);
        command.args(match question.form {
            Form::Lock => ["--format", "pylock.toml", "--no-annotate"].as_slice(),
            Form::Annotated => ["--format", "requirements.txt", "--annotation-style", "split"].as_slice(),
        });
        command.args(["--output-file", question.output]);
        command.args(["--python-version", &question.target.python.to_string()]);
        command.args(["--python-platform", &platform(question.target)]).arg("--python").arg(python);
        command.args(["--no-header", "--no-config", "--no-python-downloads", "--quiet"]);
        command.args(["--system-certs", "--color", "never", "--cache-dir"]).arg(&self.cache);
        if let Some(moment) = question.exclude_newer {
            command.args(["--exclude-newer", &moment.to_string()]);
        }
        if question.only_wheels {
            command.args(["--only-binary", ":all:"]);
        }
        if self.session.config.offline.value {
            command.arg("--offline");
        }
        let output = command.output().map_err(|error| format!("{}: {error}", self.program.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Returns an interpreter for uv to evaluate markers and build sdists with: the target's version if there is one.
fn interpreter(target: &Target) -> Option<PathBuf> {
    let wanted = format!("python{}", target.python);
    let names = [wanted.as_str(), "python3"];
    let places =
        names.iter().flat_map(|name| ["/usr/bin", "/usr/local/bin"].map(|place| Path::new(place).join(name)));
    places.into_iter().find(|path| path.exists())
}

fn platform(target: &Target) -> String {
    let known = PLATFORMS.into_iter().rev().find(|minor| *minor <= target.glibc.1);
    format!("{}-manylinux_2_{}", target.architecture, known.unwrap_or(PLATFORMS[0]))
}

fn download(session: &Session, tools: &Path, program: &Path) -> Result<(), LockError> {
    fs::create_dir_all(tools).map_err(io("create", tools))?;
    let client = session.client()?;
    let (project, file) = Uv::own_wheel();
    let found = session.index().find(client, project, file)?;
    let own = unique();
    let wheel = tools.join(format!(".{file}.{own}"));
    let unpacked = tools.join(format!(".uv.{own}"));
    let outcome =
        client.download(&found.url, WHEEL.1, &wheel, &|_| {}).map_err(LockError::from).and_then(|_| {
            let archive = File::open(&wheel).map_err(io("open", &wheel))?;
            let broken = |error: zip::result::ZipError| BuildError::Tool {
                tool: file.to_owned(),
                detail: error.to_string(),
                hint: None,
            };
            let mut archive = zip::ZipArchive::new(archive).map_err(broken)?;
            let mut binary = archive.by_name(&format!("uv-{VERSION}.data/scripts/uv")).map_err(broken)?;
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o755);
            let mut output = options.open(&unpacked).map_err(io("create", &unpacked))?;
            std::io::copy(&mut binary, &mut output).map_err(io("write", &unpacked))?;
            output.flush().and_then(|()| output.sync_all()).map_err(io("write", &unpacked))?;
            Ok(fs::rename(&unpacked, program).map_err(io("rename", &unpacked))?)
        });
    for leftover in [&wheel, &unpacked] {
        let _gone_if_all_went_well = fs::remove_file(leftover);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use infradev_recipes::{Architecture, PythonVersion};

    use super::*;

    #[test]
    fn the_platform_is_one_that_uv_knows_and_the_target_has() {
        let check = |glibc, expected: &str| {
            let python = PythonVersion { major: 3, minor: 11 };
            let target = Target { python, architecture: Architecture::X86_64, glibc };
            assert_eq!(platform(&target), expected);
        };
        check((2, 36), "x86_64-manylinux_2_36");
        check((2, 41), "x86_64-manylinux_2_40");
        check((2, 30), "x86_64-manylinux_2_28");
    }
}
