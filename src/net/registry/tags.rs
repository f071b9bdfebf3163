//! The tags of a repository, page by page.

use reqwest::header::LINK;
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;

use super::Registry;
use super::auth::Action;
use super::manifest::is_tag;
use crate::net::http::Request;
use crate::share::RemoteError;

/// No list has more pages.
pub(super) const MAX_PAGES: usize = 100;
/// Nor a repository more tags, that are read.
const MAX_TAGS: usize = 10_000;
/// Nor a page more bytes.
const MAX_PAGE: u64 = 4 << 20;

#[derive(Deserialize)]
struct Page {
    tags: Option<Vec<String>>,
}

impl Registry {
    pub(super) fn list_tags(&self) -> Result<Vec<String>, RemoteError> {
        let doing = format!("list the tags of {}", self.repository);
        let mut url = self.url("tags/list?n=1000")?;
        let mut tags = vec![];
        for _ in 0..MAX_PAGES {
            let answer = self.call(&Request::new(Method::GET, url.clone()), &Action::Pull, &doing)?;
            match answer.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND if tags.is_empty() => return Ok(tags),
                _ => return Err(self.refused(answer, &doing).into()),
            }
            let next = next_page(answer.header(&LINK), answer.url());
            let bytes = answer.bytes(MAX_PAGE).map_err(|error| self.broken(&doing, error))?;
            let page: Page = serde_json::from_slice(&bytes)
                .map_err(|error| self.strange(&doing, format!("answers with something else: {error}")))?;
            // What is no tag cannot be asked for either.
            tags.extend(page.tags.unwrap_or_default().into_iter().filter(|tag| is_tag(tag)));
            if tags.len() > MAX_TAGS {
                return Err(self.strange(&doing, format!("has more than {MAX_TAGS}")).into());
            }
            match next {
                Some(next) if next.origin() == url.origin() => url = next,
                Some(_) => return Err(self.not_safe(&doing, "continues at another host".to_owned()).into()),
                None => return Ok(tags),
            }
        }
        Err(self.strange(&doing, format!("gives more than {MAX_PAGES} pages")).into())
    }
}

/// Reads `Link: <URL>; rel="next"` (RFC 8288).
pub(super) fn next_page(link: Option<&str>, page: &Url) -> Option<Url> {
    let (target, parameters) = link?.trim().strip_prefix('<')?.split_once('>')?;
    let is_next = parameters.split(';').any(|parameter| {
        let parameter = parameter.trim();
        parameter == "rel=\"next\"" || parameter == "rel=next"
    });
    page.join(target).ok().filter(|_| is_next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_on() {
        let page = Url::parse("https://r.example/v2/a/tags/list?n=2").unwrap();
        let next = |link| next_page(Some(link), &page).map(|next| next.to_string());
        let expected = Some("https://r.example/v2/a/tags/list?last=b&n=2".to_owned());
        assert_eq!(next("</v2/a/tags/list?last=b&n=2>; rel=\"next\""), expected);
        assert_eq!(next("<https://r.example/v2/a/tags/list?last=b&n=2>;rel=next"), expected);
        assert_eq!(next("</x>; rel=\"prev\""), None);
        assert_eq!(next("nonsense"), None);
        assert_eq!(next_page(None, &page), None);
    }
}
