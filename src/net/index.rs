//! Package indexes by the simple repository API (packaging.python.org), in JSON or HTML.
//!
//! Locks name files by name and hash and no host, so that any index or mirror serves them. Where none is
//! configured, the one that this machine's pip uses is asked for.

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use serde::Deserialize;

use super::client::Client;
use super::error::NetError;

/// A file of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFile {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// What it hashes to, if the index says.
    pub sha256: Option<String>,
    /// Whether it was withdrawn (PEP 592): the reason, which may be empty.
    pub yanked: Option<String>,
}

/// A package index.
#[derive(Debug)]
pub struct PackageIndex {
    configured: Option<String>,
    resolved: OnceLock<Option<String>>,
    pages: Mutex<HashMap<String, Arc<Vec<IndexFile>>>>,
}

#[derive(Deserialize)]
struct Page {
    files: Vec<PageFile>,
}

#[derive(Deserialize)]
struct PageFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: HashMap<String, String>,
    #[serde(default)]
    yanked: Yanked,
}

/// PEP 691: a reason, or a plain yes or no.
#[derive(Deserialize)]
#[serde(untagged)]
enum Yanked {
    Reason(String),
    Plain(bool),
}

impl Default for Yanked {
    fn default() -> Self {
        Self::Plain(false)
    }
}

impl Yanked {
    fn reason(self) -> Option<String> {
        match self {
            Self::Reason(reason) => Some(reason),
            Self::Plain(yanked) => yanked.then(String::new),
        }
    }
}

const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.2";

/// Asks pip, wherever python3 finds it, for the index that it would use.
const ASK_PIP: &str = "
import glob, sys
try:
    import pip
except ImportError:
    sys.path[:0] = glob.glob('/usr/share/python-wheels/pip-*.whl')
    import ensurepip, os
    sys.path[:0] = glob.glob(os.path.join(os.path.dirname(ensurepip.__file__), '_bundled', 'pip-*.whl'))
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
configuration = Configuration(isolated=False)
configuration.load()
try:
    print(configuration.get_value('global.index-url'))
except Exception:
    print(PyPI.simple_url)
";

impl PackageIndex {
    /// Makes an index; `configured` is its simple API's URL.
    pub fn new(configured: Option<String>) -> Self {
        Self { configured, resolved: OnceLock::new(), pages: Mutex::default() }
    }

    /// Returns the URL of the simple API, without a slash at its end.
    pub fn url(&self) -> Result<&str, NetError> {
        let resolved = self.resolved.get_or_init(|| {
            let url = self.configured.clone().or_else(ask_pip)?;
            Some(url.trim_end_matches('/').to_owned())
        });
        resolved.as_deref().ok_or(NetError::NoIndex)
    }

    /// Finds the file of a project by its name.
    pub fn find(&self, client: &Client, project: &str, file: &str) -> Result<IndexFile, NetError> {
        let files = self.files(client, project)?;
        let found = files.iter().find(|candidate| candidate.name == file).cloned();
        found.ok_or_else(|| NetError::NoFile { project: project.to_owned(), file: file.to_owned() })
    }

    /// Finds the file of a project by its hash.
    pub fn find_by_hash(&self, client: &Client, project: &str, sha256: &str) -> Result<IndexFile, NetError> {
        let files = self.files(client, project)?;
        let found = files.iter().find(|candidate| candidate.sha256.as_deref() == Some(sha256)).cloned();
        let file = format!("with sha256 {sha256}");
        found.ok_or_else(|| NetError::NoFile { project: project.to_owned(), file })
    }

    fn files(&self, client: &Client, project: &str) -> Result<Arc<Vec<IndexFile>>, NetError> {
        let pages = || self.pages.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(files) = pages().get(project) {
            return Ok(Arc::clone(files));
        }
        let url = format!("{}/{project}/", self.url()?);
        let (text, kind) = client.text(&url, ACCEPT, &format!("the index's page of {project}"))?;
        let files = if kind.contains("json") {
            let answer = |error: serde_json::Error| NetError::Answer {
                project: project.to_owned(),
                detail: error.to_string(),
            };
            let page: Page = serde_json::from_str(&text).map_err(answer)?;
            page.files
                .into_iter()
                .map(|mut file| IndexFile {
                    sha256: file.hashes.remove("sha256"),
                    name: file.filename,
                    url: absolute(&url, &file.url),
                    yanked: file.yanked.reason(),
                })
                .collect()
        } else {
            links(&text, &url)
        };
        let files = Arc::new(files);
        pages().insert(project.to_owned(), Arc::clone(&files));
        Ok(files)
    }
}

fn ask_pip() -> Option<String> {
    let output = Command::new("python3").args(["-c", ASK_PIP]).output().ok()?;
    let url = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !url.is_empty()).then_some(url)
}

/// Reads the anchors of an HTML page: the text is the file's name, `href` its place.
fn links(html: &str, page: &str) -> Vec<IndexFile> {
    let mut files = vec![];
    for anchor in html.split("<a ").skip(1) {
        let Some((tag, rest)) = anchor.split_once('>') else { continue };
        let attribute = |name: &str| {
            let (_, rest) = tag.split_once(&format!("{name}=\""))?;
            rest.split_once('"').map(|(value, _)| value.replace("&amp;", "&"))
        };
        if let (Some(href), Some((name, _))) = (attribute("href"), rest.split_once("</a>")) {
            let sha256 = href.split_once("#sha256=").map(|(_, sha256)| sha256.to_owned());
            let yanked = attribute("data-yanked").or_else(|| tag.contains("data-yanked").then(String::new));
            files.push(IndexFile {
                name: name.trim().to_owned(),
                url: absolute(page, &href),
                sha256,
                yanked,
            });
        }
    }
    files
}

fn absolute(page: &str, href: &str) -> String {
    match reqwest::Url::parse(page).and_then(|page| page.join(href)) {
        Ok(url) => url.to_string(),
        Err(_) => href.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_html_pages() {
        let html = "<a href=\"../../files/x-1.0-py3-none-any.whl#sha256=00\" data-x=\"1\">x-1.0-py3-none-any.whl</a><br>";
        let files = links(html, "https://index.example/simple/x/");
        assert_eq!(files[0].name, "x-1.0-py3-none-any.whl");
        assert_eq!(files[0].url, "https://index.example/files/x-1.0-py3-none-any.whl#sha256=00");
        assert_eq!((files[0].sha256.as_deref(), &files[0].yanked), (Some("00"), &None));
        let html =
            "<a data-yanked=\"bad &amp; old\" href=\"x-1.1-py3-none-any.whl\">x-1.1-py3-none-any.whl</a>";
        let files = links(html, "https://index.example/simple/x/");
        assert_eq!(files[0].yanked.as_deref(), Some("bad & old"));
    }
}
