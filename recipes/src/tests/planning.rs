//! From documents to plans and keys: the full project of `testdata/valid` with its task of a commit.

use std::collections::{BTreeMap, BTreeSet};

use infradev_store::{LayerId, StepKey};

use super::{project, source};
use crate::*;

fn task() -> Task {
    let text = include_str!("../../testdata/valid/task.commit.toml");
    parse_task("task.toml", text, &project(), &source).expect("the task is valid")
}

fn name() -> TaskName {
    TaskName::new("example", "1")
}

/// A recipe like the committed one after `change` of its project and task.
fn recipe(change: impl FnOnce(&mut Project, &mut Task)) -> Recipe {
    let (mut project, mut task) = (project(), task());
    task.build.clear();
    change(&mut project, &mut task);
    Recipe::resolve(&name(), &project, &task, "cpu").expect("the variant exists")
}

fn lock() -> Pylock {
    Pylock::parse("pylock.toml", include_str!("../../testdata/valid/pylock.pruned.toml"))
        .expect("a valid lock")
}

fn build_locks() -> BTreeMap<String, Pylock> {
    let tools = ["setuptools", "wheel"].map(|name| Package {
        name: name.parse().expect("a name"),
        version: "80".to_owned(),
        dependencies: Some(Vec::new()),
        artifact: Artifact::Wheel(Archive {
            name: format!("{name}-80-py3-none-any.whl"),
            size: None,
            sha256: blake3::hash(name.as_bytes()).to_hex().to_string(),
            url: None,
        }),
    });
    BTreeMap::from([("build-setuptools".to_owned(), Pylock::new(lock().made_for, tools.into()))])
}

fn base_lock() -> BaseLock {
    let package = DebianPackage {
        name: "python3.11".to_owned(),
        version: "3.11.2-6".to_owned(),
        architecture: "amd64".to_owned(),
        file: "pool/main/p/python3.11/python3.11_3.11.2-6_amd64.deb".to_owned(),
        size: 1,
        sha256: "1".repeat(64),
    };
    BaseLock::new(
        "bookworm",
        Architecture::X86_64,
        &["python3.11".to_owned(), "g++".to_owned()],
        vec![package],
    )
}

fn plan(recipe: Recipe) -> Result<Plan, PlanError> {
    plan_on(recipe, None)
}

fn plan_on(recipe: Recipe, host_python: Option<PythonVersion>) -> Result<Plan, PlanError> {
    let (lock, build_locks, base_lock) = (lock(), build_locks(), Some(base_lock()));
    Plan::new(recipe, Locks { lock, build_locks, base_lock, image_lock: None }.inputs(host_python))
}

/// Runs a plan in the mind: the layer of a step is named by its key.
fn keys(plan: &Plan, context: &KeyContext) -> BTreeMap<String, StepKey> {
    let mut progress = Progress::default();
    let mut keys = BTreeMap::new();
    for (index, node) in plan.nodes() {
        progress.inputs.insert(index, [7; 32]);
        if matches!(node.action, Action::HostBase) {
            continue;
        }
        let key = plan.record(index, context, &progress).expect("the steps before are done").key();
        match node.action {
            Action::SdistWheel(_) => drop(progress.built_wheels.insert(index, key.to_hex())),
            _ => drop(progress.layers.insert(index, LayerId::of(key.as_bytes()))),
        }
        keys.insert(node.label.clone(), key);
    }
    keys
}

fn context() -> KeyContext {
    KeyContext {
        host_fingerprint: None,
        pyc_magic: 3495,
        versions: StepVersions { base: 1, image: 1, skeleton: 1, wheel: 1, source: 1, sandbox: 1 },
    }
}

