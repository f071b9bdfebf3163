//! Where credentials come from: the files of podman and docker, and docker's helpers. The first file that has some for
//! a registry decides.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use docker_credential::{CredentialRetrievalError as Failure, DockerCredential, get_credential_from_reader};
use reqwest::header::HeaderValue;
use serde_json::{Map, Value, json};

use super::judge::plain;
use crate::net::error::NetError;

/// No such file is larger.
const MAX_FILE: u64 = 4 << 20;

/// A file that may hold credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthFile {
    /// The file.
    pub path: PathBuf,
    /// Whether the user named it: then it must be there.
    pub named: bool,
}

/// What proves who we are.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    Password {
        user: String,
        password: String,
    },
    /// Something that a realm exchanges for tokens.
    Identity(String),
}

/// Without the secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password { .. } => "Password",
            Self::Identity(_) => "Identity",
        })
    }
}

impl Credentials {
    /// The header of basic authentication.
    pub(super) fn basic(&self) -> Option<HeaderValue> {
        let Self::Password { user, password } = self else { return None };
        let text = BASE64.encode(format!("{user}:{password}"));
        let mut header = HeaderValue::from_str(&format!("Basic {text}")).expect("base64 is plain");
        header.set_sensitive(true);
        Some(header)
    }
}

/// Looks for the credentials of a repository; `api` is where its registry is, if that has another name.
pub(super) fn find(
    files: &[AuthFile],
    host: &str,
    api: &str,
    repository: &str,
) -> Result<Option<Credentials>, NetError> {
    for file in files {
        let wrong = |detail: String| NetError::Credentials { path: file.path.clone(), detail };
        let text = match fs::read(&file.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !file.named => continue,
            read => read.map_err(|error| wrong(error.to_string()))?,
        };
        if text.len() as u64 > MAX_FILE {
            return Err(wrong(format!("it has more than {MAX_FILE} bytes")));
        }
        let settings: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if let Some(found) = find_in(&settings, host, api, repository).map_err(wrong)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Looks in one file: a helper for this registry, then the store of all, then what the file itself holds; of that the
/// entry for the longest part of `host/repository`.
fn find_in(
    settings: &Map<String, Value>,
    host: &str,
    api: &str,
    repository: &str,
) -> Result<Option<Credentials>, String> {
    // One registry is known to helpers by where it is.
    let server = if host == api { host.to_owned() } else { format!("https://{api}/v1/") };
    let helpers = settings.get("credHelpers").and_then(Value::as_object);
    for name in [&server, host] {
        if let Some(helper) = helpers.and_then(|helpers| helpers.get(name))
            && let Some(found) = ask(&json!({ "credHelpers": { name: helper } }), name)?
        {
            return Ok(Some(found));
        }
    }
    if let Some(store) = settings.get("credsStore").filter(|store| store.as_str() != Some(""))
        && let Some(found) = ask(&json!({ "credsStore": store }), &server)?
    {
        return Ok(Some(found));
    }
    let entries = settings.get("auths").and_then(Value::as_object);
    for key in keys(host, api, repository) {
        if let Some(entry) = entries.and_then(|entries| entries.get(&key))
            && let Some(found) = ask(&json!({ "auths": { &key: without_empty(entry) } }), &key)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The names under which a repository's credentials may be kept, the most exact first.
fn keys(host: &str, api: &str, repository: &str) -> Vec<String> {
    let whole = format!("{host}/{repository}");
    let mut keys: Vec<String> = vec![whole.clone()];
    keys.extend(whole.rmatch_indices('/').map(|(at, _)| whole[..at].to_owned()));
    for server in [host, api] {
        keys.push(format!("https://{server}"));
        keys.extend(["/", "/v1/", "/v2/"].map(|end| format!("https://{server}{end}")));
    }
    keys.push(api.to_owned());
    keys
}

/// Docker leaves empty entries where a helper keeps the secret.
fn without_empty(entry: &Value) -> Value {
    let fields = entry.as_object().into_iter().flatten();
    fields
        .filter(|(_, value)| value.as_str() != Some(""))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Lets the library read one entry, and run the helper that it may name.
fn ask(settings: &Value, server: &str) -> Result<Option<Credentials>, String> {
    match get_credential_from_reader(settings.to_string().as_bytes(), server) {
        Ok(DockerCredential::IdentityToken(token)) => Ok(Some(Credentials::Identity(token))),
        Ok(DockerCredential::UsernamePassword(user, password)) => {
            Ok(Some(Credentials::Password { user, password }))
        }
        Err(Failure::NoCredentialConfigured) => Ok(None),
        Err(Failure::HelperFailure { stdout, .. }) if stdout.contains("credentials not found") => Ok(None),
        Err(Failure::HelperFailure { helper, stdout, stderr }) => {
            Err(format!("{helper} fails: {}", plain(&format!("{stdout} {stderr}"))))
        }
        Err(error) => Err(format!("for {server}: {}", plain(&error.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(settings: Value, host: &str, repository: &str) -> Option<String> {
        let api = if host == "short.example" { "index.short.example" } else { host };
        match find_in(settings.as_object().unwrap(), host, api, repository).unwrap()? {
            Credentials::Password { user, password } => Some(format!("{user}:{password}")),
            Credentials::Identity(token) => Some(token),
        }
    }

    fn entry(text: &str) -> Value {
        json!({ "auth": BASE64.encode(text) })
    }

    #[test]
    fn the_longest_part_of_the_name_wins() {
        let settings = json!({ "auths": {
            "r.example": entry("host:1"), "r.example/a": entry("space:2"), "r.example/a/b": entry("name:3"),
            "https://old.example/v1/": entry("old:4"), "empty.example": {}, "blank.example": { "auth": "" },
            "token.example": { "identitytoken": "t" }, "https://index.short.example/v1/": entry("short:5"),
        }});
        for (host, repository, expected) in [
            ("r.example", "x", Some("host:1")),
            ("r.example", "a/x", Some("space:2")),
            ("r.example", "a/b", Some("name:3")),
            ("r.example", "a/b/c", Some("name:3")),
            ("r.example", "ab", Some("host:1")),
            ("r.example:5000", "a", None),
            ("old.example", "a", Some("old:4")),
            ("empty.example", "a", None),
            ("blank.example", "a", None),
            ("token.example", "a", Some("t")),
            ("short.example", "library/x", Some("short:5")),
            ("example", "a", None),
        ] {
            assert_eq!(found(settings.clone(), host, repository).as_deref(), expected, "{host}/{repository}");
        }
    }

    #[test]
    fn files_that_make_no_sense_are_errors() {
        let bad = json!({ "auths": { "r.example": { "auth": "%%%" } } });
        assert!(find_in(bad.as_object().unwrap(), "r.example", "r.example", "a").is_err());
        let files = [AuthFile { path: "/nonexistent/auth.json".into(), named: false }];
        assert_eq!(find(&files, "r.example", "r.example", "a").unwrap(), None);
        let files = [AuthFile { path: "/nonexistent/auth.json".into(), named: true }];
        assert!(find(&files, "r.example", "r.example", "a").is_err());
    }
}
