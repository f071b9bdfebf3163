//! Source layers: one commit as a work tree and a repository that git finds nothing wrong with.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use infradev_layers::{
    GitError, GitObject, GitObjectKind, GitSource, Kind, Oid, Tree, TreePath, commit_tree,
};
use infradev_store::LayerId;

use super::ground::{Ground, assert_same, sh, text, write};
use crate::support::{Need, Repository, Seen, lacks, walk};

/// Objects by `git cat-file --batch`.
struct Batch {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Batch {
    fn of(repository: &Repository) -> Self {
        let mut git = Command::new("git");
        git.args(["cat-file", "--batch"]).current_dir(repository.path());
        let mut child = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git runs");
        let requests = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, requests, answers }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

impl GitSource for Batch {
    fn object(&mut self, object: Oid) -> io::Result<Option<GitObject>> {
        writeln!(self.requests, "{object}")?;
        let mut head = String::new();
        self.answers.read_line(&mut head)?;
        let mut words = head.split_whitespace().skip(1);
        let kind = match words.next() {
            Some("commit") => GitObjectKind::Commit,
            Some("tree") => GitObjectKind::Tree,
            Some("blob") => GitObjectKind::Blob,
            _ => return Ok(None),
        };
        let size: usize = words.next().and_then(|size| size.parse().ok()).expect("git says the size");
        let mut content = vec![0; size + 1];
        self.answers.read_exact(&mut content)?;
        content.pop();
        Ok(Some(GitObject { kind, content }))
    }
}

/// A repository with a past, a future, and one of everything; returns the commit between.
fn repository(ground: &Ground) -> (Repository, String) {
    let repository = Repository::create(ground.path("repository"));
    repository.write("crlf.txt", "a\r\nb\r\n");
    repository.write("a/b/c/deep.txt", "deep\n");
    // These sort one way as trees and another as paths.
    repository.write("a-b", "before\n");
    repository.write("a.b/x", "between\n");
    repository.write("caf\u{e9} \"quoted\"\n", "odd\n");
    repository.write("large.bin", &"x".repeat(200_000));
    repository.write(&format!("{}/{}", "long".repeat(50), "name".repeat(60)), "long\n");
    repository.write(".gitattributes", "*.crlf text eol=crlf\n");
    repository.write("converted.crlf", "a\nb\n");
    let submodule = "1111111111111111111111111111111111111111";
    let entry = format!("160000,{submodule},module");
    fs::create_dir(repository.path().join("module")).expect("an own directory");
    repository.git(&["update-index", "--add", "--cacheinfo", &entry]);
    let base = repository.commit("base");
    repository.write("secret.txt", "THE_SOLUTION\n");
    repository.write("a/b/c/deep.txt", "solved\n");
    repository.commit("solution");
    repository.git(&["branch", "other"]);
    repository.git(&["tag", "v10"]);
    (repository, base)
}

fn layer(
    ground: &Ground,
    repository: &Repository,
    commit: &str,
    left_out: &dyn Fn(&TreePath) -> bool,
) -> (Tree, LayerId) {
    let (directory, commit) = ("workspace".parse().expect("a path"), commit.parse().expect("a commit"));
    ground.keep(|ingest| {
        let made = commit_tree(&mut Batch::of(repository), commit, &directory, left_out, ingest);
        made.expect("a commit of the repository").tree
    })
}

/// Git in a work tree, without anything of the machine's or the user's configuration.
fn git(work_tree: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(work_tree)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs([("HOME", "/nonexistent"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_OPTIONAL_LOCKS", "0")])
        .output()
        .expect("git runs");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "git {arguments:?}: {said}");
    said
}

#[test]
fn a_commit_is_a_clean_repository_of_nothing_else() {
    if lacks(Need::Program("git")) {
        return;
    }
    let ground = Ground::new();
    let (repository, base) = repository(&ground);
    let (tree, _) = layer(&ground, &repository, &base, &|_| false);
    let out = ground.directory("out");
    write(&tree, &out, |object| ground.object(object));
    let work_tree = out.join("workspace");
    let git = |arguments: &[&str]| git(&work_tree, arguments);

    assert_eq!(git(&["fsck", "--strict", "--full", "--no-progress"]), "");
    assert_eq!(git(&["status", "--porcelain", "--ignored"]), "");
    assert_eq!(git(&["log", "--all", "--format=%H"]), format!("{base}\n"));
    for list in [&["for-each-ref"][..], &["reflog"], &["remote"], &["stash", "list"]] {
        assert_eq!(git(list), "", "{list:?}");
    }

    // The objects are those of the commit, by the original's own account.
    let mut expected: Vec<String> = repository
        .git(&["rev-list", "--objects", "--no-object-names", "--no-walk", &base])
        .lines()
        .map(str::to_owned)
        .collect();
    expected.sort();
    let all = git(&["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]);
    assert_eq!(all.lines().collect::<Vec<_>>(), expected);
    assert!(expected.len() > 15, "{expected:?}");

    // Not only by size and time: once everything has another time, git reads every file.
    sh(&work_tree, "find . -path ./.git -prune -o -exec touch -h {} +");
    assert_eq!(git(&["status", "--porcelain"]), "");
    let clone = repository.git(&["ls-tree", "-r", &base]);
    assert_eq!(git(&["ls-tree", "-r", "HEAD"]), clone);
}

#[test]
fn the_work_tree_is_what_git_checks_out() {
    if lacks(Need::Program("git")) {
        return;
    }
    let ground = Ground::new();
    let (repository, base) = repository(&ground);
    let (tree, _) = layer(&ground, &repository, &base, &|_| false);
    let out = ground.directory("out");
    write(&tree, &out, |object| ground.object(object));
    let checkout = ground.path("checkout");
    repository.git(&["worktree", "add", "--quiet", "--detach", text(&checkout), &base]);
    let list = |root: &Path| {
        let mut seen = walk(root);
        seen.retain(|path, _| !path.as_os_str().is_empty() && !path.starts_with(".git"));
        let what = |seen: Seen| (seen.kind, seen.mode & 0o100, seen.content);
        seen.into_iter().map(|(path, seen)| (path, what(seen))).collect()
    };
    let (mut ours, mut theirs): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (list(&out.join("workspace")), list(&checkout));
    // Attributes that convert are not followed: the bytes are the commit's, and clean to git either way.
    for converted in [&mut ours, &mut theirs] {
        assert!(converted.remove(Path::new("converted.crlf")).is_some());
    }
    assert_same("the work tree", &ours, &theirs);
}

#[test]
fn a_commit_is_one_layer_wherever_it_is_built() {
    if lacks(Need::Program("git")) {
        return;
    }
    let (ground, other) = (Ground::new(), Ground::new());
    let (repository, base) = repository(&ground);
    let (_, first) = layer(&ground, &repository, &base, &|_| false);
    // How the repository holds its objects does not matter.
    repository.git(&["gc", "--quiet", "--aggressive"]);
    let (_, second) = layer(&other, &repository, &base, &|_| false);
    assert_eq!(first, second);
}

#[test]
fn left_out_files_are_in_no_part_of_the_repository_and_not_missed() {
    if lacks(Need::Program("git")) {
        return;
    }
    let ground = Ground::new();
    let (repository, base) = repository(&ground);
    let left_out = |path: &TreePath| path.as_bytes() == b"large.bin" || path.as_bytes().starts_with(b"a/b/");
    let (tree, _) = layer(&ground, &repository, &base, &left_out);
    let out = ground.directory("out");
    write(&tree, &out, |object| ground.object(object));
    let work_tree = out.join("workspace");
    assert_eq!(git(&work_tree, &["status", "--porcelain"]), "");
    assert_eq!(git(&work_tree, &["diff", "HEAD", "--stat"]), "");
    assert!(!work_tree.join("large.bin").exists() && !work_tree.join("a").exists());
    let all = git(&work_tree, &["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]);
    for path in ["large.bin", "a/b/c/deep.txt"] {
        let blob = repository.git(&["rev-parse", &format!("{base}:{path}")]);
        assert!(!all.contains(blob.trim()), "{path} is in the pack");
    }
    // Other changes are seen as ever.
    fs::write(work_tree.join("a-b"), "changed\n").expect("an own file");
    assert_eq!(git(&work_tree, &["status", "--porcelain"]), " M a-b\n");
}

#[test]
fn a_source_that_lies_is_refused() {
    struct Liar(Batch);
    impl GitSource for Liar {
        fn object(&mut self, object: Oid) -> io::Result<Option<GitObject>> {
            let mut found = self.0.object(object)?;
            if let Some(blob) = found.as_mut().filter(|found| found.kind == GitObjectKind::Blob) {
                blob.content.push(b'!');
            }
            Ok(found)
        }
    }
    if lacks(Need::Program("git")) {
        return;
    }
    let ground = Ground::new();
    let (repository, base) = repository(&ground);
    let made = ground.dry(|ingest| {
        let commit = base.parse().expect("a commit");
        let mut liar = Liar(Batch::of(&repository));
        commit_tree(&mut liar, commit, &TreePath::root(), &|_| false, ingest).map(|_| ())
    });
    assert!(matches!(made, Err(GitError::Object { .. })), "{made:?}");
    let absent = "2222222222222222222222222222222222222222".parse().expect("a name");
    let made = ground.dry(|ingest| {
        commit_tree(&mut Batch::of(&repository), absent, &TreePath::root(), &|_| false, ingest).map(|_| ())
    });
    assert!(matches!(made, Err(GitError::Missing { .. })), "{made:?}");
}

#[test]
fn executables_links_and_submodules_keep_their_kind() {
    if lacks(Need::Program("git")) {
        return;
    }
    let ground = Ground::new();
    let (repository, base) = repository(&ground);
    let (tree, _) = layer(&ground, &repository, &base, &|_| false);
    let kind = |path: &str| tree.get(&path.parse().expect("a path")).expect("it is in the tree");
    let mode = |path: &str| kind(path).metadata().expect("it has its own").mode;
    assert_eq!((mode("workspace/run.sh"), mode("workspace/crlf.txt")), (0o755, 0o644));
    assert!(
        matches!(kind("workspace/link.py"), Kind::Symlink { target, .. } if **target == *b"demo/__init__.py")
    );
    assert!(kind("workspace/module").is_directory());
}