#[test]
fn a_task_overrides_its_variant() {
    let (project, task) = (project(), task());
    let recipe = Recipe::resolve(&name(), &project, &task, "cpu").expect("the variant exists");
    assert_eq!(recipe.lock_file(), "pylock.cpu-numpy1.toml");
    assert_eq!(recipe.base_lock_file(), "base.cpu.lock");
    assert_eq!(recipe.requirements.pins, ["numpy<2"]);
    assert_eq!(recipe.env.keys().collect::<Vec<_>>(), ["CUDA_VISIBLE_DEVICES", "EXAMPLE"]);
    assert_eq!(recipe.files[0].content, b"another\n");
    assert_eq!(recipe.build.len(), 2);
    assert_eq!(recipe.build[1].command, ["true"]);
    assert_eq!(
        recipe.exclude_newer.map(|moment| moment.to_string()).as_deref(),
        Some("2025-09-24T22:00:00Z")
    );

    let error = Recipe::resolve(&name(), &project, &task, "cuda").expect_err("the task excludes it");
    assert_eq!(error.to_string(), "example/1 has no variant `cuda`: it has cpu, host");
    let plain =
        parse_task("task.toml", include_str!("../../testdata/valid/task.sdist.toml"), &project, &source);
    let recipe = Recipe::resolve(&name(), &project, &plain.expect("valid"), "host").expect("all variants");
    assert_eq!(recipe.lock, "1-host");
}

#[test]
fn a_plan_lists_every_step_after_what_it_needs() {
    let plan = plan(recipe(|_, _| {})).expect("everything is locked");
    let labels: Vec<&str> = plan.nodes().map(|(_, node)| node.label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "example/1 base bookworm",
            "example/1 skeleton python3.11",
            "example/1 wheel setuptools 80",
            "example/1 wheel wheel 80",
            "example/1 sdist antlr4-python3-runtime 4.9.3",
            "example/1 wheel antlr4-python3-runtime 4.9.3",
            "example/1 wheel markupsafe 3.0.2",
            "example/1 wheel pybind11 2.13.6",
            "example/1 source 1985eb14ff3e",
            "example/1 build codegen",
            "example/1 build helpers",
            "example/1 files",
        ]
    );
    let label = |index: &NodeIndex| plan.node(*index).label.trim_start_matches("example/1 ").to_owned();
    let stack: Vec<String> = plan.stack().iter().map(label).collect();
    assert_eq!(stack.len(), labels.len() - 3, "the sdist and its tools are in no environment");
    for (index, node) in plan.nodes() {
        assert!(node.needs.iter().all(|need| *need < index), "{}", node.label);
    }
    let helpers = plan.nodes().find(|(_, node)| node.label.ends_with("build helpers")).expect("planned").1;
    let needs: Vec<String> = helpers.needs.iter().map(label).collect();
    assert_eq!(
        needs,
        [
            "base bookworm",
            "skeleton python3.11",
            "wheel pybind11 2.13.6",
            "source 1985eb14ff3e",
            "build codegen"
        ]
    );
}

#[test]
fn a_path_install_is_known_to_python() {
    let plan = plan(recipe(|_, _| {})).expect("everything is locked");
    let files = plan.nodes().find_map(|(_, node)| match &node.action {
        Action::Files(files) => Some(files),
        _ => None,
    });
    let text: String = files
        .expect("planned")
        .iter()
        .filter_map(|file| {
            Some((file.path.strip_prefix("/opt/env/lib/python3.11/site-packages/")?, &file.content))
        })
        .map(|(path, content)| format!("== {path}\n{}", String::from_utf8_lossy(content)))
        .collect();
    assert_eq!(
        text,
        "== example_project-0.5.0.dev0.dist-info/INSTALLER\ninfradev\n\
         == example_project-0.5.0.dev0.dist-info/METADATA\n\
         Metadata-Version: 2.1\nName: example-project\nVersion: 0.5.0.dev0\n\
         == example_project-0.5.0.dev0.dist-info/RECORD\n\
         example_project-0.5.0.dev0.dist-info/INSTALLER,,\n\
         example_project-0.5.0.dev0.dist-info/METADATA,,\n\
         example_project-0.5.0.dev0.dist-info/RECORD,,\n\
         example_project.pth,,\n\
         == example_project.pth\n/workspace/example\n"
    );
}

