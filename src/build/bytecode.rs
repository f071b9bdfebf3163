//! Byte code: every `.py` of a wheel compiled once, with final paths, by the environment's own interpreter.
//!
//! `compileall` is not used: what marshal writes for a constant depends on how often the process refers to it,
//! so on some versions of Python (3.9, 3.10 and 3.12 were measured, docs/decisions/0002) a file's byte code
//! depends on which files were compiled before it. Here each file is compiled in a fork of the same small
//! process, which makes the result a function of the source, its path and the interpreter.
//! The files are hash-based and unchecked (PEP 552): their times do not matter, and no source is read at import.

use std::fs;

use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder, TreePath};
use infradev_recipes::PythonVersion;
use infradev_store::Ingest;

use super::scratch::{StepCommand, variables};
use super::{BUILD_MTIME, BuildError, Workshop, io};
use crate::env::plan::Network;

/// Where the sandbox sees the sources, and where it writes.
const SOURCES: &str = "/tmp/sources";
const COMPILED: &str = "/tmp/compiled";

/// Compiles `/tmp/sources/N` to `/tmp/compiled/N` for each line `path` of the list, in forks.
const COMPILER: &str = r#"
import importlib._bootstrap_external as bootstrap, importlib.util, os, sys
sources, compiled, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.setrecursionlimit(20000)
with open(sources + "/list", "rb") as file:
    paths = os.fsdecode(file.read()).split("\0")[:-1]
def compile_one(number):
    with open("%s/%d" % (sources, number), "rb") as file:
        source = file.read()
    # What the compiler refuses has no byte code: templates, examples of other versions.
    try:
        code = compile(source, paths[number], "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, UnicodeError):
        return
    data = bootstrap._code_to_hash_pyc(code, importlib.util.source_hash(source), False)
    with open("%s/%d" % (compiled, number), "wb") as file:
        file.write(data)
running = failed = 0
def reap():
    global running, failed
    failed |= os.wait()[1]
    running -= 1
for number in range(len(paths)):
    if running == workers:
        reap()
    if os.fork() == 0:
        status = 1
        try:
            compile_one(number)
            status = 0
        finally:
            os._exit(status)
    running += 1
while running:
    reap()
sys.exit(1 if failed else 0)
"#;

/// Returns `tree` with a `.pyc` for every `.py` that compiles. `below` is the stack with the interpreter.
pub(crate) fn with_bytecode(
    workshop: &Workshop<'_>,
    tree: Tree,
    below: &Tree,
    python: PythonVersion,
    ingest: &Ingest<'_>,
    log: &std::path::Path,
) -> Result<Tree, BuildError> {
    let sources: Vec<(TreePath, Content)> =
        tree.entries().iter().filter_map(|entry| source(entry, &tree)).collect();
    if sources.is_empty() {
        return Ok(tree);
    }
    let directory = workshop.lease.new_directory("bytecode")?;
    let (input, output) = (directory.join("sources"), directory.join("compiled"));
    for path in [&input, &output] {
        fs::create_dir(path).map_err(io("create", path))?;
    }
    let mut list = vec![];
    for (number, (path, content)) in sources.iter().enumerate() {
        list.push(b'/');
        list.extend_from_slice(path.as_bytes());
        list.push(0);
        let place = input.join(number.to_string());
        match content.object() {
            Some(object) => fs::hard_link(ingest.content(&object)?, &place).map_err(io("link", &place))?,
            None => fs::write(&place, []).map_err(io("write", &place))?,
        }
    }
    let place = input.join("list");
    fs::write(&place, list).map_err(io("write", &place))?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut binds = workshop.host_binds(below);
    let sources_at = workshop.lend(&mut binds, &input, SOURCES, false)?;
    let compiled_at = workshop.lend(&mut binds, &output, COMPILED, true)?;
    let interpreter = match (workshop.places, &workshop.host.python) {
        (Some(_), Some((path, _))) => path.to_string_lossy().into_owned(),
        _ => "/opt/env/bin/python".to_owned(),
    };
    let arguments =
        [&interpreter, "-I", "-S", "-W", "ignore", "-c", COMPILER, &sources_at, &compiled_at, &workers];
    let command = StepCommand {
        arguments: arguments.map(str::to_owned).to_vec(),
        directory: "/".into(),
        variables: variables(),
        network: Network::None,
        binds,
        log,
    };
    match workshop.places {
        // The compiler reads sources and runs none of them: its result is the same, and so is its key.
        Some(places) => workshop.run_unconfined(places, command)?,
        None => drop(workshop.run(below, command)?),
    }
    let mut builder = TreeBuilder::from_tree(tree);
    for (number, (path, _)) in sources.iter().enumerate() {
        let place = output.join(number.to_string());
        let Ok(bytes) = fs::read(&place) else { continue };
        let compiled = compiled_path(path, python);
        if !builder.contains(&compiled) {
            let content = Content::Object(ingest.put_bytes(&bytes)?, bytes.len() as u64);
            builder.add(compiled, Kind::File { metadata: Metadata::new(0o644, BUILD_MTIME), content })?;
        }
    }
    infradev_store::remove_tree(&directory)?;
    Ok(builder.finish()?)
}

fn source(entry: &infradev_layers::Entry, tree: &Tree) -> Option<(TreePath, Content)> {
    if !entry.path.as_bytes().ends_with(b".py")
        || !entry.path.as_bytes().windows(15).any(|part| part == b"/site-packages/")
    {
        return None;
    }
    let kind = match &entry.kind {
        Kind::Hardlink { first } => tree.get(first)?,
        kind => kind,
    };
    match kind {
        Kind::File { content, .. } => Some((entry.path.clone(), *content)),
        _ => None,
    }
}

/// PEP 3147: `a/b.py` compiles to `a/__pycache__/b.cpython-311.pyc`.
fn compiled_path(source: &TreePath, python: PythonVersion) -> TreePath {
    let name = source.file_name();
    let stem = &name[..name.len() - 3];
    let directory = source.parent().unwrap_or_default();
    let tag = format!(".cpython-{}{}.pyc", python.major, python.minor);
    let compiled = [b"__pycache__/", stem, tag.as_bytes()].concat();
    directory.join(&compiled).expect("a name of the tree with a short ending")
}

/// Returns the number that byte code of `python` begins with (CPython's `MAGIC_NUMBER`, low 16 bits).
pub(crate) fn magic_number(python: PythonVersion) -> u32 {
    match python.minor {
        8 => 3413,
        9 => 3425,
        10 => 3439,
        11 => 3495,
        12 => 3531,
        13 => 3571,
        14 => 3627,
        // Unknown to this program, yet different for every version.
        minor => 100_000 + u32::from(minor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_files_go_where_python_looks() {
        let python: PythonVersion = "3.11".parse().unwrap();
        let path =
            compiled_path(&"opt/env/lib/python3.11/site-packages/a/__init__.py".parse().unwrap(), python);
        assert_eq!(
            path.as_bytes(),
            b"opt/env/lib/python3.11/site-packages/a/__pycache__/__init__.cpython-311.pyc"
        );
    }
}
