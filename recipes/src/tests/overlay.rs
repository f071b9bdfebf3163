//! Catalogs on disk: what is found, what wins, and what is said about the rest.

use std::fs;
use std::path::{Path, PathBuf};

use crate::*;

const PROJECT: &str = "schema = 1\n[project]\nname = \"p\"\nsummary = \"public\"\ndistribution = \"p\"\n\
    [source]\ngit = \"https://example.org/p\"\n\
    [variant.host]\nbase = { host = true }\npython = { from = \"base\" }\n\
    [[files]]\npath = \"/opt/env/note\"\nsource = \"files/note\"\n";
const TASK: &str = "schema = 1\ntitle = \"t\"\n[source]\ncommit = \"1985eb14ff3e28985087804f939b5ea3a26e32cf\"\n\
    date = \"2025-09-24T06:27:05Z\"\nversion = \"1\"\n";
const PROBE: &str = "schema = 1\nkind = \"state\"\ntitle = \"x\"\ncommand = [\"python\", \"judge.py\"]\n";

fn write(root: &Path, files: &[(&str, &str)]) -> PathBuf {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a new folder");
        fs::write(path, text).expect("a new file");
    }
    root.to_owned()
}

#[test]
fn a_later_catalog_wins_file_by_file() {
    let (public, private) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let roots = [
        write(
            public.path(),
            &[
                ("p/project.toml", PROJECT),
                ("p/files/note", "public"),
                ("p/tasks/1/task.toml", TASK),
                ("p/tasks/2/task.toml", TASK),
                ("p/tasks/notes.txt", "no task"),
            ],
        ),
        write(
            private.path(),
            &[
                ("p/files/note", "private"),
                ("p/tasks/1/grading/probes/restore/probe.toml", PROBE),
                ("p/tasks/1/grading/probes/restore/judge.py", ""),
                ("p/tasks/1/grading/probes/restore/data/input", ""),
            ],
        ),
    ];
    let one = TaskName::new("p", "1");
    let catalog = Catalog::open(&roots).expect("both are there");
    assert_eq!(catalog.tasks(), [one.clone(), TaskName::new("p", "2")]);
    assert!(catalog.check().is_empty());
    assert_eq!(catalog.recipe(&one, "host").expect("valid").files[0].content, b"private");
    let grading = catalog.grading(&one).expect("valid");
    let files: Vec<&String> = grading.probes[0].files.keys().collect();
    assert_eq!(files, ["data/input", "judge.py"]);
    assert_eq!(catalog.lock_path("p", "x"), Some(roots[0].join("p/locks/x")));

    let public_only = Catalog::open(&roots[..1]).expect("it is there");
    assert_eq!(public_only.recipe(&one, "host").expect("valid").files[0].content, b"public");
    assert!(public_only.grading(&one).expect("none is fine").probes.is_empty());
}

#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = write(folder.path(), &[("proj/project.toml", PROJECT), ("proj/tasks/17/task.toml", TASK)]);
    let absent = Catalog::open(&[root.join("absent")]).expect_err("a mistyped root is no empty catalog");
    assert!(absent.to_string().ends_with("absent"), "{absent}");

    let catalog = Catalog::open(std::slice::from_ref(&root)).expect("it is there");
    let errors = catalog.check();
    let at = root.join("proj/project.toml");
    assert_eq!(
        errors[0].to_string(),
        format!(
            "{}:13:10: files[0].source: expected a file beside the document, found no file at `files/note`",
            at.display()
        )
    );
    let unknown = catalog.project("porj").expect_err("a slip");
    assert_eq!(
        (unknown.to_string(), unknown.hint()),
        ("no project `porj` in the catalog".into(), Some("did you mean proj?".into()))
    );

    write(&root, &[("proj/files/note", "")]);
    let project = catalog.project("proj").expect("valid now");
    let unknown = catalog.task(&TaskName::new("proj", "71"), &project).expect_err("a slip");
    assert_eq!(unknown.hint().as_deref(), Some("did you mean proj/17?"));
    let recipe = catalog.recipe(&TaskName::new("proj", "17"), "host").expect("valid");
    let no_lock = catalog.locks(&recipe).expect_err("none was written");
    assert_eq!(no_lock.to_string(), "there is no lock `proj/locks/pylock.17-host.toml`");

    write(&root, &[("alone/tasks/1/task.toml", TASK)]);
    let alone = Catalog::open(std::slice::from_ref(&root)).expect_err("no project");
    assert!(alone.to_string().ends_with("belongs to no project: there is no alone/project.toml"), "{alone}");
}
