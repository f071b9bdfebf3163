//! `project.toml`, and the parts that a task may override.

use std::collections::{BTreeMap, BTreeSet};

use super::build::read_steps;
use super::{Document, Fields, Item, ReadSource};
use crate::error::RecipeErrors;
use crate::name::DistributionName;
use crate::recipe::{Base, GeneratedFile, Install, Project, Python, ROOTFS, Requirements, Variant};

/// Parses `text`, the document `file`.
pub fn parse_project(file: &str, text: &str, source: ReadSource<'_>) -> Result<Project, RecipeErrors> {
    Document::read(file, text, |fields| read_project(fields, source))
}

struct Heading {
    name: String,
    summary: String,
    distribution: DistributionName,
    install: Install,
}

fn read_project(fields: &mut Fields<'_>, source: ReadSource<'_>) -> Option<Project> {
    let schema = fields.schema();
    let heading = fields.required("project", |item| item.table(read_heading));
    let git = fields.defaulted("source", |item| item.table(read_repository));
    let variants = fields.required("variant", read_variants);
    // Without a usable name there is no root to judge paths by; `*` then accepts none of them.
    let workspace = match &heading {
        Some(heading) => format!("/workspace/{}", heading.name),
        None => "/workspace/*".to_owned(),
    };
    let known: Vec<String> = variants.iter().flatten().map(|(name, _)| name.clone()).collect();
    let (mut files, mut build) = (Some(Vec::new()), Some(Vec::new()));
    if heading.is_some() {
        files = fields.defaulted("files", |item| read_files(item, &workspace, source));
        build = fields.defaulted("build", |item| read_steps(item, &workspace, &known));
    } else {
        let _ = (fields.get("files"), fields.get("build"));
    }
    fields.close();
    let (_, heading) = (schema?, heading?);
    Some(Project {
        name: heading.name,
        summary: heading.summary,
        distribution: heading.distribution,
        install: heading.install,
        git: git?,
        variants: variants?.into_iter().collect::<BTreeMap<_, _>>(),
        files: files?,
        build: build?,
    })
}

fn read_heading(fields: &mut Fields<'_>) -> Option<Heading> {
    let name = fields.required("name", Item::plain_name);
    let summary = fields.required("summary", Item::line);
    let distribution = fields.required("distribution", Item::distribution);
    let install = fields.optional("install", |item| match item.string()?.as_str() {
        "path" => Some(Install::Path),
        "build" => Some(Install::Build),
        other => item.fail("\"path\" or \"build\"", format!("`{other}`")),
    });
    fields.close();
    Some(Heading {
        name: name?,
        summary: summary?,
        distribution: distribution?,
        install: install?.unwrap_or(Install::Path),
    })
}

fn read_repository(fields: &mut Fields<'_>) -> Option<Option<String>> {
    let git = fields.required("git", Item::line);
    fields.close();
    git.map(Some)
}

fn read_variants(item: &Item<'_>) -> Option<Vec<(String, Variant)>> {
    let variants = item.entries(|name, item| {
        if !super::is_plain_name(name) {
            return item.fail("a variant name of letters, digits, `-`, `_` and `.`", format!("`{name}`"));
        }
        item.table(read_variant)
    })?;
    if variants.is_empty() { item.fail("at least one variant", "none") } else { Some(variants) }
}

fn read_variant(fields: &mut Fields<'_>) -> Option<Variant> {
    let base = fields.required("base", |item| item.table(read_base));
    let python = fields.required("python", |item| Some((item.table(read_python)?, item.clone())));
    let env = fields.defaulted("env", Item::environment);
    let requirements = fields.defaulted("requirements", |item| item.table(read_requirements));
    let lock = fields.optional("lock", Item::plain_name);
    fields.close();
    let (base, (python, item)) = (base?, python?);
    if let (Base::Debian { .. } | Base::Image { .. }, Python::Base { version: None }) = (&base, &python) {
        return item
            .fail("`version`, such as \"3.11\"", "no such key; only the host is asked for its version");
    }
    Some(Variant { base, python, env: env?, requirements: requirements?, lock: lock? })
}

