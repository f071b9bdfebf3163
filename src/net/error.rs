//! What can go wrong on the network, and what to do about it.

use std::path::PathBuf;

use reqwest::StatusCode;

/// A transfer that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The network may not be used.
    #[error("{what} is not in the store, and the network is off")]
    Offline {
        /// What would have been fetched.
        what: String,
    },
    /// The server could not be reached, or broke off.
    #[error("cannot fetch {what}")]
    Transfer {
        /// What was fetched.
        what: String,
        /// Why it failed.
        source: Broken,
    },
    /// The server refused.
    #[error("cannot fetch {what}: the server answers {status}")]
    Status {
        /// What was fetched.
        what: String,
        /// The status.
        status: StatusCode,
    },
    /// A redirect leads where it may not.
    #[error("cannot fetch {what}: {detail}")]
    Redirect {
        /// What was fetched.
        what: String,
        /// Why it was not followed.
        detail: String,
    },
    /// The index does not have the file.
    #[error("the index has no file {file} of {project}")]
    NoFile {
        /// The project.
        project: String,
        /// The file.
        file: String,
    },
    /// The index's answer is not what the simple API describes.
    #[error("the index's answer for {project} cannot be read: {detail}")]
    Answer {
        /// The project.
        project: String,
        /// Why.
        detail: String,
    },
    /// The bytes are not those that the lock names.
    #[error("{file} has sha256 {found}, but the lock names {expected}")]
    Hash {
        /// The file.
        file: String,
        /// What the lock says.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// The file could not be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No index is known.
    #[error("no package index is configured, and this machine's pip could not be asked for its own")]
    NoIndex,
    /// Certificates or proxies that cannot be used: never ignored, since other ones may not be meant.
    #[error("{name} cannot be used: {detail}")]
    Setting {
        /// The variable or key, and what it says.
        name: String,
        /// Why.
        detail: String,
    },
    /// A text names no repository.
    #[error("`{text}` names no repository of a registry: {detail}")]
    Name {
        /// The text.
        text: String,
        /// Why.
        detail: String,
    },
    /// Credentials that are there cannot be read.
    #[error("the credentials in {} cannot be read: {detail}", .path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// A registry could not be reached, or broke off.
    #[error("cannot {doing} at {host}")]
    Talk {
        /// The registry.
        host: String,
        /// What was tried.
        doing: String,
        /// Why it failed.
        source: Broken,
    },
    /// A registry refused.
    #[error("cannot {doing}: {host} answers {status}{said}")]
    Refused {
        /// The registry.
        host: String,
        /// What was tried.
        doing: String,
        /// Its status.
        status: StatusCode,
        /// What else it said, after a colon; may be empty.
        said: String,
    },
    /// A registry does not let us.
    #[error("{host} does not let {} {doing}: {status}{said}", if *.known { "these credentials" } else { "anybody without credentials" })]
    Denied {
        /// The registry.
        host: String,
        /// What was tried.
        doing: String,
        /// Its status.
        status: StatusCode,
        /// What else it said, after a colon; may be empty.
        said: String,
        /// Whether credentials were sent.
        known: bool,
    },
    /// A registry leads where nothing is sent.
    #[error("cannot {doing}: {host} {detail}")]
    Unsafe {
        /// The registry.
        host: String,
        /// What was tried.
        doing: String,
        /// What it asks for.
        detail: String,
    },
    /// A registry's answer is not what the specification describes.
    #[error("cannot {doing}: {host} {detail}")]
    Strange {
        /// The registry.
        host: String,
        /// What was tried.
        doing: String,
        /// What is wrong with its answer.
        detail: String,
    },
}

/// Why a connection or a transfer ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// It could not be made, or broke.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    /// Nothing, or next to nothing, came.
    #[error("the transfer stalled: {came} bytes came in {seconds} s")]
    Stalled {
        /// The bytes.
        came: u64,
        /// How long they were waited for.
        seconds: u64,
    },
    /// The server took the request and did not answer, or did not take it.
    #[error("the server was silent for {seconds} s")]
    Silent {
        /// How long.
        seconds: u64,
    },
    /// More came than was said or may be.
    #[error("the answer has more than {most} bytes")]
    TooLong {
        /// What may be.
        most: u64,
    },
}

impl NetError {
    /// Whether a registry takes a digest in what it was given for malformed.
    pub(super) fn is_invalid_digest(&self) -> bool {
        matches!(self, Self::Refused { status: StatusCode::BAD_REQUEST, said, .. } if said.contains("DIGEST_INVALID"))
    }
}

impl Broken {
    /// Leaves the URL out, which may be signed.
    pub(super) fn without_url(self) -> Self {
        match self {
            Self::Http(error) => Self::Http(error.without_url()),
            other => other,
        }
    }

    /// Whether the server showed a certificate that is not trusted.
    pub fn is_certificate(&self) -> bool {
        matches!(self, Self::Http(error) if said_below(error, "invalid peer certificate"))
    }

    /// Whether the server speaks no TLS.
    pub fn is_plain(&self) -> bool {
        matches!(self, Self::Http(error) if said_below(error, "received corrupt message of type InvalidContentType"))
    }

    /// Whether another try may end better.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Http(error) => !error.is_builder() && !self.is_certificate() && !self.is_plain(),
            Self::Stalled { .. } | Self::Silent { .. } => true,
            Self::TooLong { .. } => false,
        }
    }
}

/// Whether one of the causes of `error` says `words`: the TLS library's own types are not to be had here.
fn said_below(error: &dyn std::error::Error, words: &str) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.to_string().contains(words) {
            return true;
        }
        next = error.source();
    }
    false
}
