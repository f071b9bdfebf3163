//! Locks of Debian bases: every package with its sha256.

use std::fmt::Write;

use serde::Serialize;

use crate::error::RecipeErrors;
use crate::parse::{Document, Fields, Item, SCHEMA, read_architecture};
use crate::target::Architecture;
use crate::toml_text::quoted;

/// The Debian packages of a base, to the byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BaseLock {
    /// The release.
    pub suite: String,
    /// The processor.
    pub architecture: Architecture,
    /// The packages that the recipe asked for; others mean that the lock is stale.
    pub requested: Vec<String>,
    packages: Vec<DebianPackage>,
}

/// A package of a base.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DebianPackage {
    /// The package.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its architecture in Debian's words: `amd64`, `arm64` or `all`.
    pub architecture: String,
    /// Where a mirror keeps it, such as `pool/main/g/git/git_2.39.5-0_amd64.deb`.
    pub file: String,
    /// Its bytes.
    pub size: u64,
    /// What its bytes hash to.
    pub sha256: String,
}

impl BaseLock {
    /// Makes a lock of `packages`, in the order of their names.
    pub fn new(
        suite: &str,
        architecture: Architecture,
        requested: &[String],
        mut packages: Vec<DebianPackage>,
    ) -> Self {
        packages.sort();
        let mut requested = requested.to_vec();
        requested.sort();
        Self { suite: suite.to_owned(), architecture, requested, packages }
    }

    /// Reads a lock; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, RecipeErrors> {
        Document::read(file, text, read_lock)
    }

    /// Returns the packages, ordered by name.
    pub fn packages(&self) -> &[DebianPackage] {
        &self.packages
    }

    /// Says whether the lock was made for `suite` with `packages`, in any order.
    pub fn answers(&self, suite: &str, packages: &[String]) -> bool {
        let mut packages = packages.to_vec();
        packages.sort();
        self.suite == suite && self.requested == packages
    }

    /// Returns the one text that stands for this lock.
    pub fn to_text(&self) -> String {
        let requested: Vec<_> = self.requested.iter().map(|name| quoted(name)).collect();
        let mut text = format!(
            "schema = {SCHEMA}\nsuite = {}\narchitecture = \"{}\"\nrequested = [{}]\n",
            quoted(&self.suite),
            self.architecture,
            requested.join(", ")
        );
        for package in &self.packages {
            write!(
                text,
                "\n[[package]]\nname = {}\nversion = {}\narchitecture = {}\nfile = {}\nsize = {}\nsha256 = {}\n",
                quoted(&package.name),
                quoted(&package.version),
                quoted(&package.architecture),
                quoted(&package.file),
                package.size,
                quoted(&package.sha256)
            )
            .expect("writing to a string cannot fail");
        }
        text
    }
}

fn read_lock(fields: &mut Fields<'_>) -> Option<BaseLock> {
    let schema = fields.schema();
    let suite = fields.required("suite", Item::plain_name);
    let architecture = fields.required("architecture", read_architecture);
    let requested = fields.required("requested", |item| item.distinct(Item::line));
    let packages = fields.required("package", |item| {
        let packages = item.list(|item| item.table(read_package))?;
        match packages
            .windows(2)
            .find(|pair| (&pair[0].name, &pair[0].architecture) == (&pair[1].name, &pair[1].architecture))
        {
            Some(pair) => item.fail("each package once", format!("`{}` twice", pair[0].name)),
            None => Some(packages),
        }
    });
    fields.close();
    schema?;
    Some(BaseLock::new(&suite?, architecture?, &requested?, packages?))
}

fn read_package(fields: &mut Fields<'_>) -> Option<DebianPackage> {
    let name = fields.required("name", Item::line);
    let version = fields.required("version", Item::line);
    let architecture = fields.required("architecture", Item::plain_name);
    let file = fields.required("file", Item::relative_path);
    let size = fields.required("size", Item::natural);
    let sha256 = fields.required("sha256", Item::sha256);
    fields.close();
    Some(DebianPackage {
        name: name?,
        version: version?,
        architecture: architecture?,
        file: file?,
        size: size?,
        sha256: sha256?,
    })
}
