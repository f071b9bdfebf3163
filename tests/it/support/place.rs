//! A place to run the program in: a home, a store, a catalog, an index and a repository of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::catalog::write_catalog;
use super::machine::{is_root, work_directory};
use super::packages::Index;
use super::repository::Repository;

/// Who runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs the tests.
    Caller,
    /// Somebody without privileges: the caller, or `nobody` if the caller is root.
    Ordinary,
}

/// A copy of the program for users who cannot enter the target directory, which may be below root's home.
fn reachable_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = work_directory().join("infradev-it-program");
        let temporary = work_directory().join(format!("infradev-it-program.{}", std::process::id()));
        let built = env!("CARGO_BIN_EXE_infradev");
        let copied = fs::hard_link(built, &temporary).or_else(|_| fs::copy(built, &temporary).map(drop));
        copied.and_then(|()| fs::rename(&temporary, &program)).expect("room for a copy of the program");
        let _same_file_already = fs::remove_file(&temporary);
        program
    })
}

const NOBODY: u32 = 65534;

/// A place; removed at its end, with whatever is still mounted or running in it.
#[derive(Debug)]
pub(crate) struct Place {
    root: TempDir,
    program: PathBuf,
    user: User,
    pub(crate) index: Index,
    pub(crate) repository: Repository,
}

impl Place {
    /// Makes a place with the catalog of [`write_catalog`].
    pub(crate) fn new(user: User) -> Self {
        let root = tempfile::Builder::new()
            .prefix("infradev-it.")
            .tempdir_in(work_directory())
            .expect("a directory");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("an own directory");
        let index = Index::serve(root.path().join("index"));
        let repository = Repository::create(root.path().join("repository"));
        let program = match user {
            User::Ordinary if is_root() => reachable_program().to_owned(),
            _ => PathBuf::from(env!("CARGO_BIN_EXE_infradev")),
        };
        let place = Self { root, program, user, index, repository };
        fs::create_dir(place.path("home")).expect("an own directory");
        write_catalog(&place);
        place.give_to_user();
        place
    }

    /// A path in this place.
    pub(crate) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.path().join(below)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Whether root runs the program here.
    pub(crate) fn is_roots(&self) -> bool {
        self.user == User::Caller && is_root()
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Writes a file of the catalog.
    pub(crate) fn write(&self, below: &str, text: impl AsRef<[u8]>) {
        let path = self.path("catalog").join(below);
        fs::create_dir_all(path.parent().expect("a file below the catalog")).expect("an own directory");
        fs::write(path, text).expect("an own file");
    }

    /// Replaces `from` in a file of the catalog; it must be there.
    pub(crate) fn edit(&self, below: &str, from: &str, to: &str) {
        let path = self.path("catalog").join(below);
        let text = fs::read_to_string(&path).expect("a file of the catalog");
        assert!(text.contains(from), "{below} has no {from:?}");
        fs::write(path, text.replace(from, to)).expect("an own file");
    }

    pub(crate) fn give_to_user(&self) {
        if self.user == User::Ordinary && is_root() {
            let status = Command::new("chown").args(["-R", "65534:65534"]).arg(self.root.path()).status();
            assert!(status.expect("chown runs").success());
        }
    }

    /// A command of any program, run by the place's user in the place's surroundings.
    pub(crate) fn tool(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = if self.user == User::Ordinary && is_root() {
            let mut command = Command::new("setpriv");
            let id = NOBODY.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
            .env("HOME", self.path("home"))
            .env("INFRADEV_STORE", self.store())
            .env("INFRADEV_CATALOG", self.path("catalog"))
            .env("INFRADEV_INDEX", self.index.url())
            .env("INFRADEV_MIRRORS", format!("{}={}", super::catalog::URL, self.repository.path().display()))
            .env("NO_PROXY", "127.0.0.1")
            .current_dir(self.root.path())
            .stdin(Stdio::null());
        command
    }

    /// The program with `arguments`.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.tool(&self.program);
        command.args(arguments);
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        self.finish(&mut self.command(arguments))
    }

    /// Runs a command to its end.
    pub(crate) fn finish(&self, command: &mut Command) -> Finished {
        let output =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("the program starts");
        Finished::of(output, self.root.path())
    }

    /// Runs the program, which must succeed; returns its standard output.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let finished = self.run(arguments);
        assert_eq!(finished.status, 0, "{arguments:?} failed:\n{}{}", finished.stdout, finished.stderr);
        finished.stdout
    }

