//! One request to a registry, with what it needs around it: a scheme, authorisation, redirects, more tries.

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION};
use reqwest::{Method, StatusCode, Url};

use super::auth::Action;
use super::{Registry, host_of, is_loopback};
use crate::net::error::{Broken, NetError};
use crate::net::http::{Answer, Request};

/// How many redirects are followed.
const REDIRECTS: usize = 5;

impl Registry {
    /// Where the API begins. TLS, but for hosts that are listed as plain, and for this machine if it speaks none.
    pub(super) fn base(&self) -> Result<&Url, NetError> {
        if let Some(base) = self.base.get() {
            return Ok(base);
        }
        let doing = "speak to the registry";
        if self.http.settings().offline {
            return Err(NetError::Offline { what: format!("what is asked of {}", self.host) });
        }
        let base = |scheme: &str| {
            Url::parse(&format!("{scheme}://{}/", self.api))
                .map_err(|error| self.strange(doing, format!("is no host: {error}")))
        };
        let plain = base("http")?;
        let is_plain = self.may_be_plain(&self.host) || is_loopback(&self.api) && self.answers(&plain)?;
        let base = if is_plain { plain } else { base("https")? };
        Ok(self.base.get_or_init(|| base))
    }

    /// Whether a registry of this machine speaks without TLS. One that does not answers with an alert, or with
    /// `400 Bad Request`. No credentials are sent.
    fn answers(&self, plain: &Url) -> Result<bool, NetError> {
        let url = plain.join("v2/").expect("a plain path");
        let mut tries = self.http.tries();
        loop {
            match self.http.send(&Request::new(Method::GET, url.clone()), &|_| {}) {
                Ok(answer) => return Ok(answer.status() != StatusCode::BAD_REQUEST),
                Err(Broken::Http(error)) if !error.is_connect() => return Ok(false),
                Err(_) if tries.pause(None) => {}
                Err(error) => return Err(self.broken("speak to the registry", error)),
            }
        }
    }

    /// Asks the registry until it gives an answer that will not change soon.
    pub(super) fn call(
        &self,
        request: &Request,
        action: &Action,
        doing: &str,
    ) -> Result<Answer<'_>, NetError> {
        let send = |request: &Request| {
            let mut tries = self.http.tries();
            if !matches!(request.method, Method::GET | Method::HEAD) {
                return self.http.fetch(request, &mut tries).map_err(|error| self.broken(doing, error));
            }
            let may = |_: &Url, next: &Url| self.may_follow(next);
            let followed = self.http.follow(request, REDIRECTS, &may, &mut tries);
            followed
                .map_err(|error| self.broken(doing, error))?
                .map_err(|detail| self.not_safe(doing, detail))
        };
        self.authorised(request, action, doing, send)
    }

    /// Sends a request once: what comes of it is for the caller to judge. Only authorisation is renewed.
    pub(super) fn call_once(
        &self,
        request: &Request,
        action: &Action,
        doing: &str,
        progress: &dyn Fn(u64),
    ) -> Result<Answer<'_>, NetError> {
        let send =
            |request: &Request| self.http.send(request, progress).map_err(|error| self.broken(doing, error));
        self.authorised(request, action, doing, send)
    }

    /// Sends a request with what authorises it, and once more with something newer if the registry asks for that.
    fn authorised<'a>(
        &'a self,
        request: &Request,
        action: &Action,
        doing: &str,
        send: impl Fn(&Request) -> Result<Answer<'a>, NetError>,
    ) -> Result<Answer<'a>, NetError> {
        let is_own = request.url.origin() == self.base()?.origin();
        let mut request = request.clone();
        // What is transferred is what is hashed.
        request.headers.insert(ACCEPT_ENCODING, "identity".parse().expect("a word"));
        let mut renewed = false;
        loop {
            let header = if is_own { self.authorisation(action, doing)? } else { None };
            match &header {
                Some(header) => request.headers.insert(AUTHORIZATION, header.clone()),
                None => request.headers.remove(AUTHORIZATION),
            };
            let answer = send(&request)?;
            let is_asked =
                answer.status() == StatusCode::UNAUTHORIZED && answer.url().origin() == self.base()?.origin();
            if !is_asked || !is_own || renewed {
                return Ok(answer);
            }
            if !self.learn(&answer, action, header.as_ref(), doing)? {
                return Ok(answer);
            }
            renewed = true;
        }
    }

    /// Whether a registry may lead to `next`: by TLS; without, only where it is itself spoken to so.
    pub(super) fn may_follow(&self, next: &Url) -> bool {
        let host = host_of(next);
        let plain = || self.base.get().is_some_and(|base| base.scheme() == "http");
        let is_safe = match next.scheme() {
            "https" => true,
            "http" => plain() && (is_loopback(&host) || self.may_be_plain(&host)),
            _ => false,
        };
        is_safe && next.username().is_empty() && next.password().is_none() && next.has_host()
    }

    pub(super) fn broken(&self, doing: &str, source: Broken) -> NetError {
        NetError::Talk { host: self.host.clone(), doing: doing.to_owned(), source: source.without_url() }
    }
}
