//! The source tree of an environment: one commit, and nothing of its past or future.

use super::for_each_user;
use crate::support::{Need, TASK, lacks};

#[test]
fn the_repository_knows_one_commit() {
    if lacks(Need::Program("git")) {
        return;
    }
    for_each_user(|place| {
        let git = |line: &str| place.sh(&format!("PATH=$PATH:/usr/local/bin git {line}"));
        let first = &place.repository.first;
        assert_eq!(git("log --all --format=%H"), format!("{first}\n"));
        assert_eq!(git("log --format=%H%x20%s"), format!("{first} first\n"));
        assert_eq!(git("rev-parse HEAD"), format!("{first}\n"));
        assert_eq!(git("fsck --full --strict --no-dangling 2>&1 | grep -v '^notice: '; true"), "");
        assert_eq!(git("fsck --unreachable --dangling 2>&1 | grep -v '^notice: '; true"), "");
        assert_eq!(git("status --porcelain"), "");
        assert_eq!(
            git("tag; git branch; git remote; git stash list; git reflog; git notes"),
            "* (no branch)\n"
        );
        let objects = git("cat-file --batch-all-objects --batch-check='%(objecttype)'");
        let count = |kind: &str| objects.lines().filter(|line| *line == kind).count();
        // Six files of four contents… every object is reachable from the commit, and there is one commit.
        let reachable = git("rev-list --objects HEAD | wc -l");
        assert_eq!((count("commit"), count("tag")), (1, 0), "{objects}");
        assert_eq!(objects.lines().count().to_string(), reachable.trim(), "{objects}");
        for unknown in [&place.repository.second, &place.repository.future] {
            assert_eq!(git(&format!("cat-file -e {unknown} 2>/dev/null && echo known; true")), "");
        }
        assert_eq!(place.sh("grep -r THE_SOLUTION /workspace /opt/env; true"), "");
        assert_eq!(place.sh("ls .git/logs .git/hooks .git/refs/heads .git/refs/tags 2>/dev/null | grep -v -e : -e '^$'; cat .git/config | grep -c url; true"), "0\n");
    });
}

#[test]
fn the_tree_is_the_commits() {
    if lacks(Need::Program("git")) {
        return;
    }
    for_each_user(|place| {
        assert_eq!(
            place.sh("./run.sh && cat link.py && readlink link.py && stat -c %s demo/empty.py"),
            "ran\nVALUE = 1\ndemo/__init__.py\n0\n"
        );
        // Not even the index must be refreshed: nothing is read again.
        let script = "PATH=$PATH:/usr/local/bin; cp .git/index /tmp/before; git update-index --refresh && cmp .git/index /tmp/before && echo same; \
                      GIT_TRACE2_PERF=/tmp/trace git -c core.checkStat=default status --porcelain; \
                      grep -c 'sum_scan' /tmp/trace; grep -o 'refresh/sum_lstat:[0-9]*' /tmp/trace | head -1; \
                      git ls-files --debug demo/__init__.py | grep -o 'size: [0-9]*'";
        let shown = place.sh(script);
        assert!(shown.starts_with("same\n"), "{shown}");
        // A change is seen, by content and not by chance.
        assert_eq!(
            place.sh("PATH=$PATH:/usr/local/bin; echo VALUE = 9 >demo/__init__.py; git status --porcelain"),
            " M demo/__init__.py\n"
        );
        let _ = TASK;
    });
}
