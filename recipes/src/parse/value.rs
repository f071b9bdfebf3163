//! Values that are more than their TOML type: each is checked once, at the door.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use super::Item;
use crate::name::DistributionName;
use crate::pattern::Pattern;
use crate::requirement::parse_requirement;
use crate::target::{Architecture, PythonVersion};
use crate::timestamp::Timestamp;

impl<'a> Item<'a> {
    fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, expected: &str) -> Option<T> {
        let text = self.string()?;
        text.parse().ok().or_else(|| self.fail(expected, format!("`{text}`")))
    }

    /// Reads a string that says something.
    pub(crate) fn text(&self) -> Option<String> {
        let text = self.string()?;
        if text.trim().is_empty() {
            self.fail("a string that is not empty", "an empty one")
        } else {
            Some(text)
        }
    }

    /// Reads one line of text.
    pub(crate) fn line(&self) -> Option<String> {
        let text = self.text()?;
        if text.contains('\n') { self.fail("one line", "several") } else { Some(text) }
    }

    /// Reads a name that is one path component.
    pub(crate) fn plain_name(&self) -> Option<String> {
        let text = self.string()?;
        if is_plain_name(&text) {
            return Some(text);
        }
        self.fail("a name of letters, digits, `-`, `_` and `.`", format!("`{text}`"))
    }

    /// Reads the name of a distribution, in any spelling.
    pub(crate) fn distribution(&self) -> Option<DistributionName> {
        self.parsed("the name of a distribution (PEP 503)")
    }

    /// Reads `3.N`.
    pub(crate) fn python_version(&self) -> Option<PythonVersion> {
        self.parsed("a Python version such as \"3.11\"")
    }

    /// Reads a moment, as a string or a TOML date.
    pub(crate) fn timestamp(&self) -> Option<Timestamp> {
        let text = self.moment_text()?;
        let expected = "a moment with an offset (RFC 3339), such as 2025-09-24T06:27:05Z";
        text.parse().ok().or_else(|| self.fail(expected, format!("`{text}`")))
    }

    /// Reads a version by PEP 440.
    pub(crate) fn version(&self) -> Option<String> {
        self.parsed::<pep440_rs::Version>("a version (PEP 440)")?;
        self.string()
    }

    /// Reads a requirement by PEP 508.
    pub(crate) fn requirement(&self) -> Option<String> {
        let text = self.string()?;
        match parse_requirement(&text) {
            Ok(_) => Some(text),
            Err(reason) => self.fail_with_hint("a requirement (PEP 508)", format!("`{text}`"), reason),
        }
    }

    /// Reads a commit id.
    pub(crate) fn commit(&self) -> Option<String> {
        let text = self.string()?;
        if is_hexadecimal(&text, 40) {
            return Some(text);
        }
        let hint = "write the whole id as `git rev-parse` prints it, not a branch, tag or abbreviation";
        self.fail_with_hint("a commit of 40 lower-case hexadecimal digits", found_length(&text), hint)
    }

    /// Reads a sha256.
    pub(crate) fn sha256(&self) -> Option<String> {
        let text = self.string()?;
        if is_hexadecimal(&text, 64) {
            return Some(text);
        }
        self.fail("a sha256 of 64 lower-case hexadecimal digits", found_length(&text))
    }

    /// Reads a path that stays below wherever it is relative to.
    pub(crate) fn relative_path(&self) -> Option<String> {
        let text = self.string()?;
        self.stays_below(&text, &text)
    }

    /// Reads an absolute path below `/opt/env` or `workspace`.
    pub(crate) fn environment_path(&self, workspace: &str) -> Option<String> {
        let text = self.string()?;
        self.environment_text(&text, workspace)
    }

    fn environment_text(&self, text: &str, workspace: &str) -> Option<String> {
        let roots = ["/opt/env", workspace];
        let below = roots.iter().find_map(|root| text.strip_prefix(root)?.strip_prefix('/'));
        match below {
            Some(below) => self.stays_below(below, text),
            None => self.fail(&format!("a path below /opt/env or {workspace}"), format!("`{text}`")),
        }
    }

    fn stays_below(&self, relative: &str, whole: &str) -> Option<String> {
        let fault = if relative.is_empty() {
            "an empty path".to_owned()
        } else if relative.starts_with('/') {
            format!("the absolute path `{whole}`")
        } else if relative.contains('\0') {
            "a path with a NUL".to_owned()
        } else if relative.split('/').any(|part| part == "..") {
            format!("`..` in `{whole}`")
        } else if relative.split('/').any(|part| part.is_empty() || part == ".") {
            format!("an empty component or `.` in `{whole}`")
        } else {
            return Some(whole.to_owned());
        };
        self.fail("a path that stays below its root", fault)
    }

    /// Reads a glob over paths relative to the source tree.
    pub(crate) fn relative_pattern(&self) -> Option<Pattern> {
        let text = self.relative_path()?;
        self.compiled(&text)
    }

    /// Reads a glob that is absolute, or relative to the source tree and then made absolute.
    pub(crate) fn environment_pattern(&self, workspace: &str) -> Option<Pattern> {
        let text = self.string()?;
        let text = if text.starts_with('/') {
            self.environment_text(&text, workspace)?
        } else {
            format!("{}/{}", globset::escape(workspace), self.relative_path()?)
        };
        self.compiled(&text)
    }

    pub(crate) fn compiled(&self, text: &str) -> Option<Pattern> {
        match Pattern::new(text) {
            Ok(pattern) => Some(pattern),
            Err(error) => self.fail_with_hint("a glob", format!("`{text}`"), error.reason),
        }
    }

    /// Reads a program with its arguments.
    pub(crate) fn command(&self) -> Option<Vec<String>> {
        let words = self.list(Item::string)?;
        match words.first() {
            None => self.fail("a program and its arguments", "an empty array"),
            Some(program) if program.is_empty() => self.fail("a program", "an empty string"),
            Some(_) if words.iter().any(|word| word.contains('\0')) => {
                self.fail("words without NUL", "a NUL")
            }
            Some(_) => Some(words),
        }
    }

    /// Reads an environment.
    pub(crate) fn environment(&self) -> Option<BTreeMap<String, String>> {
        let entries = self.entries(|name, item| {
            let value = item.string()?;
            if !is_variable_name(name) {
                return item.fail("the name of an environment variable", format!("`{name}`"));
            }
            if value.contains('\0') { item.fail("a value without NUL", "a NUL") } else { Some(value) }
        });
        Some(entries?.into_iter().collect())
    }

    /// Reads the name of an environment variable.
    pub(crate) fn variable_name(&self) -> Option<String> {
        let name = self.string()?;
        if is_variable_name(&name) {
            Some(name)
        } else {
            self.fail("the name of an environment variable", format!("`{name}`"))
        }
    }

    /// Reads whole seconds, at least one.
    pub(crate) fn seconds(&self) -> Option<Duration> {
        match self.natural()? {
            0 => self.fail("at least one second", "0"),
            seconds => Some(Duration::from_secs(seconds)),
        }
    }

    /// Reads permission bits such as `"0755"`.
    pub(crate) fn mode(&self) -> Option<u32> {
        let text = self.string()?;
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.or_else(|| self.fail("permission bits in octal, such as \"0755\"", format!("`{text}`")))
    }

    /// Reads a list without duplicates.
    pub(crate) fn distinct(&self, read: impl Fn(&Item<'a>) -> Option<String>) -> Option<Vec<String>> {
        let seen = std::cell::RefCell::new(BTreeSet::new());
        self.list(|item| {
            let text = read(item)?;
            if !seen.borrow_mut().insert(text.clone()) {
                return item.fail("each entry once", format!("`{text}` again"));
            }
            Some(text)
        })
    }
}

/// Reads a processor family by the name the kernel has for it.
pub(crate) fn read_architecture(item: &Item<'_>) -> Option<Architecture> {
    match item.string()?.as_str() {
        "x86_64" => Some(Architecture::X86_64),
        "aarch64" => Some(Architecture::Aarch64),
        other => item.fail("x86_64 or aarch64", format!("`{other}`")),
    }
}

/// Says whether `text` is `length` lower-case hexadecimal digits.
pub(crate) fn is_hexadecimal(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Says whether `text` is `sha256:` and 64 digits.
pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| is_hexadecimal(digits, 64))
}

/// Says whether `text` can be one path component and part of a label.
pub(crate) fn is_plain_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && !text.starts_with(['.', '-']) && text.chars().all(plain)
}

fn is_variable_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(plain) && text.starts_with(|c: char| !c.is_ascii_digit())
}

fn found_length(text: &str) -> String {
    format!("`{text}` ({} characters)", text.chars().count())
}
