//! Authorisation: what a registry asks for in its `401`, and the tokens it sends us for (distribution specification,
//! "token authentication").
//!
//! Credentials belong to the registry's host. They go to it, and to the realm that it names, if that is spoken to by
//! TLS; nowhere else.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, Url};

use super::credentials::{Credentials, find};
use super::judge::said;
use super::{Registry, host_of};
use crate::net::error::NetError;
use crate::net::http::{Answer, Payload, Request, shown};

/// No answer of a realm is longer.
const MAX_TOKEN: u64 = 1 << 20;
/// A token of which nothing else is said is good for so long.
const TOKEN_LIFE: u64 = 60;

/// What a request does, and so what it needs the right to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Pull,
    Push,
    /// Push, with blobs of another repository.
    Mount(String),
    Delete,
}

/// What is known of a registry's authorisation so far.
#[derive(Debug, Default)]
pub(super) struct Auth {
    credentials: OnceLock<Option<Credentials>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    way: Way,
    tokens: HashMap<Action, Token>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Way {
    /// It asked for nothing yet.
    #[default]
    Open,
    Basic,
    Bearer {
        realm: Url,
        service: Option<String>,
    },
}

#[derive(Debug)]
struct Token {
    header: HeaderValue,
    until: Instant,
}

impl Action {
    fn scopes(&self, repository: &str) -> Vec<String> {
        let scope = |name: &str, rights: &str| format!("repository:{name}:{rights}");
        match self {
            Self::Pull => vec![scope(repository, "pull")],
            Self::Push => vec![scope(repository, "pull,push")],
            Self::Mount(from) => vec![scope(repository, "pull,push"), scope(from, "pull")],
            Self::Delete => vec![scope(repository, "delete,pull")],
        }
    }
}

impl Registry {
    /// Returns what to send with a request, as far as the registry asked for something.
    pub(super) fn authorisation(
        &self,
        action: &Action,
        doing: &str,
    ) -> Result<Option<HeaderValue>, NetError> {
        let mut state = self.auth.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { way, tokens } = &mut *state;
        match way {
            Way::Open => Ok(None),
            Way::Basic => Ok(self.credentials()?.and_then(Credentials::basic)),
            Way::Bearer { realm, service } => {
                if let Some(token) = tokens.get(action).filter(|token| token.until > Instant::now()) {
                    return Ok(Some(token.header.clone()));
                }
                // Others wait here, and find the token.
                let token = self.token(realm, service.as_deref(), action, doing)?;
                let header = token.header.clone();
                tokens.insert(action.clone(), token);
                Ok(Some(header))
            }
        }
    }

    /// Learns from a `401` to a request that was sent with `rejected`; says whether there is something else to send.
    pub(super) fn learn(
        &self,
        answer: &Answer<'_>,
        action: &Action,
        rejected: Option<&HeaderValue>,
        doing: &str,
    ) -> Result<bool, NetError> {
        let way = self.wanted(answer, doing)?;
        let mut state = self.auth.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &way {
            Way::Open => return Ok(false),
            Way::Basic => {
                let header = self.credentials()?.and_then(Credentials::basic);
                state.way = way;
                return Ok(header.is_some() && header.as_ref() != rejected);
            }
            Way::Bearer { .. } => {}
        }
        if state.way != way {
            *state = State { way, tokens: HashMap::new() };
        }
        // Another thread may have a newer one already.
        if state.tokens.get(action).is_some_and(|token| Some(&token.header) == rejected) {
            state.tokens.remove(action);
        }
        Ok(true)
    }

    pub(super) fn has_credentials(&self) -> bool {
        self.auth.credentials.get().is_some_and(Option::is_some)
    }

    /// The credentials for this repository, looked for when a registry first asks.
    fn credentials(&self) -> Result<Option<&Credentials>, NetError> {
        if let Some(found) = self.auth.credentials.get() {
            return Ok(found.as_ref());
        }
        let found = find(&self.auth_files, &self.host, &self.api, &self.repository)?;
        Ok(self.auth.credentials.get_or_init(|| found).as_ref())
    }

