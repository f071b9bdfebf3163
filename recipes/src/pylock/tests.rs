//! Locks made from a file that uv wrote: `testdata/resolution`.

use super::*;
use crate::target::{Architecture, PythonVersion};

const UV: &str = include_str!("../../testdata/resolution/uv.pylock.toml");
const PRUNED: &str = include_str!("../../testdata/valid/pylock.pruned.toml");

fn target(architecture: Architecture) -> Target {
    Target { python: PythonVersion { major: 3, minor: 11 }, architecture, glibc: (2, 36) }
}

fn pruned(architecture: Architecture) -> Pylock {
    let resolution = Resolution::parse("uv.pylock.toml", UV).expect("uv writes PEP 751");
    let pruning = Pruning { target: target(architecture), index_prefixes: &[] };
    let mut packages = resolution.prune(&pruning).expect("every package has an artifact");
    for package in &mut packages {
        match &mut package.artifact {
            Artifact::Sdist { build_lock, .. } => *build_lock = Some("build-setuptools".to_owned()),
            Artifact::Wheel(_) => package.dependencies = Some(Vec::new()),
        }
    }
    let made_for = LockOrigin {
        task: Some("example/1".to_owned()),
        target: target(architecture),
        exclude_newer: "2025-09-25T00:00:00Z".parse().ok(),
        requirement_digest: "0".repeat(64),
    };
    Pylock::new(made_for, packages)
}

#[test]
fn a_resolution_becomes_the_one_text_and_back() {
    let lock = pruned(Architecture::X86_64);
    assert_eq!(lock.to_text(), PRUNED, "{}", lock.to_text());
    assert_eq!(Pylock::parse("pylock.pruned.toml", PRUNED), Ok(lock));
}

#[test]
fn the_wheel_is_the_one_of_the_target() {
    let name = "markupsafe".parse().expect("a name");
    let file =
        |architecture| pruned(architecture).package(&name).expect("locked").artifact.archive().name.clone();
    assert!(file(Architecture::X86_64).ends_with("manylinux2014_x86_64.whl"));
    assert!(file(Architecture::Aarch64).ends_with("manylinux2014_aarch64.whl"));
}

#[test]
fn a_package_without_a_wheel_for_the_target_is_named() {
    let text = UV.lines().filter(|line| !line.starts_with("sdist")).collect::<Vec<_>>().join("\n");
    let resolution = Resolution::parse("uv.pylock.toml", &text).expect("still PEP 751");
    let pruning = Pruning { target: target(Architecture::X86_64), index_prefixes: &[] };
    let error = resolution.prune(&pruning).expect_err("antlr4 has an sdist only");
    assert_eq!(
        error.to_string(),
        "antlr4-python3-runtime 4.9.3 has no wheel for cp311 on x86_64 with glibc 2.36, and no sdist"
    );
}

#[test]
fn urls_stay_only_for_other_indexes() {
    let text = UV.replace("https://files.index.example/", "https://mirror.example/");
    let resolution = Resolution::parse("uv.pylock.toml", &text).expect("still PEP 751");
    let urls = |prefixes: &[String]| {
        let pruning = Pruning { target: target(Architecture::X86_64), index_prefixes: prefixes };
        let packages = resolution.prune(&pruning).expect("every package has an artifact");
        packages.iter().filter(|package| package.artifact.archive().url.is_some()).count()
    };
    assert_eq!(urls(&["https://mirror.example/".to_owned()]), 0);
    assert_eq!(urls(&[]), 3);
}

#[test]
fn a_closure_is_everything_needed_or_everything() {
    let name = |text: &str| text.parse::<DistributionName>().expect("a name");
    let package = |text: &str, needs: Option<&[&str]>| Package {
        name: name(text),
        version: "1".to_owned(),
        dependencies: needs.map(|needs| needs.iter().map(|need| name(need)).collect()),
        artifact: Artifact::Wheel(Archive {
            name: format!("{text}-1-py3-none-any.whl"),
            size: None,
            sha256: "0".repeat(64),
            url: None,
        }),
    };
    let made_for = pruned(Architecture::X86_64).made_for;
    let packages = vec![
        package("a", Some(&["b", "of-an-extra"])),
        package("b", Some(&["a"])),
        package("c", Some(&["d"])),
        package("d", None),
    ];
    let lock = Pylock::new(made_for, packages);
    let closure = |text: &str| -> Option<Vec<String>> {
        Some(lock.closure(&name(text))?.iter().map(|package| package.name.to_string()).collect())
    };
    assert_eq!(closure("a"), Some(vec!["a".into(), "b".into()]));
    assert_eq!(closure("c").map(|names| names.len()), Some(4));
    assert_eq!(closure("e"), None);
}

#[test]
fn dependencies_are_those_of_the_target_with_every_extra() {
    let metadata = "Metadata-Version: 2.1\nName: a\nProvides-Extra: fast\n\
        Requires-Dist: B_b >=1\nRequires-Dist: colorama; sys_platform == 'win32'\n\
        Requires-Dist: numba; extra == 'fast'\nRequires-Dist: tomli; python_version < '3.11'\n\n\
        Requires-Dist: of-the-description\n";
    let names = dependencies_in_metadata(metadata, &target(Architecture::X86_64)).expect("well-formed");
    assert_eq!(names.iter().map(DistributionName::as_str).collect::<Vec<_>>(), ["b-b", "numba"]);
}
