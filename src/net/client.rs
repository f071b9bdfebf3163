//! Downloads: files that a hash names, and texts.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use reqwest::header::{ACCEPT, CONTENT_TYPE, RANGE};
use reqwest::{Method, StatusCode, Url};
use sha2::{Digest, Sha256};

use super::error::{Broken, NetError};
use super::http::{Answer, Http, Request};
use super::transfer::Transfer;
use crate::hex::hex;

/// No text is longer: the pages of the largest projects have some 30 MB.
const MAX_TEXT: u64 = 256 << 20;
/// How many redirects are followed.
const REDIRECTS: usize = 10;

/// A client for downloads.
#[derive(Debug)]
pub struct Client {
    http: Arc<Http>,
}

impl Client {
    /// Makes a client.
    pub fn new(http: Arc<Http>) -> Self {
        Self { http }
    }

    /// Fetches a text with the given media types accepted; returns the text and its media type.
    pub fn text(&self, url: &str, accept: &str, what: &str) -> Result<(String, String), NetError> {
        let failed = |source| NetError::Transfer { what: what.to_owned(), source };
        let request = self.request(url, what)?.header(ACCEPT, accept);
        let mut tries = self.http.tries();
        loop {
            let answer = self.get(&request, what)?;
            let kind = answer.header(&CONTENT_TYPE).unwrap_or_default().to_owned();
            match answer.bytes(MAX_TEXT) {
                Ok(bytes) => return Ok((String::from_utf8_lossy(&bytes).into_owned(), kind)),
                Err(error) if error.is_transient() && tries.pause(None) => {}
                Err(error) => return Err(failed(error)),
            }
        }
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
        let request = self.request(url, name)?;
        let open = |from: u64| {
            let whole = from == 0;
            let request = match whole {
                true => request.clone(),
                false => request.clone().header(RANGE, &format!("bytes={from}-")),
            };
            let mut answer = self.get(&request, name)?;
            if !whole && answer.status() != StatusCode::PARTIAL_CONTENT {
                skip(&mut answer, from)
                    .map_err(|source| NetError::Transfer { what: name.to_owned(), source })?;
            }
            Ok(answer)
        };
        let broke = |source| NetError::Transfer { what: name.to_owned(), source };
        let transfer = Transfer::new(open(0)?, 0, self.http.tries(), open, broke);
        let (size, found) = receive(transfer, path, progress)?;
        if found == sha256 {
            return Ok(size);
        }
        Err(NetError::Hash { file: name.to_owned(), expected: sha256.to_owned(), found })
    }

    fn request(&self, url: &str, what: &str) -> Result<Request, NetError> {
        if self.http.settings().offline {
            return Err(NetError::Offline { what: what.to_owned() });
        }
        let url = Url::parse(url).map_err(|error| NetError::Redirect {
            what: what.to_owned(),
            detail: format!("`{}` is no URL: {error}", super::http::shown(url)),
        })?;
        Ok(Request::new(Method::GET, url))
    }

    fn get(&self, request: &Request, what: &str) -> Result<Answer<'_>, NetError> {
        let may = |_: &Url, next: &Url| ["http", "https"].contains(&next.scheme());
        let answer = self.http.follow(request, REDIRECTS, &may, &mut self.http.tries());
        let answer = answer.map_err(|source| NetError::Transfer { what: what.to_owned(), source })?.map_err(
            |detail| NetError::Redirect { what: what.to_owned(), detail: format!("the server {detail}") },
        )?;
        match answer.status() {
            status if status.is_success() => Ok(answer),
            status => Err(NetError::Status { what: what.to_owned(), status }),
        }
    }
}

/// Reads `count` bytes that are here already, from a server that does not begin in the middle.
pub(super) fn skip(answer: &mut Answer<'_>, count: u64) -> Result<(), Broken> {
    match std::io::copy(&mut answer.take(count), &mut std::io::sink()) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.downcast::<Broken>().expect("answers have no other errors")),
    }
}

fn receive(mut body: Transfer<'_>, path: &Path, progress: &dyn Fn(u64)) -> Result<(u64, String), NetError> {
    let write = |source| NetError::Write { path: path.to_owned(), source };
    let mut file = File::create(path).map_err(write)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        let count = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.downcast::<NetError>().unwrap_or_else(write)),
        };
        hasher.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(write)?;
        size += count as u64;
        progress(count as u64);
    }
    Ok((size, hex(&hasher.finalize())))
}
