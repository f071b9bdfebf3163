//! Promises about the source tree itself.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file that a checkout has, as text with its path below the root; binary files are left out.
fn files(below: &str, extension: &str) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut directories = vec![root().join(below)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() && !["target", ".git", "shared"].contains(&name.as_str()) {
                directories.push(path);
            } else if name.ends_with(extension)
                && let Ok(text) = fs::read_to_string(&path)
            {
                let path = path.strip_prefix(root()).expect("below the root").display().to_string();
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

/// Every Rust file of the program and its libraries.
fn sources() -> Vec<(String, String)> {
    ["src", "store/src", "layers/src", "recipes/src"]
        .into_iter()
        .flat_map(|below| files(below, ".rs"))
        .collect()
}

/// The part of a file before its tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

fn dependencies(manifest: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(manifest)).expect("a manifest");
    let section = text.split("\n[dependencies]\n").nth(1).expect("every package has dependencies");
    let section = section.split("\n[").next().unwrap_or(section);
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| name.starts_with("infradev")).map(str::to_owned).collect()
}

#[test]
fn arrows_point_one_way() {
    for (manifest, allowed) in [
        ("store/Cargo.toml", &[][..]),
        ("layers/Cargo.toml", &["infradev-store"]),
        ("recipes/Cargo.toml", &["infradev-store", "infradev-layers"]),
        ("Cargo.toml", &["infradev-store", "infradev-layers", "infradev-recipes"]),
    ] {
        for dependency in dependencies(manifest) {
            assert!(allowed.contains(&dependency.as_str()), "{manifest} must not need {dependency}");
        }
    }
}

#[test]
fn libraries_know_no_network_terminal_or_runtime() {
    for manifest in ["store/Cargo.toml", "layers/Cargo.toml", "recipes/Cargo.toml"] {
        let text = fs::read_to_string(root().join(manifest)).expect("a manifest");
        for word in ["tokio", "reqwest", "clap", "signal-hook", "libc"] {
            assert!(!text.contains(word), "{manifest} names {word}");
        }
    }
    for library in ["store", "layers", "recipes"] {
        let text = fs::read_to_string(root().join(library).join("src/lib.rs")).expect("a library");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{library} does not forbid unsafe code");
    }
}

#[test]
fn each_job_has_one_place() {
    for (words, owner) in [
        (&["println!(", "eprintln!(", "print!(", "eprint!(", "dbg!("][..], "src/ui.rs"),
        (&["env::var(", "env::var_os(", "env::vars(", "env::vars_os("], "src/config.rs"),
        (&["unsafe {", "unsafe fn", "unsafe impl"], "src/env/namespace.rs"),
    ] {
        for (path, text) in sources().iter().filter(|(path, _)| path != owner) {
            for (number, line) in without_tests(text).lines().enumerate() {
                let code = line.trim_start();
                let found = words.iter().find(|word| code.contains(**word));
                let comment = code.starts_with("//");
                if let Some(word) = found.filter(|_| !comment && !is_test_file(path)) {
                    panic!("{path}:{}: `{word}` belongs to {owner} alone", number + 1);
                }
            }
        }
    }
}

#[test]
fn every_change_of_the_store_passes_its_seam() {
    let changes = [
        "fs::write(",
        "fs::rename(",
        "fs::remove_",
        "fs::create_dir(",
        "fs::copy(",
        "fs::hard_link(",
        "fs::set_permissions(",
        "File::create",
        "OpenOptions",
        "renameat",
        "linkat",
        "syncfs(",
        "sync_all(",
        "sync_data(",
    ];
    for (path, text) in sources() {
        // Lock files hold nothing.
        let own = ["store/src/disk.rs", "store/src/lock.rs"].contains(&path.as_str());
        if !path.starts_with("store/src/") || own {
            continue;
        }
        for (number, line) in without_tests(&text).lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            if let Some(word) = changes.iter().find(|word| line.contains(**word)) {
                panic!(
                    "{path}:{}: `{word}` belongs to store/src/disk.rs, where tests can fail it",
                    number + 1
                );
            }
        }
    }
    for (path, text) in sources() {
        let own = ["store/src/open.rs", "store/src/disk.rs"].contains(&path.as_str());
        assert!(own || !text.contains("open_with("), "{path}: faults are for tests");
    }
}

fn is_test_file(path: &str) -> bool {
    path.contains("tests") || path.ends_with("testing.rs")
}

#[test]
fn every_test_file_is_listed() {
    for (path, _) in files("tests/it", ".rs") {
        let path = Path::new(&path);
        if path.ends_with("main.rs") {
            continue;
        }
        let parent = path.parent().expect("below tests/it");
        let listed_in = if parent.ends_with("it") {
            root().join("tests/it/main.rs")
        } else {
            root().join(parent).with_extension("rs")
        };
        let module = path.file_stem().expect("a name").to_string_lossy();
        let text = fs::read_to_string(&listed_in).unwrap_or_default();
        let listed = text
            .lines()
            .any(|line| line.trim().trim_start_matches("pub(crate) ") == format!("mod {module};"));
        assert!(listed, "{} is not listed in {}", path.display(), listed_in.display());
    }
}

#[test]
fn files_are_short_and_open_with_what_they_are() {
    for (path, text) in sources().iter().chain(&files("tests", ".rs")) {
        let lines = text.lines().count();
        assert!(lines <= 800, "{path} has {lines} lines");
        assert!(text.starts_with("//!"), "{path} does not say what it is");
    }
}

#[test]
fn nothing_names_a_machine_of_ours() {
    // Split, so that this file does not name them either.
    let forbidden =
        [concat!("/wo", "rk/"), concat!("/tmp/", "wt-"), concat!("/tmp/", "t-"), concat!("arti", "factory")];
    for extension in [".rs", ".toml", ".md", ".sh", ".py", ".lock", ".json", "run"] {
        for (path, text) in files("", extension) {
            for word in forbidden {
                // A task's files may well hold `/workspace/`; only whole words of ours count.
                assert!(!text.contains(word), "{path} names {word}");
            }
        }
    }
}

#[test]
fn locks_name_no_host() {
    for (path, text) in files("recipes/catalog", ".toml").iter().filter(|(path, _)| path.contains("/locks/"))
    {
        assert!(!text.contains("://"), "{path} names a host; any index must serve it");
    }
}

#[test]
fn what_the_readme_types_exists() {
    let Ok(readme) = fs::read_to_string(root().join("README.md")) else { return };
    let commands = crate::cli::help::commands();
    for line in readme.lines() {
        let Some((_, rest)) = line.trim().split_once("infradev ") else { continue };
        let starts_command = line.trim_start().starts_with(['$', 'i', '.', 't']) && !line.contains('`');
        let mut words = rest.split_whitespace().skip_while(|word| word.starts_with("--"));
        let Some(word) = words.next().filter(|_| starts_command) else { continue };
        let known = commands.iter().any(|command| command[0] == word);
        let plain = word.chars().all(|character| character.is_ascii_lowercase());
        assert!(known || !plain, "README.md types `infradev {word}`, which does not exist");
    }
}
