//! Uploading blobs, going on where a connection broke (OCI distribution specification, "Pushing a blob in chunks").

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderName, LOCATION, RANGE};
use reqwest::{Method, StatusCode, Url};

use super::Registry;
use super::auth::Action;
use crate::net::error::NetError;
use crate::net::http::{Answer, Payload, Request, shown};
use crate::net::retry::{Retry, is_transient};
use crate::share::{Digest, RemoteError};

/// A request carries so many bytes: what a broken one loses at most.
const CHUNK: u64 = 32 << 20;
/// A registry may ask for more, up to this.
const MAX_CHUNK: u64 = 512 << 20;
/// How often an upload begins anew.
const SESSIONS: usize = 4;
/// A registry may hash or move all of a blob before it answers.
const COMMIT: Duration = Duration::from_secs(600);
const CHUNK_MIN: HeaderName = HeaderName::from_static("oci-chunk-min-length");

/// An upload that is under way.
struct Session {
    url: Url,
    /// How much the registry has.
    offset: u64,
    chunk: u64,
}

/// How a try to upload ended.
enum Ended {
    Done,
    /// The registry no longer knows the upload.
    Lost,
}

/// What a blob is uploaded from.
struct Content<'a> {
    digest: &'a Digest,
    size: u64,
    file: Arc<File>,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Registry {
    pub(super) fn upload(
        &self,
        digest: &Digest,
        size: u64,
        content: &mut File,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), RemoteError> {
        let doing = format!("upload blob {digest}");
        let file = content.try_clone().map_err(|source| RemoteError::Io {
            action: "read",
            path: format!("blob {digest}").into(),
            source,
        })?;
        let content = Content { digest, size, file: Arc::new(file), progress };
        for _ in 0..SESSIONS {
            let mut session = self.begin(&doing)?;
            match self.feed(&mut session, &content, &doing)? {
                Ended::Done => return Ok(()),
                Ended::Lost => {}
            }
        }
        Err(self.strange(&doing, format!("lost the upload {SESSIONS} times")).into())
    }

    pub(super) fn mount(&self, digest: &Digest, from: &str) -> Result<bool, RemoteError> {
        let Some(from) = from.strip_prefix(&self.host).and_then(|from| from.strip_prefix('/')) else {
            return Ok(false);
        };
        let doing = format!("take blob {digest} from {from}");
        let mut url = self.url("blobs/uploads/")?;
        url.query_pairs_mut().append_pair("mount", &digest.to_string()).append_pair("from", from);
        let action = Action::Mount(from.to_owned());
        let answer = match self.call(&Request::new(Method::POST, url), &action, &doing) {
            // No right to read the other repository: then it is uploaded.
            Err(NetError::Denied { .. }) => return Ok(false),
            answer => answer?,
        };
        match answer.status() {
            StatusCode::CREATED => Ok(true),
            StatusCode::ACCEPTED => {
                // An upload was begun instead, which nobody goes on with.
                if let Ok(url) = self.location(&answer, &doing) {
                    let cancel = Request::new(Method::DELETE, url);
                    let _ends_by_itself = self.call_once(&cancel, &Action::Push, &doing, &|_| {});
                }
                Ok(false)
            }
            status if status.is_client_error() => Ok(false),
            _ => Err(self.refused(answer, &doing).into()),
        }
    }

    /// Begins an upload.
    fn begin(&self, doing: &str) -> Result<Session, NetError> {
        let request = Request::new(Method::POST, self.url("blobs/uploads/")?);
        let answer = self.call(&request, &Action::Push, doing)?;
        if answer.status() != StatusCode::ACCEPTED {
            return Err(self.refused(answer, doing));
        }
        let least = answer.header(&CHUNK_MIN).and_then(|least| least.parse().ok()).unwrap_or(0);
        let chunk = CHUNK.max(least).min(MAX_CHUNK);
        Ok(Session { url: self.location(&answer, doing)?, offset: 0, chunk })
    }

    /// Sends what the registry does not have yet, and closes the upload.
    fn feed(&self, session: &mut Session, content: &Content<'_>, doing: &str) -> Result<Ended, NetError> {
        let mut tries = self.http.tries();
        // A registry may take less than a chunk at a time, but not for ever.
        let most = 32 + 4 * content.size.div_ceil(session.chunk);
        for _ in 0..most {
            let before = session.offset;
            let answer = if session.offset < content.size {
                self.send_chunk(session, content, doing)
            } else {
                self.close(session, content, doing)
            };
            let mut disagrees = false;
            let failed = match answer {
                Ok(answer) => match answer.status() {
                    StatusCode::CREATED if before == content.size => return Ok(Ended::Done),
                    StatusCode::ACCEPTED | StatusCode::NO_CONTENT | StatusCode::CREATED
                        if before < content.size =>
                    {
                        let sent = (before + session.chunk).min(content.size);
                        self.advance(session, &answer, sent, doing)?;
                        tries.reset();
                        continue;
                    }
                    StatusCode::NOT_FOUND => return Ok(Ended::Lost),
                    StatusCode::RANGE_NOT_SATISFIABLE => {
                        disagrees = true;
                        self.refused_with(answer, doing)
                    }
                    status if is_transient(status) => self.refused_with(answer, doing),
                    _ => return Err(self.refused(answer, doing)),
                },
                Err(NetError::Talk { source, .. }) if source.is_transient() => {
                    (self.broken(doing, source), None)
                }
                Err(error) => return Err(error),
            };
            let (error, asked) = failed;
            if !tries.pause(asked) {
                return Err(error);
            }
            // Closed all the same, it may be.
            if before == content.size && self.head_blob(content.digest, content.size).unwrap_or(false) {
                return Ok(Ended::Done);
            }
            if !self.ask_offset(session, content.size, doing, &mut tries)? {
                return Ok(Ended::Lost);
            }
            if session.offset > before {
                tries.reset();
            } else if disagrees && session.offset == before {
                // It does not take what it says that it wants.
                return Ok(Ended::Lost);
            }
        }
        Err(self.strange(doing, format!("took less than all of it by {most} requests")))
    }

    fn send_chunk(
        &self,
        session: &Session,
        content: &Content<'_>,
        doing: &str,
    ) -> Result<Answer<'_>, NetError> {
        let (offset, end) = (session.offset, (session.offset + session.chunk).min(content.size));
        let mut request = Request::new(Method::PATCH, session.url.clone())
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_RANGE, &format!("{offset}-{}", end - 1));
        request.body = Payload::Part { file: Arc::clone(&content.file), offset, length: end - offset };
        self.call_once(&request, &Action::Push, doing, &|count| (content.progress)(count))
    }

    fn close(&self, session: &Session, content: &Content<'_>, doing: &str) -> Result<Answer<'_>, NetError> {
        let mut url = session.url.clone();
        url.query_pairs_mut().append_pair("digest", &content.digest.to_string());
        let mut request = Request::new(Method::PUT, url).header(CONTENT_TYPE, "application/octet-stream");
        request.answer_within = COMMIT;
        self.call_once(&request, &Action::Push, doing, &|_| {})
    }

    /// Takes what an answer says about where the upload is, and where to go on with it.
    fn advance(
        &self,
        session: &mut Session,
        answer: &Answer<'_>,
        sent: u64,
        doing: &str,
    ) -> Result<(), NetError> {
        session.url = self.location(answer, doing)?;
        let has = match answer.header(&RANGE).and_then(received) {
            Some(0) if sent == 1 => 1,
            has => has.unwrap_or(sent),
        };
        // It may have less than was sent, never more.
        if has > sent || has <= session.offset {
            return Err(self.strange(doing, format!("says that it has {has} bytes of {sent}")));
        }
        session.offset = has;
        Ok(())
    }

    /// Asks how much of an upload the registry has; `false` if it does not know the upload, or does not say.
    fn ask_offset(
        &self,
        session: &mut Session,
        size: u64,
        doing: &str,
        tries: &mut Retry,
    ) -> Result<bool, NetError> {
        let request = Request::new(Method::GET, session.url.clone());
        loop {
            match self.call_once(&request, &Action::Push, doing, &|_| {}) {
                Ok(answer) if is_transient(answer.status()) => {
                    let (error, asked) = self.refused_with(answer, doing);
                    if !tries.pause(asked) {
                        return Err(error);
                    }
                }
                Ok(answer) if answer.status().is_success() => {
                    let Some(has) = answer.header(&RANGE).and_then(received) else { return Ok(false) };
                    if has > size {
                        return Ok(false);
                    }
                    if answer.header(&LOCATION).is_some() {
                        session.url = self.location(&answer, doing)?;
                    }
                    session.offset = has;
                    return Ok(true);
                }
                Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                    return Err(self.refused(answer, doing));
                }
                Ok(_) => return Ok(false),
                Err(NetError::Talk { source, .. }) if source.is_transient() && tries.pause(None) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes an error of an answer that may be another one soon, and says when that is.
    fn refused_with(&self, answer: Answer<'_>, doing: &str) -> (NetError, Option<Duration>) {
        let asked = answer.retry_after();
        (self.refused(answer, doing), asked)
    }

    /// Where an upload goes on. To another host nothing goes that authorises us; see [`Registry::call`].
    fn location(&self, answer: &Answer<'_>, doing: &str) -> Result<Url, NetError> {
        let location = answer.header(&LOCATION).unwrap_or_default();
        let url = answer.url().join(location).ok().filter(|_| !location.is_empty());
        let url = url.ok_or_else(|| self.strange(doing, "does not say where to upload to".to_owned()))?;
        match self.may_follow(&url) {
            true => Ok(url),
            false => {
                let detail = format!("wants the upload at {}, which is not safe", shown(location));
                Err(self.not_safe(doing, detail))
            }
        }
    }
}

/// Reads `Range: 0-LAST`, as the number of bytes. Registries say `0-0` of nothing; no chunk has one byte alone, unless
/// the blob has.
fn received(range: &str) -> Option<u64> {
    let range = range.trim();
    let (first, last) = range.strip_prefix("bytes=").unwrap_or(range).split_once('-')?;
    let last: u64 = last.parse().ok()?;
    (first == "0").then_some(if last == 0 { 0 } else { last.checked_add(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_say_how_much_is_there() {
        for (range, expected) in [
            ("0-0", Some(0)),
            ("0-1", Some(2)),
            ("bytes=0-99", Some(100)),
            ("1-2", None),
            ("0-", None),
            ("0--1", None),
            ("0-18446744073709551615", None),
        ] {
            assert_eq!(received(range), expected, "{range}");
        }
    }
}
