//! One set-up of HTTP for everything: certificates, proxies, time limits, tries, redirects.
//!
//! Requests are asynchronous inside, for the time limits that the blocking client lacks; outside, everything waits.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::{Method, StatusCode, Url};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::error::{Broken, NetError};
use super::retry::{Retry, is_transient, retry_after};
use super::settings::{Authorities, HttpSettings};

/// A connection is not waited for longer.
const CONNECT: Duration = Duration::from_secs(30);
/// A transfer in which fewer than [`LEAST`] bytes come in this time has stalled.
const STALL: Duration = Duration::from_secs(30);
/// See [`STALL`].
const LEAST: u64 = 1024;
/// A server that takes none of a body for so long has stalled: buffers on the way are large.
const STALLED_UPLOAD: Duration = Duration::from_secs(120);
/// An answer is not waited for longer, where nothing else is said.
const ANSWER: Duration = Duration::from_secs(60);
/// Bodies are sent in pieces of so many bytes.
const PIECE: u64 = 64 << 10;

/// A set-up that is ready.
#[derive(Debug)]
pub struct Http {
    runtime: Runtime,
    client: reqwest::Client,
    settings: HttpSettings,
}

/// What is asked of a server.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Payload,
    /// How long an answer may take after everything was sent.
    pub(super) answer_within: Duration,
}

/// What goes with a request, which may have to be sent again.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    /// Nothing.
    None,
    /// These bytes.
    Bytes(Vec<u8>),
    /// A part of a file.
    Part { file: Arc<File>, offset: u64, length: u64 },
}

impl Request {
    pub(super) fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Payload::None, answer_within: ANSWER }
    }

    pub(super) fn header(mut self, name: HeaderName, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("headers are made of what was parsed before");
        self.headers.insert(name, value);
        self
    }
}

impl Http {
    /// Prepares; whatever of the settings cannot be used is an error.
    pub fn new(settings: HttpSettings) -> Result<Self, NetError> {
        let broken = |source: reqwest::Error| NetError::Transfer {
            what: "anything".to_owned(),
            source: source.into(),
        };
        // One provider for the process; that somebody set one before is no error.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("infradev/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT.mul_f64(settings.patience))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        builder = match settings.authorities()? {
            Authorities::AlsoTrust(also) => builder.tls_certs_merge(also),
            Authorities::TrustOnly(only) => builder.tls_certs_only(only),
        };
        for proxy in settings.proxy.proxies()? {
            builder = builder.proxy(proxy);
        }
        let client = builder.build().map_err(broken)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("net").enable_all().build();
        let runtime = runtime.map_err(|error| NetError::Setting {
            name: "the network".to_owned(),
            detail: format!("no thread can be started: {error}"),
        })?;
        Ok(Self { runtime, client, settings })
    }

    pub(super) fn settings(&self) -> &HttpSettings {
        &self.settings
    }

    /// The tries of a new request.
    pub(super) fn tries(&self) -> Retry {
        Retry::new(self.settings.patience)
    }

    /// Sends a request once. `progress` hears of the bytes of its body that went over.
    pub(super) fn send(&self, request: &Request, progress: &dyn Fn(u64)) -> Result<Answer<'_>, Broken> {
        let sent = Arc::new(AtomicU64::new(0));
        let mut builder =
            self.client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        let length = request.body.length();
        if length > 0 || !matches!(request.method, Method::GET | Method::HEAD | Method::DELETE) {
            builder = builder.header(CONTENT_LENGTH, length).body(request.body.stream(&sent));
        }
        let patient = |limit: Duration| limit.mul_f64(self.settings.patience);
        let tick = Duration::from_millis(100);
        self.runtime.block_on(async {
            let mut answer = pin!(builder.send());
            let (mut seen, mut quiet) = (0, Duration::ZERO);
            loop {
                let waited = timeout(tick, answer.as_mut()).await;
                let now = sent.load(Ordering::Relaxed);
                if now > seen {
                    progress(now - seen);
                    (seen, quiet) = (now, Duration::ZERO);
                } else {
                    quiet += tick;
                }
                if let Ok(answer) = waited {
                    return Ok(Answer::new(self, answer?));
                }
                let limit = if seen < length { STALLED_UPLOAD } else { request.answer_within };
                if quiet > patient(limit) {
                    return Err(Broken::Silent { seconds: quiet.as_secs() });
                }
            }
        })
    }

    /// Sends a request until it is answered by something that will not change soon.
    pub(super) fn fetch(&self, request: &Request, tries: &mut Retry) -> Result<Answer<'_>, Broken> {
        loop {
            match self.send(request, &|_| {}) {
                Ok(answer) if is_transient(answer.status()) && tries.pause(answer.retry_after()) => {}
                Err(error) if error.is_transient() && tries.pause(None) => {}
                other => return other,
            }
        }
    }

    /// Fetches, and follows redirects that `may` lead from one URL to another, at most `most`. What authorises
    /// a request stays with its host.
    pub(super) fn follow(
        &self,
        request: &Request,
        most: usize,
        may: &dyn Fn(&Url, &Url) -> bool,
        tries: &mut Retry,
    ) -> Result<Result<Answer<'_>, String>, Broken> {
        let mut request = request.clone();
        for _ in 0..=most {
            let answer = self.fetch(&request, tries)?;
            let is_redirect = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = answer.header(&LOCATION).filter(|_| is_redirect) else {
                return Ok(Ok(answer));
            };
            let next = match request.url.join(location) {
                Ok(next) if may(&request.url, &next) => next,
                _ => return Ok(Err(format!("redirects to {}, which is not followed", shown(location)))),
            };
            if next.origin() != request.url.origin() {
                request.headers.remove(AUTHORIZATION);
            }
            request.url = next;
        }
        Ok(Err(format!("redirects more than {most} times")))
    }
}

