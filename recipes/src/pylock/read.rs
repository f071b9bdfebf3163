//! Reading locks: ours strictly, a resolver's for what it says about artifacts.

use super::prune::{Candidate, Resolution};
use super::{Archive, Artifact, LockOrigin, Package, Pylock};
use crate::error::RecipeErrors;
use crate::name::DistributionName;
use crate::parse::{Document, Fields, Item, read_architecture};
use crate::target::Target;

pub(super) fn read_lock(file: &str, text: &str) -> Result<Pylock, RecipeErrors> {
    Document::read(file, text, |fields| {
        let version = fields.required("lock-version", read_version);
        let made_for = fields.required("tool", |item| {
            item.table(|fields| {
                let made_for = fields.required("infradev", |item| item.table(read_origin));
                fields.close();
                made_for
            })
        });
        let packages = fields.defaulted("packages", |item| item.list(|item| item.table(read_package)));
        // What the PEP wants besides follows from the target.
        let _ = (fields.get("environments"), fields.get("requires-python"), fields.get("created-by"));
        fields.close();
        version?;
        let packages = packages?;
        if let Some(pair) = packages.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            let found = format!("`{}` before `{}`", pair[0].name, pair[1].name);
            return fields.fail("packages ordered by name, each once", found);
        }
        Some(Pylock::new(made_for?, packages))
    })
}

pub(super) fn read_resolution(file: &str, text: &str) -> Result<Resolution, RecipeErrors> {
    Document::read(file, text, |fields| {
        let version = fields.required("lock-version", read_version);
        let packages = fields.defaulted("packages", |item| item.list(|item| item.table(read_candidate)));
        version?;
        Some(Resolution { packages: packages? })
    })
}

fn read_version(item: &Item<'_>) -> Option<()> {
    match item.string()?.as_str() {
        "1.0" => Some(()),
        other => item.fail("lock-version \"1.0\"", format!("`{other}`")),
    }
}

fn read_origin(fields: &mut Fields<'_>) -> Option<LockOrigin> {
    let schema = fields.schema();
    let task = fields.optional("task", Item::line);
    let python = fields.required("python", Item::python_version);
    let architecture = fields.required("architecture", read_architecture);
    let glibc = fields.required("glibc", |item| {
        let text = item.string()?;
        let parts =
            text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts.or_else(|| item.fail("a version of glibc such as \"2.36\"", format!("`{text}`")))
    });
    let exclude_newer = fields.optional("exclude-newer", Item::timestamp);
    let requirement_digest = fields.required("requirement-digest", Item::sha256);
    fields.close();
    schema?;
    Some(LockOrigin {
        task: task?,
        target: Target { python: python?, architecture: architecture?, glibc: glibc? },
        exclude_newer: exclude_newer?,
        requirement_digest: requirement_digest?,
    })
}

fn read_package(fields: &mut Fields<'_>) -> Option<Package> {
    let name = fields.required("name", Item::distribution);
    let version = fields.required("version", Item::version);
    let dependencies = fields.optional("dependencies", |item| item.list(|item| item.table(read_dependency)));
    let wheels = fields.defaulted("wheels", |item| item.list(|item| item.table(read_archive)));
    let sdist = fields.optional("sdist", |item| item.table(read_archive));
    let build_lock = fields.defaulted("tool", |item| {
        item.table(|fields| {
            let own = fields.required("infradev", |item| {
                item.table(|fields| {
                    let build_lock = fields.required("build-lock", Item::plain_name);
                    fields.close();
                    build_lock
                })
            });
            fields.close();
            own.map(Some)
        })
    });
    fields.close();
    let (mut wheels, sdist, build_lock) = (wheels?, sdist?, build_lock?);
    let artifact = match (wheels.pop(), sdist) {
        (Some(wheel), None) if wheels.is_empty() && build_lock.is_none() => Artifact::Wheel(wheel),
        (None, Some(archive)) => Artifact::Sdist { archive, build_lock },
        _ => return fields.fail("exactly one wheel, or an sdist", "another number of artifacts"),
    };
    Some(Package { name: name?, version: version?, dependencies: dependencies?, artifact })
}

fn read_dependency(fields: &mut Fields<'_>) -> Option<DistributionName> {
    let name = fields.required("name", Item::distribution);
    fields.close();
    name
}

fn read_archive(fields: &mut Fields<'_>) -> Option<Archive> {
    let archive = read_any_archive(fields);
    fields.close();
    archive
}

fn read_any_archive(fields: &mut Fields<'_>) -> Option<Archive> {
    let url = fields.optional("url", Item::line);
    let name = fields.optional("name", Item::relative_path);
    let size = fields.optional("size", Item::natural);
    let sha256 =
        fields.required("hashes", |item| item.table(|fields| fields.required("sha256", Item::sha256)));
    let (url, name) = (url?, name?);
    let from_url = || url.as_deref().and_then(file_name_in_url);
    let Some(name) = name.or_else(from_url).filter(|name| !name.contains('/')) else {
        return fields.fail("the key `name`, or a `url` that ends in a file name", "neither");
    };
    Some(Archive { name, size: size?, sha256: sha256?, url })
}

/// Returns the last component of a URL, with `%2B` and the like decoded.
fn file_name_in_url(url: &str) -> Option<String> {
    let path = url.split(['?', '#']).next()?;
    let mut rest = path.rsplit_once('/')?.1;
    let mut name = Vec::new();
    while let Some(at) = rest.find('%') {
        name.extend(rest[..at].bytes());
        name.push(u8::from_str_radix(rest.get(at + 1..at + 3)?, 16).ok()?);
        rest = &rest[at + 3..];
    }
    name.extend(rest.bytes());
    String::from_utf8(name).ok().filter(|name| !name.is_empty())
}

fn read_candidate(fields: &mut Fields<'_>) -> Option<Candidate> {
    let name = fields.required("name", Item::distribution);
    let version = fields.optional("version", Item::version);
    let marker = fields.optional("marker", Item::string);
    let wheels = fields.defaulted("wheels", |item| item.list(|item| item.table(read_any_archive)));
    let sdist = fields.optional("sdist", |item| item.table(read_any_archive));
    let elsewhere = ["vcs", "directory", "archive"].into_iter().find(|key| fields.get(key).is_some());
    Some(Candidate {
        name: name?,
        version: version?,
        marker: marker?,
        wheels: wheels?,
        sdist: sdist?,
        elsewhere,
    })
}