fn read_base(fields: &mut Fields<'_>) -> Option<Base> {
    let debian = fields.optional("debian", |item| item.table(read_debian));
    let host = fields.optional("host", |item| match item.boolean()? {
        true => Some(Base::Host),
        false => item.fail("true", "false; leave the key out instead"),
    });
    let image = fields.optional("image", |item| {
        let reference = item.line()?;
        if let Some(place) = reference.strip_prefix(ROOTFS) {
            let hint = format!("write `rootfs = \"{place}\"`, without `image`");
            return item.fail_with_hint("an image", "an archive of a root file system", hint);
        }
        if reference.split_once('@').is_none_or(|(_, digest)| super::is_digest(digest)) {
            return Some(Base::Image { reference });
        }
        item.fail_with_hint(
            "an image",
            format!("`{reference}`"),
            "write `name:tag`, which `infradev lock` pins, or `name@sha256:` and 64 digits",
        )
    });
    let rootfs = fields.optional("rootfs", |item| {
        let place = item.line()?;
        let (name, digest) =
            place.split_once('@').map_or((place.as_str(), None), |(name, digest)| (name, Some(digest)));
        if digest.is_some_and(|digest| !super::is_digest(digest)) {
            return item
                .fail("the place of an archive, or it and `@sha256:` and 64 digits", format!("`{place}`"));
        }
        match name.split_once("://") {
            None => {}
            Some(("https" | "http", _)) if digest.is_some() => {}
            Some(("https" | "http", _)) => {
                return item.fail_with_hint(
                    "`URL@sha256:` and 64 digits",
                    format!("`{place}`"),
                    "what a URL leads to may change: `sha256sum` of the archive gives the digits",
                );
            }
            Some(_) => return item.fail("a path, or an https or http URL", format!("`{place}`")),
        }
        Some(Base::Image { reference: format!("{ROOTFS}{place}") })
    });
    fields.close();
    let mut given: Vec<Base> = [debian?, host?, image?, rootfs?].into_iter().flatten().collect();
    match given.len() {
        1 => given.pop(),
        count => {
            fields.fail("exactly one of `debian`, `host`, `image` and `rootfs`", format!("{count} of them"))
        }
    }
}

fn read_debian(fields: &mut Fields<'_>) -> Option<Base> {
    let suite = fields.required("suite", Item::plain_name);
    let packages = fields.defaulted("packages", |item| {
        item.distinct(|item| {
            let name = item.string()?;
            if is_debian_name(&name) {
                Some(name)
            } else {
                item.fail("the name of a Debian package", format!("`{name}`"))
            }
        })
    });
    fields.close();
    Some(Base::Debian { suite: suite?, packages: packages? })
}

/// Debian policy, section 5.6.7.
fn is_debian_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.');
    text.len() >= 2 && text.bytes().all(plain) && !text.starts_with(['+', '-', '.'])
}

fn read_python(fields: &mut Fields<'_>) -> Option<Python> {
    let from = fields.optional("from", |item| match item.string()?.as_str() {
        "base" => Some(()),
        other => item.fail("\"base\"", format!("`{other}`")),
    });
    let version = fields.optional("version", Item::python_version);
    let url = fields.optional("url", Item::line);
    let sha256 = fields.optional("sha256", Item::sha256);
    fields.close();
    match (from?, version?, url?, sha256?) {
        (Some(()), version, None, None) => Some(Python::Base { version }),
        (None, None, Some(url), Some(sha256)) => Some(Python::Standalone { url, sha256 }),
        _ => {
            fields.fail("`from = \"base\"` with `version`, or `url` with `sha256`", "another choice of keys")
        }
    }
}

/// Reads `requirements`, of a variant or a task.
pub(super) fn read_requirements(fields: &mut Fields<'_>) -> Option<Requirements> {
    let files = fields.defaulted("files", |item| item.distinct(Item::relative_path));
    let pins = fields.defaulted("pins", |item| item.distinct(Item::requirement));
    fields.close();
    Some(Requirements { files: files?, pins: pins? })
}

/// Reads `[[files]]`, of a project or a task.
pub(super) fn read_files(
    item: &Item<'_>,
    workspace: &str,
    source: ReadSource<'_>,
) -> Option<Vec<GeneratedFile>> {
    let files = item.list(|item| read_file(item, workspace, source))?;
    let mut paths = BTreeSet::new();
    match files.iter().find(|file| !paths.insert(&file.path)) {
        Some(file) => item.fail("each path once", format!("`{}` twice", file.path)),
        None => Some(files),
    }
}

fn read_file(item: &Item<'_>, workspace: &str, source: ReadSource<'_>) -> Option<GeneratedFile> {
    item.table(|fields| {
        let path = fields.required("path", |item| item.environment_path(workspace));
        let mode = fields.optional("mode", Item::mode);
        let text = fields.optional("text", Item::string);
        let copied = fields.optional("source", |item| {
            let relative = item.relative_path()?;
            source(&relative)
                .or_else(|| item.fail("a file beside the document", format!("no file at `{relative}`")))
        });
        fields.close();
        let content = match (text?, copied?) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(bytes)) => bytes,
            (Some(_), Some(_)) => return fields.fail("exactly one of `text` and `source`", "both"),
            (None, None) => return fields.fail("exactly one of `text` and `source`", "neither"),
        };
        Some(GeneratedFile { path: path?, mode: mode?.unwrap_or(0o644), content })
    })
}
