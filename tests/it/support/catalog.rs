//! The catalog of the tests: one project over the host's Python, two tasks, two wheels, one build step.

use std::process::Command;
use std::sync::OnceLock;

use infradev_recipes::{Catalog, TaskName};

use super::packages::{Package, wheel};
use super::place::Place;

/// The project, its first task, and where its source is said to be.
pub(crate) const PROJECT: &str = "demo";
pub(crate) const TASK: &str = "demo/one";
pub(crate) const URL: &str = "https://git.invalid/demo";

pub(super) const PROJECT_TOML: &str = r#"schema = 1

[project]
name = "demo"
summary = "a project of the tests"
distribution = "demo"
install = "path"

[source]
git = "https://git.invalid/demo"

[variant.cpu]
base = { host = true }
python = { from = "base" }
env = { DEMO = "1" }

[variant.cpu.requirements]
files = []
pins = ["tinypkg==1.0", "toolpkg==2.0"]

[[files]]
path = "/opt/env/share/demo/note"
text = "a note\n"

[[build]]
name = "native"
command = ["sh", "-c", "cat native/*.txt >native/out.so && ls native >>native/out.so"]
inputs = ["native/*.txt"]
outputs = ["native/out.so"]
"#;

/// Writes the catalog, and the packages that it locks into the index.
pub(crate) fn write_catalog(place: &Place) {
    let tiny = wheel(
        "tinypkg",
        "1.0",
        &[("tinypkg/__init__.py", "NAME = 'tiny'\n"), ("tinypkg/data.txt", "data\n")],
    );
    let entry = "[console_scripts]\ntool = toolpkg:main\n";
    let tool = wheel(
        "toolpkg",
        "2.0",
        &[
            ("toolpkg/__init__.py", "def main():\n    print('tool ran')\n"),
            ("toolpkg-2.0.dist-info/entry_points.txt", entry),
            ("toolpkg-2.0.data/data/share/toolpkg/readme", "read me\n"),
            ("toolpkg-2.0.data/scripts/toolscript", "#!python\nprint('script ran')\n"),
        ],
    );
    place.index.add(&tiny);
    place.index.add(&tool);
    place.write("demo/project.toml", PROJECT_TOML);
    for (task, commit) in [("one", &place.repository.first), ("two", &place.repository.second)] {
        let text = format!(
            "schema = 1\ntitle = \"task {task}\"\n\n[source]\ncommit = \"{commit}\"\ndate = \"2023-11-14T22:13:20Z\"\nversion = \"1.0\"\n"
        );
        place.write(&format!("demo/tasks/{task}/task.toml"), text);
    }
    let lock = lock_of(place, &[&tiny, &tool]);
    for task in ["one", "two"] {
        place.write(&format!("demo/locks/pylock.{task}-cpu.toml"), &lock);
    }
}

/// A lock of `packages` for this machine and the requirements of [`TASK`].
pub(crate) fn lock_of(place: &Place, packages: &[&Package]) -> String {
    let catalog = Catalog::open(&[place.path("catalog")]).expect("a catalog");
    let recipe = catalog.recipe(&TaskName::new(PROJECT, "one"), "cpu").expect("a recipe");
    let digest = recipe.requirement_digest(&[]);
    let glibc = glibc();
    let python = host_python();
    let architecture = std::env::consts::ARCH;
    let mut packages = packages.to_vec();
    packages.sort_by(|left, right| left.project.cmp(&right.project));
    let mut text =
        format!("lock-version = \"1.0\"\nrequires-python = \"=={python}.*\"\ncreated-by = \"infradev\"\n");
    for package in packages {
        let Package { project, version, file, bytes } = package;
        let archive = format!(
            "{{ name = \"{file}\", size = {}, hashes = {{ sha256 = \"{}\" }} }}",
            bytes.len(),
            package.sha256()
        );
        let artifact = if file.ends_with(".whl") {
            format!("wheels = [{archive}]")
        } else {
            format!("sdist = {archive}")
        };
        text += &format!("\n[[packages]]\nname = \"{project}\"\nversion = \"{version}\"\n{artifact}\n");
    }
    text + &format!(
        "\n[tool.infradev]\nschema = 1\npython = \"{python}\"\narchitecture = \"{architecture}\"\nglibc = \"{glibc}\"\nrequirement-digest = \"{digest}\"\n"
    )
}

/// The version of this machine's C library, as its own tool says it.
fn glibc() -> String {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().expect("getconf runs");
    String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("glibc ").to_owned()
}

/// The version of the Python that a host base shows.
pub(crate) fn host_python() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let program = "import sys; print('%d.%d' % sys.version_info[:2])";
        let output =
            Command::new("/usr/bin/python3").args(["-I", "-c", program]).output().expect("/usr/bin/python3");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}
