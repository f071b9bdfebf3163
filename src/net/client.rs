//! One HTTP client for everything: certificates of the system, time limits, retries.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::blocking::Response;
use sha2::{Digest, Sha256};

use crate::hex::hex;

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
        source: reqwest::Error,
    },
    /// The server refused.
    #[error("cannot fetch {what}: the server answers {status}")]
    Status {
        /// What was fetched.
        what: String,
        /// The status.
        status: StatusCode,
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
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No index is known.
    #[error("no package index is configured, and this machine's pip could not be asked for its own")]
    NoIndex,
}

/// How often a transfer is tried before it fails.
const ATTEMPTS: u32 = 4;

/// A client for downloads.
#[derive(Debug)]
pub struct Client {
    http: reqwest::blocking::Client,
    offline: bool,
}

impl Client {
    /// Makes a client; with `offline`, every request fails.
    pub fn new(offline: bool) -> Result<Self, NetError> {
        let http = reqwest::blocking::Client::builder()
            .user_agent(concat!("infradev/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(30))
            // A limit on the whole would break large wheels on slow lines; a stalled read ends by this one.
            .timeout(Duration::from_secs(3600))
            .build()
            .map_err(|source| NetError::Transfer { what: "anything".to_owned(), source })?;
        Ok(Self { http, offline })
    }

    /// Fetches a text with the given media types accepted; returns the text and its media type.
    pub fn text(&self, url: &str, accept: &str, what: &str) -> Result<(String, String), NetError> {
        let failed = |source| NetError::Transfer { what: what.to_owned(), source };
        let response = self.get(url, Some(accept), what)?;
        let kind =
            response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.to_owned();
        Ok((response.text().map_err(failed)?, kind))
    }

    /// Fetches a file to `path`, and checks its hash while it arrives. Returns its size in bytes.
    pub fn download(
        &self,
        url: &str,
        sha256: &str,
        path: &Path,
        progress: &dyn Fn(u64),
    ) -> Result<u64, NetError> {
        let name = url.split(['?', '#']).next().and_then(|url| url.rsplit('/').next()).unwrap_or(url);
        let mut attempt = 1;
        loop {
            let tried =
                self.get(url, None, name).and_then(|response| receive(response, name, path, progress));
            match tried {
                Ok((size, found)) if found == sha256 => return Ok(size),
                Ok((_, found)) => {
                    let (file, expected) = (name.to_owned(), sha256.to_owned());
                    return Err(NetError::Hash { file, expected, found });
                }
                Err(NetError::Transfer { .. }) if attempt < ATTEMPTS => pause(attempt),
                Err(error) => return Err(error),
            }
            attempt += 1;
        }
    }

    fn get(&self, url: &str, accept: Option<&str>, what: &str) -> Result<Response, NetError> {
        if self.offline {
            return Err(NetError::Offline { what: what.to_owned() });
        }
        let mut attempt = 1;
        loop {
            let mut request = self.http.get(url);
            if let Some(accept) = accept {
                request = request.header("accept", accept);
            }
            match request.send() {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => {
                    let status = response.status();
                    let transient = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
                    if !transient || attempt >= ATTEMPTS {
                        return Err(NetError::Status { what: what.to_owned(), status });
                    }
                }
                Err(source) if attempt >= ATTEMPTS => {
                    return Err(NetError::Transfer { what: what.to_owned(), source });
                }
                Err(_) => {}
            }
            pause(attempt);
            attempt += 1;
        }
    }
}

fn pause(attempt: u32) {
    std::thread::sleep(Duration::from_millis(500) * 2u32.pow(attempt - 1));
}

fn receive(
    mut response: Response,
    what: &str,
    path: &Path,
    progress: &dyn Fn(u64),
) -> Result<(u64, String), NetError> {
    let write = |source| NetError::Write { path: path.to_owned(), source };
    let mut file = File::create(path).map_err(write)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        let count = match response.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // A broken transfer, which reqwest wraps; worth another try.
            Err(error) => match error.downcast::<reqwest::Error>() {
                Ok(source) => return Err(NetError::Transfer { what: what.to_owned(), source }),
                Err(source) => return Err(write(source)),
            },
        };
        hasher.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(write)?;
        size += count as u64;
        progress(count as u64);
    }
    Ok((size, hex(&hasher.finalize())))
}
