//! Manifests: fetched as bytes, checked against their digest, never longer than they may be.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use reqwest::{Method, StatusCode};

use super::Registry;
use super::auth::Action;
use super::judge::plain;
use crate::net::error::{Broken, NetError};
use crate::net::http::{Payload, Request};
use crate::share::manifest::{DOCKER_LIST, DOCKER_MANIFEST, INDEX, MANIFEST};
use crate::share::remote::MAX_MANIFEST;
use crate::share::{Digest, RawManifest, RemoteError};

const KINDS: [&str; 4] = [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_LIST];
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

impl Registry {
    pub(super) fn get_manifest(&self, reference: &str) -> Result<Option<RawManifest>, RemoteError> {
        let doing = format!("fetch the manifest `{reference}`");
        let what = || format!("the manifest `{reference}`");
        let url = self.manifest_url(reference)?;
        let request = Request::new(Method::GET, url).header(ACCEPT, &KINDS.join(", "));
        let mut tries = self.http.tries();
        let (media_type, said, bytes) = loop {
            let answer = self.call(&request, &Action::Pull, &doing)?;
            match answer.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Ok(None),
                _ => return Err(self.refused(answer, &doing).into()),
            }
            let kind = answer.header(&CONTENT_TYPE).unwrap_or_default();
            let kind = kind.split(';').next().unwrap_or_default().trim().to_owned();
            if !KINDS.contains(&&*kind) {
                let kind = if kind.is_empty() { "something without a type".to_owned() } else { plain(&kind) };
                let detail = format!("answers with {kind}, which is not a manifest");
                return Err(self.strange(&doing, detail).into());
            }
            let said = answer.header(&DIGEST).map(str::to_owned);
            match answer.bytes(MAX_MANIFEST) {
                Ok(bytes) => break (kind, said, bytes),
                Err(Broken::TooLong { most }) => {
                    return Err(self.corrupt(what(), format!("has more than {most} bytes")));
                }
                Err(error) if error.is_transient() && tries.pause(None) => {}
                Err(error) => return Err(self.broken(&doing, error).into()),
            }
        };
        let digest = Digest::of(&bytes);
        // By tag, the server's word is all there is: it must at least agree with what it gives.
        let wanted = if reference.contains(':') { Some(reference.to_owned()) } else { said };
        match wanted {
            Some(wanted) if wanted != digest.to_string() => {
                Err(self.corrupt(what(), format!("hashes to {digest}, not to {}", plain(&wanted))))
            }
            _ => Ok(Some(RawManifest { media_type, digest, bytes })),
        }
    }

    pub(super) fn store_manifest(
        &self,
        reference: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), RemoteError> {
        let doing = format!("publish the manifest `{reference}`");
        let url = self.manifest_url(reference)?;
        let mut request = Request::new(Method::PUT, url).header(CONTENT_TYPE, media_type);
        request.body = Payload::Bytes(bytes.to_vec());
        let mut tries = self.http.tries();
        let answer = loop {
            let answer = self.call(&request, &Action::Push, &doing)?;
            if matches!(answer.status(), StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED) {
                break answer;
            }
            let refused = self.refused(answer, &doing);
            // docker-registry 2.8 says so when it looks for a blob while another push links it: that file is empty
            // for a moment.
            if !(refused.is_invalid_digest() && tries.pause(None)) {
                return Err(refused.into());
            }
        };
        match answer.header(&DIGEST) {
            Some(said) if said != Digest::of(bytes).to_string() => {
                let detail = "it says that it stored as another one".to_owned();
                Err(self.corrupt(format!("the manifest `{reference}`"), detail))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn delete_manifest(&self, digest: &Digest) -> Result<bool, RemoteError> {
        let doing = format!("remove the manifest `{digest}`");
        let request = Request::new(Method::DELETE, self.url(&format!("manifests/{digest}"))?);
        let answer = self.call(&request, &Action::Delete, &doing)?;
        match answer.status() {
            status if status.is_success() => Ok(true),
            StatusCode::NOT_FOUND => Ok(true),
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED | StatusCode::BAD_REQUEST => {
                Ok(false)
            }
            _ => Err(self.refused(answer, &doing).into()),
        }
    }

    /// The URL of a manifest. What is no tag and no digest goes into none.
    fn manifest_url(&self, reference: &str) -> Result<reqwest::Url, NetError> {
        if !is_tag(reference) && reference.parse::<Digest>().is_err() {
            let detail = "it is neither a tag nor a sha256 digest".to_owned();
            return Err(NetError::Name { text: plain(reference), detail });
        }
        self.url(&format!("manifests/{reference}"))
    }
}

/// Whether a text may be a tag (OCI distribution specification, "Pulling Manifests").
pub(super) fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let rest = |byte: u8| word(byte) || byte == b'.' || byte == b'-';
    text.len() <= 128 && text.bytes().next().is_some_and(word) && text.bytes().all(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_words() {
        for good in ["a", "_x", "demo-one-cpu", "1.2", &"x".repeat(128)] {
            assert!(is_tag(good), "{good}");
        }
        for bad in ["", ".", "-a", "a/b", "a:b", "a b", "../x", "é", &"x".repeat(129)] {
            assert!(!is_tag(bad), "{bad}");
        }
    }
}
