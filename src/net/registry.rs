//! One repository of a container registry (OCI distribution specification 1.1), as a [`Remote`].
//!
//! Everything that a registry says is judged before it is followed: where its credentials go, where it redirects to,
//! how long its answers are, what they hash to.

mod auth;
mod blob;
mod call;
mod credentials;
mod judge;
mod manifest;
mod referrers;
mod tags;
mod upload;

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use oci_client::Reference;
use reqwest::Url;

pub use credentials::AuthFile;

use self::auth::Auth;
use super::error::NetError;
use super::http::{Http, shown};
use crate::share::{Digest, RawManifest, Remote, RemoteError};

/// A repository.
#[derive(Debug)]
pub struct Registry {
    http: Arc<Http>,
    /// The registry as people name it.
    host: String,
    /// Where its API is, which differs for one registry.
    api: String,
    repository: String,
    auth_files: Vec<AuthFile>,
    auth: Auth,
    base: OnceLock<Url>,
    /// Whether it lists referrers itself.
    lists_referrers: OnceLock<bool>,
}

impl Registry {
    /// Takes `HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]`; returns the repository, and the tag or digest if one is given.
    /// A name without a host means what it means everywhere. Nothing is sent yet.
    pub fn open(
        http: Arc<Http>,
        text: &str,
        auth_files: Vec<AuthFile>,
    ) -> Result<(Self, Option<String>), NetError> {
        let wrong = |detail: String| NetError::Name { text: shown(text), detail };
        if text.contains("://") {
            return Err(wrong("leave the scheme out".to_owned()));
        }
        let reference: Reference = text.parse().map_err(|error| wrong(format!("{error}")))?;
        let given = match reference.digest() {
            Some(digest) => {
                Some(digest.parse::<Digest>().map_err(|error| wrong(error.to_string()))?.to_string())
            }
            // Without one, the parser takes a default that nobody asked for.
            None => {
                let last = text.rsplit('/').next().unwrap_or(text);
                reference.tag().filter(|_| last.contains(':')).map(str::to_owned)
            }
        };
        let registry = Self {
            http,
            host: reference.registry().to_owned(),
            api: reference.resolve_registry().to_owned(),
            repository: reference.repository().to_owned(),
            auth_files,
            auth: Auth::default(),
            base: OnceLock::new(),
            lists_referrers: OnceLock::new(),
        };
        Ok((registry, given))
    }

    /// A URL below the repository.
    fn url(&self, below: &str) -> Result<Url, NetError> {
        let base = self.base()?;
        let url = base.join(&format!("v2/{}/{below}", self.repository));
        url.map_err(|error| self.strange("ask", format!("has no such URL: {error}")))
    }

    /// Whether this registry may be spoken to without TLS.
    fn may_be_plain(&self, host: &str) -> bool {
        self.http.settings().plain_http.iter().any(|plain| plain == host)
    }

    fn strange(&self, doing: &str, detail: String) -> NetError {
        NetError::Strange { host: self.host.clone(), doing: doing.to_owned(), detail }
    }

    fn not_safe(&self, doing: &str, detail: String) -> NetError {
        NetError::Unsafe { host: self.host.clone(), doing: doing.to_owned(), detail }
    }

    fn corrupt(&self, what: String, detail: String) -> RemoteError {
        RemoteError::Corrupt { place: self.name(), what, detail }
    }

    fn absent(&self, what: String) -> RemoteError {
        RemoteError::Absent { place: self.name(), what }
    }
}

impl Remote for Registry {
    fn name(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    fn has_blob(&self, digest: &Digest, size: u64) -> Result<bool, RemoteError> {
        self.head_blob(digest, size)
    }

    fn mount_blob(&self, digest: &Digest, from: &str) -> Result<bool, RemoteError> {
        self.mount(digest, from)
    }

    fn put_blob(
        &self,
        digest: &Digest,
        size: u64,
        content: &mut File,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), RemoteError> {
        self.upload(digest, size, content, progress)
    }

    fn blob<'a>(
        &'a self,
        digest: &Digest,
        size: u64,
        from: u64,
    ) -> Result<Box<dyn Read + Send + 'a>, RemoteError> {
        self.read_blob(digest, size, from)
    }

    fn blob_part(&self, digest: &Digest, offset: u64, length: u64) -> Result<Option<Vec<u8>>, RemoteError> {
        self.read_part(digest, offset, length)
    }

    fn manifest(&self, reference: &str) -> Result<Option<RawManifest>, RemoteError> {
        self.get_manifest(reference)
    }

    fn put_manifest(&self, reference: &str, media_type: &str, bytes: &[u8]) -> Result<(), RemoteError> {
        self.store_manifest(reference, media_type, bytes)
    }

    fn referrers(&self, digest: &Digest, artifact_type: &str) -> Result<Vec<Digest>, RemoteError> {
        self.list_referrers(digest, artifact_type)
    }

    fn add_referrer(
        &self,
        subject: &Digest,
        manifest: &RawManifest,
        artifact_type: &str,
    ) -> Result<(), RemoteError> {
        self.list_as_referrer(subject, manifest, artifact_type)
    }

    fn tags(&self) -> Result<Vec<String>, RemoteError> {
        self.list_tags()
    }

    fn remove_manifest(&self, digest: &Digest) -> Result<bool, RemoteError> {
        self.delete_manifest(digest)
    }
}

/// Whether a host, with or without a port, is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    name == "localhost"
        || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The host of a URL with its port, as registries are named.
fn host_of(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::HttpSettings;

    fn open(text: &str) -> Result<(String, Option<String>), NetError> {
        let http = Arc::new(Http::new(HttpSettings::default()).unwrap());
        Registry::open(http, text, vec![]).map(|(registry, given)| (registry.name(), given))
    }

    #[test]
    fn names_are_read_as_everywhere() {
        let digest = Digest::of(b"").to_string();
        for (text, name, given) in [
            ("r.example/a/b", "r.example/a/b", None),
            ("r.example:5000/a", "r.example:5000/a", None),
            ("r.example:5000/a:v1", "r.example:5000/a", Some("v1")),
            (&format!("r.example/a:v1@{digest}"), "r.example/a", Some(&*digest)),
            ("localhost:80/a:latest", "localhost:80/a", Some("latest")),
        ] {
            assert_eq!(open(text).unwrap(), (name.to_owned(), given.map(str::to_owned)), "{text}");
        }
        let (short, given) = open("ubuntu").unwrap();
        assert!(short.ends_with("/library/ubuntu") && given.is_none(), "{short}");
        for bad in [
            "",
            "https://r.example/a",
            "r.example/A",
            "r.example/a@sha256:../../x",
            "r.example/a@sha256:00",
            &format!("r.example/a@{}", digest.to_uppercase()),
            &format!("r.example/a@sha1:{}", &digest[7..47]),
            "r.example/a:../x",
            "r.example/../a",
            "user@r.example/a",
        ] {
            assert!(matches!(open(bad), Err(NetError::Name { .. })), "{bad}");
        }
    }

    #[test]
    fn this_machine_is_known() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:80", "127.1.2.3", "[::1]:5000", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["r.example", "127.0.0.1.example", "10.0.0.1:5000", "localhost.example:80"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
