//! Grading bundles: published apart from environments, and fetched by evaluators alone.

use std::fs;
use std::process::Command;

use crate::support::{Need, Place, TASK, User, lacks};

#[test]
fn a_grading_bundle_travels_apart_from_its_environment() {
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.write("demo/tasks/one/grading/mutants/hidden.txt", "only evaluators may know\n");
    place.ok(&["build", TASK]);
    let remote = format!("dir:{}", place.path("environments").display());
    let grader = format!("dir:{}", place.path("graders").display());
    let together = place.run(&["push", TASK, "--to", &remote, "--grader", &remote]);
    assert!(together.status == 2 && together.stderr.contains("no place for grading"), "{}", together.stderr);
    let pushed = place.run(&["push", TASK, "--to", &remote, "--grader", &grader]);
    assert!(pushed.status == 0 && pushed.stderr.contains("grading bundle published"), "{}", pushed.stderr);
    let again = place.run(&["push", TASK, "--to", &remote, "--grader", &grader]);
    assert!(again.stderr.contains("grading bundle there already"), "{}", again.stderr);
    let index = fs::read_to_string(place.path("environments/index.json")).expect("a layout");
    assert!(!index.contains("grading"), "{index}");

    let agent = Place::new(User::Caller);
    agent.ok(&["pull", TASK, "--from", &remote]);
    assert!(!agent.store().join("caches/grading").exists());
    assert_eq!(agent.run(&["pull", TASK, "--from", &remote, "--for", "eval"]).status, 2);

    let evaluator = Place::new(User::Caller);
    fs::remove_dir_all(evaluator.path("catalog")).expect("an own directory");
    fs::create_dir(evaluator.path("catalog")).expect("an own directory");
    evaluator.ok(&["pull", TASK, "--from", &remote, "--for", "eval", "--grader", &grader]);
    let bundle = evaluator.store().join("caches/grading").join(TASK);
    let hidden = bundle.join("catalog/demo/tasks/one/grading/mutants/hidden.txt");
    assert_eq!(fs::read_to_string(hidden).expect("a file"), "only evaluators may know\n");
    assert!(evaluator.ok(&["show", TASK]).contains("built"), "its recipe came with the bundle");
    let git = |commit: &str| {
        let mut command = Command::new("git");
        command.arg("--git-dir").arg(bundle.join("git")).args(["cat-file", "-e", commit]);
        command.output().expect("git runs").status.success()
    };
    assert!(git(&place.repository.first) && !git(&place.repository.future));
    assert_eq!(evaluator.sh("ls -a / /opt/env | grep -c grading || true"), "0\n");
    evaluator.assert_whole();
}