    /// Runs a shell line in a fresh environment of [`super::TASK`]; returns its standard output.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> String {
        self.ok(&["env", "exec", super::TASK, "--", "sh", "-c", line])
    }

    /// Asserts that the store is whole: every object reads, nothing is staged.
    #[track_caller]
    pub(crate) fn assert_whole(&self) {
        // Any writing command sweeps; it must need no help.
        let _swept = self.run(&["gc", "--dry-run"]);
        assert_eq!(self.listing("tmp"), Vec::<String>::new(), "leftovers in tmp");
        assert_eq!(self.listing("leases"), Vec::<String>::new(), "leftovers in leases");
        let verified = self.run(&["verify", "--read-data"]);
        assert_eq!(verified.status, 0, "{}{}", verified.stdout, verified.stderr);
    }

    /// Names in a directory of the store.
    pub(crate) fn listing(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.store().join(below)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Every file of the store that holds content or says what there is, with its content.
    pub(crate) fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let mut contents = vec![];
        for directory in ["objects", "layers", "steps", "roots", "envs"] {
            collect(&self.store().join(directory), &mut contents);
        }
        contents.sort();
        contents
    }

    /// Bytes on disk of the whole store.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let output =
            Command::new("du").args(["-s", "--block-size=1"]).arg(self.store()).output().expect("du runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).expect("du counts")
    }

    /// Processes of commands that were started here: by their surroundings, or by what they have mounted.
    pub(crate) fn processes(&self) -> Vec<String> {
        let place = self.root.path().to_string_lossy().into_owned();
        let own = fs::read("/proc/self/mountinfo").expect("a proc");
        let mut found = vec![];
        for entry in fs::read_dir("/proc").expect("a proc").flatten() {
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(&place);
            let mounts = read("mountinfo");
            if has(&read("environ")) || (mounts != own && has(&mounts)) {
                let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
                found.push(format!("{} {command}", entry.file_name().to_string_lossy()));
            }
        }
        found
    }

    /// Mounts of this mount namespace below this place.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let text = fs::read_to_string("/proc/self/mountinfo").expect("a proc");
        let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        points.filter(|point| point.starts_with(self.root.path())).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in self.listing("envs") {
            let holder = self.store().join("envs").join(name).join("holder.json");
            if holder.exists() {
                let _best_effort = self.run(&[
                    "env",
                    "umount",
                    &holder
                        .parent()
                        .and_then(Path::file_name)
                        .map(|name| name.to_string_lossy().into_owned())
                        .unwrap_or_default(),
                ]);
            }
        }
        for point in self.mounts().iter().rev() {
            let _best_effort = Command::new("umount").arg("--lazy").arg(point).status();
        }
        let _work_directories_are_closed = infradev_store::remove_tree(self.root.path());
    }
}

fn collect(path: &Path, contents: &mut Vec<(String, Vec<u8>)>) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    if metadata.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), contents);
        }
    } else {
        contents.push((path.display().to_string(), fs::read(path).unwrap_or_default()));
    }
}

/// How a command ended, with this place's paths and everything that changes from run to run masked.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit status; 128 + N if signal N ended it.
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    fn of(output: Output, place: &Path) -> Self {
        let text =
            |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace(&*place.to_string_lossy(), "[PLACE]");
        Self { status: code(output.status), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Standard error without progress lines, counts of steps, ids and ports.
    pub(crate) fn talk(&self) -> String {
        let progress = |line: &&str| {
            ["built  ", "failed  "].iter().any(|word| line.trim_start().starts_with(word))
                || (line.contains(" built, ") && line.contains(" downloaded); "))
        };
        let lines: Vec<String> = self.stderr.lines().filter(|line| !progress(line)).map(mask).collect();
        lines.join("\n")
    }
}

/// Replaces long hexadecimal words and ports, which differ from run to run.
fn mask(line: &str) -> String {
    let mut masked = String::new();
    let mut word = String::new();
    let flush = |word: &mut String, masked: &mut String| {
        if word.len() >= 12 {
            masked.push_str("[ID]")
        } else {
            masked.push_str(word)
        }
        word.clear();
    };
    for character in line.chars() {
        if character.is_ascii_hexdigit() && !character.is_ascii_uppercase() {
            word.push(character);
        } else {
            flush(&mut word, &mut masked);
            masked.push(character);
        }
    }
    flush(&mut word, &mut masked);
    if let Some((before, after)) = masked.split_once("127.0.0.1:") {
        let rest = after.trim_start_matches(|character: char| character.is_ascii_digit());
        masked = format!("{before}127.0.0.1:[PORT]{rest}");
    }
    masked
}

/// The status of a process as a shell shows it.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Asserts that a command failed with `status` and exactly this talk, masked.
#[track_caller]
pub(crate) fn assert_failed(finished: &Finished, status: i32, talk: &str) {
    let expected = talk.trim_matches('\n');
    let found = finished.talk();
    assert!(
        finished.status == status && found == expected,
        "expected status {status} and\n{expected}\n\nfound status {} and\n{found}\n\n{}{}",
        finished.status,
        finished.stdout,
        finished.stderr,
    );
}

/// Waits until `condition` holds, for at most half a minute.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