/// Checks which steps get another key by a change.
fn check_changed(change: impl FnOnce(&mut Project, &mut Task), context: &KeyContext, expected: &[&str]) {
    let before = keys(&plan(recipe(|_, _| {})).expect("everything is locked"), &self::context());
    let after = keys(&plan(recipe(change)).expect("everything is locked"), context);
    let changed = before.iter().filter(|(label, key)| after.get(*label) != Some(key));
    let changed: Vec<&str> = changed.map(|(label, _)| label.trim_start_matches("example/1 ")).collect();
    assert_eq!(changed, expected);
}

#[test]
fn a_key_changes_with_what_may_change_the_output_and_nothing_else() {
    let same = |change: fn(&mut Project, &mut Task)| check_changed(change, &context(), &[]);
    same(|_, task| task.title.push('x'));
    same(|_, task| drop(task.env.insert("A".into(), "b".into())));
    same(|project, _| project.build[1].env_ignored.clear());
    same(|project, _| project.build[1].cache = None);
    same(|project, _| project.summary.push('x'));
    same(|_, task| task.tests = None);

    let helpers = |change: fn(&mut Project, &mut Task)| check_changed(change, &context(), &["build helpers"]);
    helpers(|project, _| project.build[1].command.push("x".into()));
    helpers(|project, _| drop(project.build[1].env.insert("CXXFLAGS".into(), "-O3".into())));
    helpers(|project, _| project.build[1].outputs.truncate(1));
    helpers(|project, _| project.build[1].network = true);
    helpers(|project, _| project.build[1].needs.truncate(1));

    let files = |change: fn(&mut Project, &mut Task)| check_changed(change, &context(), &["files"]);
    files(|_, task| task.files[0].content.push(b'x'));
    files(|project, _| project.files[1].mode = 0o644);
    files(|_, task| task.source.version = "2".into());
    check_changed(
        |project, _| project.build[0].command.push("x".into()),
        &context(),
        &["build codegen", "build helpers"],
    );
    check_changed(
        |_, task| task.source.date = Some(Timestamp::from_seconds(0)),
        &context(),
        &["source 1985eb14ff3e"],
    );
}

#[test]
fn a_key_changes_with_the_versions_of_what_makes_layers() {
    let with = |change: fn(&mut KeyContext)| {
        let mut context = context();
        change(&mut context);
        context
    };
    let none = |_: &mut Project, _: &mut Task| {};
    check_changed(none, &with(|context| context.versions.source = 2), &["source 1985eb14ff3e"]);
    check_changed(
        none,
        &with(|context| context.versions.sandbox = 2),
        &[
            "build codegen",
            "build helpers",
            "sdist antlr4-python3-runtime 4.9.3",
            "wheel antlr4-python3-runtime 4.9.3",
        ],
    );
    let wheels =
        ["antlr4-python3-runtime 4.9.3", "markupsafe 3.0.2", "pybind11 2.13.6", "setuptools 80", "wheel 80"];
    let wheels = wheels.map(|wheel| format!("wheel {wheel}"));
    let mut expected = vec!["build helpers", "sdist antlr4-python3-runtime 4.9.3"];
    expected.extend(wheels.iter().map(String::as_str));
    check_changed(none, &with(|context| context.pyc_magic = 1), &expected);
}

#[test]
fn a_host_base_stands_for_its_fingerprint() {
    let mut recipe = recipe(|_, _| {});
    recipe.base = Base::Host;
    let other = plan_on(recipe.clone(), "3.12".parse().ok()).expect_err("the lock is for another");
    assert_eq!(other.to_string(), "the recipe wants Python 3.11, and the host has 3.12");
    let plan = plan_on(recipe, "3.11".parse().ok()).expect("no base lock is needed");
    assert!(matches!(plan.node(plan.stack()[0]).action, Action::Skeleton), "the host is no layer");
    let with = |fingerprint: &[u8]| KeyContext { host_fingerprint: Some(fingerprint.to_vec()), ..context() };
    let (one, two) = (keys(&plan, &with(b"one")), keys(&plan, &with(b"two")));
    let changed: BTreeSet<_> =
        one.iter().filter(|(label, key)| two[*label] != **key).map(|(label, _)| label).collect();
    assert!(changed.contains(&"example/1 build helpers".to_owned()));
    assert!(
        !changed.contains(&"example/1 wheel markupsafe 3.0.2".to_owned()),
        "wheels are shared between hosts"
    );
}

