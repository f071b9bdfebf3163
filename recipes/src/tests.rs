//! Table-driven tests over `testdata` and the shipped catalog.

mod overlay;
mod planning;

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Catalog, Project, RecipeErrors, parse_mutant, parse_probe, parse_project, parse_task};

fn folder(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn source(relative: &str) -> Option<Vec<u8>> {
    (relative == "files/there.txt").then(|| b"there\n".to_vec())
}

fn project() -> Project {
    let text = fs::read_to_string(folder("testdata/valid/project.full.toml"))
        .expect("the full project is committed");
    parse_project("project.full.toml", &text, &source).expect("the full project is valid")
}

/// Parses a case as what the first word of its name says it is.
fn parse(name: &str, text: &str) -> Result<(), RecipeErrors> {
    match name.split(['.', '-']).next() {
        Some("project") => parse_project(name, text, &source).map(drop),
        Some("task") => parse_task(name, text, &project(), &source).map(drop),
        Some("probe") => parse_probe(name, "x", text).map(drop),
        Some("mutant") => parse_mutant(name, "x", text).map(drop),
        Some("pylock") => crate::Pylock::parse(name, text).map(drop),
        Some("base") => crate::BaseLock::parse(name, text).map(drop),
        _ => panic!("{name} begins with no known kind of document"),
    }
}

fn cases(relative: &str) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder(relative)).expect("test data is committed");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let documents = paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    let mut cases: Vec<_> = documents
        .map(|path| (path.file_name().expect("a file").to_string_lossy().into_owned(), path))
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "{relative} has cases");
    cases
}

#[test]
fn valid_documents_parse() {
    for (name, path) in cases("testdata/valid") {
        let text = fs::read_to_string(&path).expect("readable");
        if let Err(errors) = parse(&name, &text) {
            panic!("{errors}");
        }
    }
}

/// Whatever a line says instead, the reader answers; it neither panics nor gives up without a reason.
#[test]
fn damaged_documents_are_refused_or_read_but_never_a_panic() {
    for (name, path) in cases("testdata/valid") {
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let key = line.split_once('=').map_or("", |(key, _)| key);
            for value in [
                "",
                "0",
                "-1.5",
                "\"\"",
                "\"\\u0000/..\"",
                "[]",
                "[[{}]]",
                "{}",
                "{ x = [1] }",
                "true",
                "1979-05-27",
            ] {
                let mut damaged = lines.clone();
                let replacement = if key.is_empty() { value.to_owned() } else { format!("{key}= {value}") };
                damaged[index] = &replacement;
                let _ = parse(&name, &damaged.join("\n"));
            }
        }
    }
}

/// Each document in `testdata/invalid` has its errors beside it, in a file ending in `.errors`.
#[test]
fn invalid_documents_are_refused_as_written_beside_them() {
    let mut differing = Vec::new();
    for (name, path) in cases("testdata/invalid") {
        let text = fs::read_to_string(&path).expect("readable");
        let errors = parse(&name, &text).expect_err(&name);
        let mut found = String::new();
        for error in errors.iter() {
            found.push_str(&format!("{error}\n"));
            found.extend(error.hint().map(|hint| format!("  hint: {hint}\n")));
        }
        let expected = fs::read_to_string(path.with_extension("errors")).unwrap_or_default();
        if found != expected {
            differing.push(format!("--- {name}: expected\n{expected}--- found\n{found}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// The documents of the reference are those that begin with the schema; its other examples are parts.
#[test]
fn the_examples_of_the_reference_are_valid() {
    let reference = include_str!("../../docs/recipe-reference.md");
    let blocks = reference.split("```toml\n").skip(1).filter_map(|block| block.split("```").next());
    let documents = blocks.filter(|block| block.starts_with("schema = 1"));
    let mut kinds = Vec::new();
    for text in documents {
        let keys = [("[project]", "project"), ("[source]", "task"), ("kind =", "probe")];
        let kind = keys.iter().find(|(key, _)| text.contains(key)).expect("an example of a known kind").1;
        if let Err(errors) = parse(kind, text) {
            panic!("{errors}\n{text}");
        }
        kinds.push(kind);
    }
    assert_eq!(kinds, ["project", "task", "probe"]);
}

#[test]
fn the_shipped_catalog_is_valid() {
    let catalog = Catalog::open(&[folder("catalog")]).expect("the catalog opens");
    let errors = catalog.check();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}
