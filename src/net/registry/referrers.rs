//! What says something about a manifest: by the registry's own list, or, where it keeps none, by a tag (OCI
//! distribution specification, "Referrers Tag Schema").

use reqwest::header::{CONTENT_TYPE, LINK};
use reqwest::{Method, StatusCode};

use super::Registry;
use super::auth::Action;
use super::tags::{MAX_PAGES, next_page};
use crate::net::http::Request;
use crate::share::manifest::{AnyManifest, Descriptor, INDEX, Index, parse};
use crate::share::remote::MAX_MANIFEST;
use crate::share::{Digest, RawManifest, RemoteError};

/// How often a list that others change too is written.
const ROUNDS: usize = 3;

impl Registry {
    pub(super) fn list_referrers(
        &self,
        digest: &Digest,
        artifact_type: &str,
    ) -> Result<Vec<Digest>, RemoteError> {
        let listed = match self.own_list(digest, artifact_type)? {
            Some(listed) => listed,
            None => self.tagged_list(digest)?.map(|index| index.manifests).unwrap_or_default(),
        };
        // A registry may filter, and need not.
        let is_it = |listed: &Descriptor| listed.artifact_type.as_deref() == Some(artifact_type);
        Ok(listed.into_iter().filter(is_it).map(|listed| listed.digest).collect())
    }

    pub(super) fn list_as_referrer(
        &self,
        subject: &Digest,
        manifest: &RawManifest,
        artifact_type: &str,
    ) -> Result<(), RemoteError> {
        if self.own_list(subject, artifact_type)?.is_some() {
            return Ok(());
        }
        let mut added = Descriptor::new(&manifest.media_type, manifest.digest, manifest.bytes.len() as u64);
        added.artifact_type = Some(artifact_type.to_owned());
        let is_in = |index: &Index| index.manifests.iter().any(|listed| listed.digest == added.digest);
        // Nothing makes this atomic: whoever wrote at the same time is looked for afterwards.
        for _ in 0..ROUNDS {
            let mut index = self.tagged_list(subject)?.unwrap_or_else(|| Index::new(vec![]));
            if is_in(&index) {
                return Ok(());
            }
            index.manifests.push(added.clone());
            let bytes = serde_json::to_vec(&index).expect("plain data");
            self.store_manifest(&tag_for(subject), INDEX, &bytes)?;
        }
        match self.tagged_list(subject)? {
            Some(index) if is_in(&index) => Ok(()),
            _ => {
                let detail = "does not keep the list that was just written".to_owned();
                Err(self.strange(&format!("list what belongs to {subject}"), detail).into())
            }
        }
    }

    /// Asks for the registry's own list; `None` if it keeps none.
    fn own_list(&self, digest: &Digest, artifact_type: &str) -> Result<Option<Vec<Descriptor>>, RemoteError> {
        if self.lists_referrers.get() == Some(&false) {
            return Ok(None);
        }
        let doing = format!("list what belongs to {digest}");
        let mut url = self.url(&format!("referrers/{digest}"))?;
        url.query_pairs_mut().append_pair("artifactType", artifact_type);
        let mut listed = vec![];
        for _ in 0..MAX_PAGES {
            let request = Request::new(Method::GET, url.clone());
            let answer = self.call(&request, &Action::Pull, &doing)?;
            match answer.status() {
                StatusCode::OK => {}
                // Older ones do not know the path, and say so in several ways.
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::BAD_REQUEST
                    if listed.is_empty() =>
                {
                    let _known = self.lists_referrers.set(false);
                    return Ok(None);
                }
                _ => return Err(self.refused(answer, &doing).into()),
            }
            let kind = answer.header(&CONTENT_TYPE).unwrap_or_default().to_owned();
            let next = next_page(answer.header(&LINK), answer.url());
            let bytes = answer.bytes(MAX_MANIFEST).map_err(|error| self.broken(&doing, error))?;
            let raw = RawManifest { media_type: kind, digest: Digest::of(&bytes), bytes };
            listed.extend(self.index(&raw, &doing)?.manifests);
            let _known = self.lists_referrers.set(true);
            match next {
                Some(next) if next.origin() == url.origin() => url = next,
                Some(_) => return Err(self.not_safe(&doing, "continues at another host".to_owned()).into()),
                None => return Ok(Some(listed)),
            }
        }
        Err(self.strange(&doing, format!("gives more than {MAX_PAGES} pages")).into())
    }

    /// Reads the list that is kept under a tag.
    fn tagged_list(&self, digest: &Digest) -> Result<Option<Index>, RemoteError> {
        let tag = tag_for(digest);
        let Some(raw) = self.get_manifest(&tag)? else { return Ok(None) };
        Ok(Some(self.index(&raw, &format!("read the list `{tag}`"))?))
    }

    fn index(&self, raw: &RawManifest, doing: &str) -> Result<Index, RemoteError> {
        match parse(raw) {
            Ok(AnyManifest::Many(index)) => Ok(index),
            Ok(AnyManifest::One(_)) => {
                Err(self.strange(doing, "answers with an image where a list should be".to_owned()).into())
            }
            Err(error) => Err(self.strange(doing, format!("answers with something else: {error}")).into()),
        }
    }
}

fn tag_for(digest: &Digest) -> String {
    format!("sha256-{}", digest.hex())
}
