//! The one text of a lock: equal locks have equal bytes, so a diff shows what changed.

use std::fmt::Write;

use super::{Archive, Artifact, Pylock};
use crate::parse::SCHEMA;
use crate::toml_text::quoted;

pub(super) fn write_lock(lock: &Pylock) -> String {
    let target = &lock.made_for.target;
    let environment = format!(
        "implementation_name == 'cpython' and python_version == '{}' and sys_platform == 'linux' and platform_machine == '{}'",
        target.python, target.architecture
    );
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        writeln!(text, "{words}").expect("writing to a string cannot fail");
    };
    line(format_args!("lock-version = \"1.0\""));
    line(format_args!("environments = [{}]", quoted(&environment)));
    line(format_args!("requires-python = \"=={}.*\"", target.python));
    line(format_args!("created-by = \"infradev\""));
    for package in lock.packages() {
        line(format_args!("\n[[packages]]"));
        line(format_args!("name = {}", quoted(package.name.as_str())));
        line(format_args!("version = {}", quoted(&package.version)));
        if let Some(needs) = &package.dependencies {
            let needs: Vec<_> =
                needs.iter().map(|name| format!("{{ name = {} }}", quoted(name.as_str()))).collect();
            line(format_args!("dependencies = [{}]", needs.join(", ")));
        }
        match &package.artifact {
            Artifact::Wheel(archive) => line(format_args!("wheels = [{}]", inline(archive))),
            Artifact::Sdist { archive, build_lock } => {
                line(format_args!("sdist = {}", inline(archive)));
                if let Some(build_lock) = build_lock {
                    line(format_args!("tool = {{ infradev = {{ build-lock = {} }} }}", quoted(build_lock)));
                }
            }
        }
    }
    line(format_args!("\n[tool.infradev]"));
    line(format_args!("schema = {SCHEMA}"));
    if let Some(task) = &lock.made_for.task {
        line(format_args!("task = {}", quoted(task)));
    }
    line(format_args!("python = \"{}\"", target.python));
    line(format_args!("architecture = \"{}\"", target.architecture));
    line(format_args!("glibc = \"{}.{}\"", target.glibc.0, target.glibc.1));
    if let Some(moment) = lock.made_for.exclude_newer {
        line(format_args!("exclude-newer = \"{moment}\""));
    }
    line(format_args!("requirement-digest = {}", quoted(&lock.made_for.requirement_digest)));
    text
}

fn inline(archive: &Archive) -> String {
    let mut fields = vec![format!("name = {}", quoted(&archive.name))];
    fields.extend(archive.url.as_ref().map(|url| format!("url = {}", quoted(url))));
    fields.extend(archive.size.map(|size| format!("size = {size}")));
    fields.push(format!("hashes = {{ sha256 = {} }}", quoted(&archive.sha256)));
    format!("{{ {} }}", fields.join(", "))
}
