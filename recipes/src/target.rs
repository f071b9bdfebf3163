//! The machine that an environment is for: processor, C library, Python.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A processor family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// `x86_64`, which Debian calls `amd64`.
    #[serde(rename = "x86_64")]
    X86_64,
    /// `aarch64`, which Debian calls `arm64`.
    Aarch64,
}

impl Architecture {
    /// Returns the name that the kernel and wheels use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns the name that Debian uses.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A feature version of CPython, such as `3.11`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PythonVersion {
    /// The major version; always 3.
    pub major: u8,
    /// The minor version.
    pub minor: u8,
}

/// A string that is not a supported `3.N`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a Python version: expected `3.N`")]
pub struct PythonVersionError(pub String);

impl PythonVersion {
    /// Returns the interpreter tag of wheels, such as `cp311`.
    pub fn tag(self) -> String {
        format!("cp{}{}", self.major, self.minor)
    }

    /// Returns where distributions live in an environment.
    pub fn site_packages(self) -> String {
        format!("/opt/env/lib/python{self}/site-packages")
    }
}

impl FromStr for PythonVersion {
    type Err = PythonVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let minor = text.strip_prefix("3.").filter(|minor| minor.bytes().all(|b| b.is_ascii_digit()));
        let minor = minor.filter(|minor| *minor == "0" || !minor.starts_with('0'));
        let minor = minor.and_then(|minor| minor.parse().ok());
        minor.map(|minor| Self { major: 3, minor }).ok_or_else(|| PythonVersionError(text.to_owned()))
    }
}

impl TryFrom<String> for PythonVersion {
    type Error = PythonVersionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PythonVersion> for String {
    fn from(version: PythonVersion) -> Self {
        version.to_string()
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What wheels are chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The interpreter.
    pub python: PythonVersion,
    /// The processor.
    pub architecture: Architecture,
    /// The version of glibc in the base, such as `(2, 36)`.
    pub glibc: (u16, u16),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.glibc;
        write!(f, "{} on {} with glibc {major}.{minor}", self.python.tag(), self.architecture)
    }
}