impl Payload {
    fn length(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Part { length, .. } => *length,
        }
    }

    /// Makes a body of it; `sent` counts what the connection took.
    fn stream(&self, sent: &Arc<AtomicU64>) -> reqwest::Body {
        let (payload, sent, length) = (self.clone(), Arc::clone(sent), self.length());
        let pieces = (0..length.div_ceil(PIECE)).map(move |number| -> io::Result<Vec<u8>> {
            let at = number * PIECE;
            let size = PIECE.min(length - at) as usize;
            let piece = match &payload {
                Self::None => vec![],
                Self::Bytes(bytes) => bytes[at as usize..at as usize + size].to_vec(),
                Self::Part { file, offset, .. } => {
                    let mut piece = vec![0; size];
                    file.read_exact_at(&mut piece, offset + at)?;
                    piece
                }
            };
            sent.fetch_add(size as u64, Ordering::Relaxed);
            Ok(piece)
        });
        match length {
            0 => reqwest::Body::from(vec![]),
            _ => reqwest::Body::wrap_stream(futures_util::stream::iter(pieces)),
        }
    }
}

/// An answer, whose body is read as it comes. Its errors of reading hold a [`Broken`].
pub(super) struct Answer<'h> {
    http: &'h Http,
    response: reqwest::Response,
    buffer: io::Cursor<Vec<u8>>,
    /// How long the bytes of the current window were waited for, and how many there are.
    waited: Duration,
    came: u64,
}

impl<'h> Answer<'h> {
    fn new(http: &'h Http, response: reqwest::Response) -> Self {
        Self { http, response, buffer: io::Cursor::default(), waited: Duration::ZERO, came: 0 }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(super) fn url(&self) -> &Url {
        self.response.url()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// A header that is text.
    pub(super) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        retry_after(self.header(&RETRY_AFTER)?, SystemTime::now())
    }

    /// Reads all of it, which may be at most `most` bytes.
    pub(super) fn bytes(mut self, most: u64) -> Result<Vec<u8>, Broken> {
        let mut bytes = vec![];
        while let Some(chunk) = self.chunk()? {
            bytes.extend(chunk);
            if bytes.len() as u64 > most {
                return Err(Broken::TooLong { most });
            }
        }
        Ok(bytes)
    }

    /// Waits for more of the body. Only waiting counts for a stall, not what the caller does in between.
    fn chunk(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        let window = STALL.mul_f64(self.http.settings.patience);
        loop {
            let began = std::time::Instant::now();
            let left = window.saturating_sub(self.waited);
            let waited = self.http.runtime.block_on(async { timeout(left, self.response.chunk()).await });
            self.waited += began.elapsed();
            let chunk = waited.ok().transpose()?;
            self.came += chunk.as_ref().and_then(Option::as_ref).map_or(0, |chunk| chunk.len() as u64);
            if self.waited >= window {
                let ended = matches!(chunk, Some(None));
                if self.came < LEAST && !ended {
                    return Err(Broken::Stalled { came: self.came, seconds: self.waited.as_secs() });
                }
                (self.waited, self.came) = (Duration::ZERO, 0);
            }
            if let Some(chunk) = chunk {
                return Ok(chunk.map(|chunk| chunk.to_vec()));
            }
        }
    }
}

impl Read for Answer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.buffer.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match self.chunk().map_err(io::Error::other)? {
                Some(chunk) => self.buffer = io::Cursor::new(chunk),
                None => return Ok(0),
            }
        }
    }
}

/// A text from elsewhere, as it may be shown: short, without its query, and of printable characters.
pub(super) fn shown(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    text.chars().filter(|character| !character.is_control()).take(200).collect()
}
