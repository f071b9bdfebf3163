//! Reading blobs, whole and in parts.

use std::io::Read;

use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use reqwest::{Method, StatusCode};

use super::Registry;
use super::auth::Action;
use crate::net::client::skip;
use crate::net::error::NetError;
use crate::net::http::{Answer, Request};
use crate::net::transfer::Transfer;
use crate::share::{Digest, RemoteError};

impl Registry {
    pub(super) fn head_blob(&self, digest: &Digest, size: u64) -> Result<bool, RemoteError> {
        let doing = format!("look for blob {digest}");
        let request = Request::new(Method::HEAD, self.url(&format!("blobs/{digest}"))?);
        let answer = self.call(&request, &Action::Pull, &doing)?;
        let is_own = answer.url().origin() == request.url.origin();
        match answer.status() {
            StatusCode::OK => {
                let length = answer.header(&CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
                Ok(length == Some(size))
            }
            StatusCode::NOT_FOUND => Ok(false),
            // Where it redirects to may not answer this method; then it is not known to be there.
            _ if !is_own => Ok(false),
            _ => Err(self.refused(answer, &doing).into()),
        }
    }

    pub(super) fn read_blob<'a>(
        &'a self,
        digest: &Digest,
        size: u64,
        from: u64,
    ) -> Result<Box<dyn Read + Send + 'a>, RemoteError> {
        let digest = *digest;
        let doing = format!("fetch blob {digest}");
        let answer = match self.open_blob(&digest, from, &doing)? {
            Some(answer) => answer,
            None => return Err(self.absent(format!("blob {digest}"))),
        };
        let broke = {
            let doing = doing.clone();
            move |error| self.broken(&doing, error)
        };
        let again = move |at| match self.open_blob(&digest, at, &doing)? {
            Some(answer) => Ok(answer),
            None => Err(self.strange(&doing, "no longer has it".to_owned())),
        };
        let transfer = Transfer::new(answer, from, self.http.tries(), again, broke);
        // One byte more shows that it is too long.
        Ok(Box::new(transfer.take(size.saturating_sub(from) + 1)))
    }

    /// Opens a blob from a byte on; `None` if it is not there.
    fn open_blob(&self, digest: &Digest, from: u64, doing: &str) -> Result<Option<Answer<'_>>, NetError> {
        let mut request = Request::new(Method::GET, self.url(&format!("blobs/{digest}"))?);
        if from > 0 {
            request = request.header(RANGE, &format!("bytes={from}-"));
        }
        let mut answer = self.call(&request, &Action::Pull, doing)?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::OK => {
                skip(&mut answer, from).map_err(|error| self.broken(doing, error))?;
                Ok(Some(answer))
            }
            StatusCode::PARTIAL_CONTENT if from > 0 => match range(&answer) {
                Some((start, _)) if start == from => Ok(Some(answer)),
                _ => Err(self.strange(doing, "gives another part than the one asked for".to_owned())),
            },
            _ => Err(self.refused(answer, doing)),
        }
    }

    pub(super) fn read_part(
        &self,
        digest: &Digest,
        offset: u64,
        length: u64,
    ) -> Result<Option<Vec<u8>>, RemoteError> {
        if length == 0 {
            return Ok(Some(vec![]));
        }
        let doing = format!("fetch a part of blob {digest}");
        let corrupt = |detail: &str| self.corrupt(format!("blob {digest}"), detail.to_owned());
        let last = offset.checked_add(length - 1).ok_or_else(|| corrupt("cannot be so large"))?;
        let request = Request::new(Method::GET, self.url(&format!("blobs/{digest}"))?)
            .header(RANGE, &format!("bytes={offset}-{last}"));
        let mut tries = self.http.tries();
        loop {
            let answer = self.call(&request, &Action::Pull, &doing)?;
            match answer.status() {
                StatusCode::OK => return Ok(None),
                StatusCode::NOT_FOUND => return Err(self.absent(format!("blob {digest}"))),
                StatusCode::RANGE_NOT_SATISFIABLE => {
                    return Err(corrupt("is shorter than its manifest says"));
                }
                StatusCode::PARTIAL_CONTENT => {}
                _ => return Err(self.refused(answer, &doing).into()),
            }
            match range(&answer) {
                Some((start, end)) if start == offset && end == last => {}
                Some((start, end)) if start == offset && end < last => {
                    return Err(corrupt("is shorter than its manifest says"));
                }
                _ => {
                    let detail = "gives another part than the one asked for".to_owned();
                    return Err(self.strange(&doing, detail).into());
                }
            }
            match answer.bytes(length) {
                Ok(bytes) if bytes.len() as u64 == length => return Ok(Some(bytes)),
                Ok(_) => return Err(corrupt("gives fewer bytes than it says")),
                Err(error) if error.is_transient() && tries.pause(None) => {}
                Err(error) => return Err(self.broken(&doing, error).into()),
            }
        }
    }
}

/// Reads `Content-Range: bytes FIRST-LAST/ALL`.
fn range(answer: &Answer<'_>) -> Option<(u64, u64)> {
    let (range, _) = answer.header(&CONTENT_RANGE)?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}
