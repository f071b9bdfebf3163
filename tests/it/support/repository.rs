//! A real git repository with a past, a future, tags and a remote: all that an environment must not have.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository whose second and third commits are bases of tasks; a fourth is their future.
#[derive(Debug)]
pub(crate) struct Repository {
    path: PathBuf,
    /// The base of the first task.
    pub(crate) first: String,
    /// The base of the second task: other Python, the same native input.
    pub(crate) second: String,
    /// What no environment may know.
    pub(crate) future: String,
}

impl Repository {
    pub(crate) fn create(path: PathBuf) -> Self {
        fs::create_dir_all(path.join("demo")).expect("an own directory");
        let mut repository =
            Self { path, first: String::new(), second: String::new(), future: String::new() };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository.write("demo/__init__.py", "VALUE = 0\n");
        repository.commit("before");
        repository.write("demo/__init__.py", "VALUE = 1\n");
        repository.write("demo/empty.py", "");
        repository.write("native/in.txt", "native input\n");
        repository.write(".gitignore", "*.so\n");
        repository.write("native/unread.md", "not an input\n");
        repository.write("tests/test_demo.py", "import demo\n");
        repository.write("run.sh", "#!/bin/sh\necho ran\n");
        let script = repository.path.join("run.sh");
        fs::set_permissions(script, fs::Permissions::from_mode(0o755)).expect("an own file");
        std::os::unix::fs::symlink("demo/__init__.py", repository.path.join("link.py")).expect("an own link");
        repository.first = repository.commit("first");
        repository.write("demo/__init__.py", "VALUE = 2\n");
        repository.write("native/unread.md", "changed, and still not an input\n");
        repository.second = repository.commit("second");
        repository.write("demo/secret.py", "THE_SOLUTION = True\n");
        repository.future = repository.commit("future");
        repository.git(&["tag", "--annotate", "--message=release", "v9"]);
        repository.git(&["remote", "add", "origin", "https://git.invalid/origin"]);
        repository
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, below: &str, text: &str) {
        let path = self.path.join(below);
        fs::create_dir_all(path.parent().expect("a file of the repository")).expect("an own directory");
        fs::write(path, text).expect("an own file");
    }

    pub(crate) fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
        self.git(&["rev-parse", "HEAD"]).trim().to_owned()
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false"])
            .args(arguments)
            .current_dir(&self.path)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &self.path)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs([("GIT_AUTHOR_NAME", "A"), ("GIT_AUTHOR_EMAIL", "a@example.invalid")])
            .envs([("GIT_COMMITTER_NAME", "A"), ("GIT_COMMITTER_EMAIL", "a@example.invalid")])
            .envs([("GIT_AUTHOR_DATE", "1700000000 +0000"), ("GIT_COMMITTER_DATE", "1700000000 +0000")])
            .output()
            .expect("git runs");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