    /// Reads what a registry asks for. A realm is judged before anything else happens.
    fn wanted(&self, answer: &Answer<'_>, doing: &str) -> Result<Way, NetError> {
        let mut basic = false;
        for header in answer.headers().get_all(WWW_AUTHENTICATE) {
            let Some(challenges) =
                header.to_str().ok().and_then(|text| http_auth::parse_challenges(text).ok())
            else {
                continue;
            };
            for challenge in challenges {
                let parameter = |name: &str| {
                    let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.to_unescaped())
                };
                if challenge.scheme.eq_ignore_ascii_case("bearer") {
                    let realm = parameter("realm").unwrap_or_default();
                    let refused = || {
                        let detail =
                            format!("sends us for a token to `{}`, which is not safe", shown(&realm));
                        self.not_safe(doing, detail)
                    };
                    let realm = Url::parse(&realm).ok().filter(|realm| self.is_safe_realm(realm));
                    return Ok(Way::Bearer {
                        realm: realm.ok_or_else(refused)?,
                        service: parameter("service"),
                    });
                }
                basic |= challenge.scheme.eq_ignore_ascii_case("basic");
            }
        }
        Ok(if basic { Way::Basic } else { Way::Open })
    }

    /// Whether credentials may go to a realm. Without TLS only if they would go to the registry itself without it, or
    /// if the realm's host is listed.
    fn is_safe_realm(&self, realm: &Url) -> bool {
        let Some(base) = self.base.get() else { return false };
        let is_safe = match realm.scheme() {
            "https" => true,
            "http" => {
                base.scheme() == "http"
                    && (base.origin() == realm.origin() || self.may_be_plain(&host_of(realm)))
            }
            _ => false,
        };
        is_safe && realm.has_host() && realm.username().is_empty() && realm.password().is_none()
    }

    /// Asks a realm for a token.
    fn token(
        &self,
        realm: &Url,
        service: Option<&str>,
        action: &Action,
        doing: &str,
    ) -> Result<Token, NetError> {
        let credentials = self.credentials()?;
        let scopes = action.scopes(&self.repository);
        let mut url = realm.clone();
        let mut request = match credentials {
            Some(Credentials::Identity(token)) => {
                let scopes = scopes.join(" ");
                let mut fields = vec![
                    ("grant_type", "refresh_token"),
                    ("client_id", "infradev"),
                    ("scope", &scopes),
                    ("refresh_token", token),
                ];
                fields.extend(service.map(|service| ("service", service)));
                let mut form = Url::parse("form:").expect("a URL");
                form.query_pairs_mut().extend_pairs(fields);
                let mut request =
                    Request::new(Method::POST, url).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
                request.body = Payload::Bytes(form.query().unwrap_or_default().as_bytes().to_vec());
                request
            }
            _ => {
                let scopes = scopes.iter().map(|scope| ("scope", &**scope));
                let fields = service.map(|service| ("service", service)).into_iter().chain(scopes);
                url.query_pairs_mut().extend_pairs(fields);
                Request::new(Method::GET, url)
            }
        };
        if let Some(basic) = credentials.and_then(Credentials::basic) {
            request.headers.insert(AUTHORIZATION, basic);
        }
        let host = host_of(realm);
        let asked = Instant::now();
        let answer = self.http.fetch(&request, &mut self.http.tries());
        let failed = |source: crate::net::Broken| NetError::Talk {
            host: host.clone(),
            doing: format!("get a token for {}", self.host),
            source: source.without_url(),
        };
        let answer = answer.map_err(failed)?;
        let status = answer.status();
        if !status.is_success() {
            let known = credentials.is_some();
            let said = said(answer);
            let doing = doing.to_owned();
            return Err(match status.as_u16() {
                400 | 401 | 403 => NetError::Denied { host, doing, status, said, known },
                _ => {
                    NetError::Refused { host, doing: format!("get a token for {}", self.host), status, said }
                }
            });
        }
        let strange = |detail: &str| NetError::Strange {
            host: host.clone(),
            doing: format!("get a token for {}", self.host),
            detail: detail.to_owned(),
        };
        let text = answer.bytes(MAX_TOKEN).map_err(failed)?;
        let text: serde_json::Value =
            serde_json::from_slice(&text).map_err(|_| strange("gives something that is no JSON"))?;
        let token = text["token"].as_str().or(text["access_token"].as_str());
        let token = token.filter(|token| !token.is_empty()).ok_or_else(|| strange("gives none"))?;
        let header = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut header = header.map_err(|_| strange("gives one that cannot be sent"))?;
        header.set_sensitive(true);
        // A little before it ends, and no longer than a day, so that sums do not overflow.
        let life = text["expires_in"].as_u64().unwrap_or(TOKEN_LIFE).clamp(10, 86_400);
        Ok(Token { header, until: asked + Duration::from_secs(life * 9 / 10) })
    }
}
