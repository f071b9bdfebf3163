//! What decides how this machine speaks to others, judged before anything is sent.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use reqwest::{Certificate, NoProxy, Proxy, Url};

use super::error::NetError;

/// What decides how this machine speaks to others.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// Whether every request fails.
    pub offline: bool,
    /// Authorities to trust besides the usual ones: a file of certificates, and what named it.
    pub ca_file: Option<(PathBuf, String)>,
    /// Authorities to trust instead of the usual ones (`SSL_CERT_FILE`).
    pub cert_file: Option<PathBuf>,
    /// A directory of such (`SSL_CERT_DIR`).
    pub cert_dir: Option<PathBuf>,
    /// The proxies.
    pub proxy: ProxySettings,
    /// Hosts (`HOST:PORT`) that are spoken to without TLS.
    pub plain_http: Vec<String>,
    /// What all time limits and waits are multiplied by.
    pub patience: f64,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            offline: false,
            ca_file: None,
            cert_file: None,
            cert_dir: None,
            proxy: ProxySettings::default(),
            plain_http: vec![],
            patience: 1.0,
        }
    }
}

/// Proxies, each a URL.
#[derive(Clone, Default)]
pub struct ProxySettings {
    /// For `http:`.
    pub http: Option<String>,
    /// For `https:`.
    pub https: Option<String>,
    /// For both, where the other is not given.
    pub all: Option<String>,
    /// Hosts that are reached without one.
    pub none: Option<String>,
}

/// They may hold passwords.
impl fmt::Debug for ProxySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxySettings").field("none", &self.none).finish_non_exhaustive()
    }
}

/// Which certificates are trusted.
pub(super) enum Authorities {
    /// Those of the system, and these.
    AlsoTrust(Vec<Certificate>),
    /// These and no others.
    TrustOnly(Vec<Certificate>),
}

impl HttpSettings {
    /// Reads the certificates that the settings name.
    pub(super) fn authorities(&self) -> Result<Authorities, NetError> {
        let own = match &self.ca_file {
            Some((path, name)) => certificates(path, name)?,
            None => vec![],
        };
        let mut instead = vec![];
        if let Some(path) = &self.cert_file {
            instead.extend(certificates(path, "SSL_CERT_FILE")?);
        }
        if let Some(path) = &self.cert_dir {
            instead.extend(certificates_below(path)?);
        }
        if instead.is_empty() {
            return Ok(Authorities::AlsoTrust(own));
        }
        instead.extend(own);
        Ok(Authorities::TrustOnly(instead))
    }
}

impl ProxySettings {
    /// Makes the proxies. This machine is never reached by one.
    pub(super) fn proxies(&self) -> Result<Vec<Proxy>, NetError> {
        let none = format!("localhost,127.0.0.0/8,::1,{}", self.none.as_deref().unwrap_or_default());
        let mut made = vec![];
        for (name, value, make) in [
            ("HTTP_PROXY", self.http.as_ref().or(self.all.as_ref()), Proxy::http::<Url> as fn(Url) -> _),
            ("HTTPS_PROXY", self.https.as_ref().or(self.all.as_ref()), Proxy::https::<Url>),
        ] {
            let Some(value) = value else { continue };
            // The value may hold a password.
            let wrong = |detail: &str| NetError::Setting { name: name.to_owned(), detail: detail.to_owned() };
            let text = if value.contains("://") { value.clone() } else { format!("http://{value}") };
            let url = Url::parse(&text).map_err(|error| wrong(&format!("it is no URL: {error}")))?;
            if !["http", "https"].contains(&url.scheme()) {
                return Err(wrong(&format!(
                    "proxies by `{}` are not spoken to, only by http and https",
                    url.scheme()
                )));
            }
            let proxy = make(url).map_err(|_| wrong("it is no URL of a proxy"))?;
            made.push(proxy.no_proxy(NoProxy::from_string(&none)));
        }
        Ok(made)
    }
}

/// Reads a file of certificates, at least one.
fn certificates(path: &Path, name: &str) -> Result<Vec<Certificate>, NetError> {
    let wrong = |detail: String| NetError::Setting { name: format!("{name} ({})", path.display()), detail };
    match read_certificates(path).map_err(wrong)? {
        found if found.is_empty() => Err(wrong("it holds no certificate".to_owned())),
        found => Ok(found),
    }
}

/// Reads the certificates of a directory; files that hold none may lie there too.
fn certificates_below(directory: &Path) -> Result<Vec<Certificate>, NetError> {
    let wrong = |detail: String| NetError::Setting {
        name: format!("SSL_CERT_DIR ({})", directory.display()),
        detail,
    };
    let entries = fs::read_dir(directory).map_err(|error| wrong(error.to_string()))?;
    let mut found = vec![];
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
        let more = read_certificates(&path);
        found.extend(more.map_err(|error| wrong(format!("{}: {error}", path.display())))?);
    }
    match found.is_empty() {
        true => Err(wrong("it holds no certificate".to_owned())),
        false => Ok(found),
    }
}

fn read_certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    Certificate::from_pem_bundle(&text).map_err(|error| crate::error::chain(&error))
}