#[test]
fn what_is_not_done_yet_is_named() {
    let plan = plan(recipe(|_, _| {})).expect("everything is locked");
    let error = |label: &str| {
        let (index, _) = plan.nodes().find(|(_, node)| node.label.ends_with(label)).expect("planned");
        plan.record(index, &context(), &Progress::default()).expect_err(label).to_string()
    };
    assert_eq!(error("build helpers"), "the key of `example/1 build helpers` needs the tree of its inputs");
    assert_eq!(
        error("sdist antlr4-python3-runtime 4.9.3"),
        "the key of `example/1 sdist antlr4-python3-runtime 4.9.3` needs `example/1 base bookworm`"
    );
}

#[test]
fn what_cannot_be_planned_is_said() {
    let check = |change: fn(&mut Recipe), expected: &str| {
        let mut recipe = recipe(|_, _| {});
        change(&mut recipe);
        assert_eq!(plan(recipe).expect_err(expected).to_string(), expected);
    };
    check(|recipe| recipe.base = Base::Image { reference: "x".into() }, "there is no lock `base.cpu.lock`");
    check(
        |recipe| recipe.python = Python::Standalone { url: String::new(), sha256: String::new() },
        "a standalone `python` is not supported yet",
    );
    check(
        |recipe| recipe.python = Python::Base { version: "3.12".parse().ok() },
        "the lock `pylock.cpu-numpy1.toml` is for Python 3.11, and the recipe wants 3.12",
    );
    check(
        |recipe| recipe.base = Base::Debian { suite: "trixie".into(), packages: Vec::new() },
        "the lock `base.cpu.lock` was made for other packages than the recipe asks for",
    );
    check(
        |recipe| recipe.build[1].needs.push("pybind1".into()),
        "the build step `helpers` needs `pybind1`, which is neither a build step nor in the lock",
    );
    let locks =
        Locks { lock: lock(), build_locks: BTreeMap::new(), base_lock: Some(base_lock()), image_lock: None };
    let error = Plan::new(recipe(|_, _| {}), locks.inputs(None)).expect_err("the sdist needs a build lock");
    assert_eq!(error.to_string(), "there is no lock `pylock.build-setuptools.toml`");
    assert_eq!(error.hint().as_deref(), Some("run `infradev lock`"));
}

#[test]
fn an_image_is_a_step_for_each_layer() {
    let layer = |digit: &str| {
        let (digest, diff_id) =
            (format!("sha256:{}", "0".repeat(64)), format!("sha256:{}", digit.repeat(64)));
        ImageLayer { digest, size: 1, diff_id }
    };
    let image = |layers| {
        let digest = format!("sha256:{}", "d".repeat(64));
        let lock = ImageLock::new("oci:x:1", Architecture::X86_64, &digest, Some((2, 36)), layers);
        let mut recipe = recipe(|_, _| {});
        recipe.base = Base::Image { reference: "oci:x:1".into() };
        let (lock, build_locks, image_lock) = (self::lock(), build_locks(), Some(lock));
        Plan::new(recipe, Locks { lock, build_locks, base_lock: None, image_lock }.inputs(None))
    };
    let plan = image(vec![layer("a"), layer("b")]).expect("a plan");
    let labels: Vec<_> = plan.stack().iter().take(3).map(|index| plan.node(*index).label.as_str()).collect();
    let task = &plan.recipe.task;
    let expected = [
        format!("{task} base layer aaaaaaaaaaaa"),
        format!("{task} base layer bbbbbbbbbbbb"),
        format!("{task} skeleton python3.11"),
    ];
    assert_eq!(labels, expected);
    let (_, wheel) = plan.nodes().find(|(_, node)| matches!(node.action, Action::Wheel(_))).expect("a wheel");
    assert_eq!(wheel.needs[..3], plan.stack()[..3], "bytecode is compiled over all of the image");
}
