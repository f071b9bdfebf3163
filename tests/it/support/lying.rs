//! A registry of our own, in memory: honest where a test does not twist its answers, and it remembers every request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

/// A request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Whether it is `method` on a path that holds `part`.
    pub(crate) fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.target.contains(part)
    }
}

type Raw = dyn FnOnce(&mut TcpStream) + Send;

/// An answer.
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Writes all of the answer itself, and closes.
    raw: Option<Box<Raw>>,
}

impl Reply {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: vec![], body: vec![], raw: None }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn raw(write: impl FnOnce(&mut TcpStream) + Send + 'static) -> Self {
        Self { raw: Some(Box::new(write)), ..Self::new(200) }
    }
}

/// What a registry holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shelf {
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    /// By tag and by digest: media type and bytes.
    pub(crate) manifests: BTreeMap<String, (String, Vec<u8>)>,
    pub(crate) uploads: BTreeMap<u64, Vec<u8>>,
    /// The next upload's body is cut off after so many bytes, and the connection with it.
    pub(crate) cut: Option<usize>,
    pub(crate) sessions: u64,
}

type Twist = dyn Fn(&Asked, &mut Shelf) -> Option<Reply> + Send + Sync;

/// A registry that may lie.
#[derive(Clone)]
pub(crate) struct Liar {
    address: String,
    shelf: Arc<Mutex<Shelf>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    twist: Arc<Mutex<Arc<Twist>>>,
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The digest of bytes, as registries write it.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

impl Liar {
    /// Serves `shelf` until the tests end. `twist` sees every request first, and may answer it.
    pub(crate) fn serve(
        shelf: Shelf,
        twist: impl Fn(&Asked, &mut Shelf) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let liar = Self {
            address: listener.local_addr().expect("bound").to_string(),
            shelf: Arc::new(Mutex::new(shelf)),
            asked: Arc::default(),
            twist: Arc::new(Mutex::new(Arc::new(twist))),
        };
        let served = liar.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || {
                    let _client_may_be_gone = served.converse(stream);
                });
            }
        });
        liar
    }

    /// One that does not lie.
    pub(crate) fn honest(shelf: Shelf) -> Self {
        Self::serve(shelf, |_, _| None)
    }

    /// Lies in another way from now on.
    pub(crate) fn twist(&self, twist: impl Fn(&Asked, &mut Shelf) -> Option<Reply> + Send + Sync + 'static) {
        *open(&self.twist) = Arc::new(twist);
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Names a repository of it.
    pub(crate) fn name(&self) -> String {
        format!("{}/demo", self.address)
    }

    pub(crate) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        open(&self.shelf)
    }

    /// The requests so far, but for the first one of every command, which finds out whether this machine speaks TLS.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        open(&self.asked).iter().filter(|asked| asked.target != "/v2/").cloned().collect()
    }

    /// How many requests were `method` on a path that holds `part`.
    pub(crate) fn count(&self, method: &str, part: &str) -> usize {
        self.asked().iter().filter(|asked| asked.is(method, part)).count()
    }

    pub(crate) fn forget(&self) {
        open(&self.asked).clear();
    }

    /// Answers the requests of one connection.
    fn converse(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        writer.set_nodelay(true)?;
        while let Some(mut asked) = read_head(&mut reader)? {
            let length: usize =
                asked.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
            let cut = if asked.method == "PATCH" { open(&self.shelf).cut.take() } else { None };
            asked.body = vec![0; length.min(cut.unwrap_or(length))];
            reader.read_exact(&mut asked.body)?;
            open(&self.asked).push(asked.clone());
            if cut.is_some() {
                // What came is kept, as registries do.
                let _nobody_hears_it = honest(&asked, &mut open(&self.shelf));
                return Ok(());
            }
            let twist = Arc::clone(&open(&self.twist));
            let twisted = twist(&asked, &mut open(&self.shelf));
            let reply = twisted.unwrap_or_else(|| honest(&asked, &mut open(&self.shelf)));
            if let Some(raw) = reply.raw {
                raw(&mut writer);
                return Ok(());
            }
            let mut answer = format!("HTTP/1.1 {} x\r\n", reply.status);
            if !reply.headers.iter().any(|(name, _)| name == "Content-Length") {
                answer += &format!("Content-Length: {}\r\n", reply.body.len());
            }
            for (name, value) in &reply.headers {
                answer += &format!("{name}: {value}\r\n");
            }
            let mut answer = format!("{answer}\r\n").into_bytes();
            if asked.method != "HEAD" {
                answer.extend(&reply.body);
            }
            writer.write_all(&answer)?;
        }
        Ok(())
    }
}

fn read_head(reader: &mut impl BufRead) -> std::io::Result<Option<Asked>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut asked = Asked { method, target, ..Asked::default() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => asked.headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => return Ok(Some(asked)),
        };
    }
}

/// What a good registry does. It lists no referrers, as many do not.
fn honest(asked: &Asked, shelf: &mut Shelf) -> Reply {
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let parameter = |name: &str| {
        let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        found.map(|value| value.replace("%3A", ":").replace("%2F", "/"))
    };
    match (asked.method.as_str(), parts.as_slice()) {
        ("GET", ["v2", ""]) => Reply::new(200),
        ("GET" | "HEAD", ["v2", _, "blobs", digest]) => match shelf.blobs.get(*digest) {
            Some(blob) => part(asked, blob),
            None => Reply::new(404),
        },
        ("POST", ["v2", _, "blobs", "uploads", ""]) => {
            shelf.sessions += 1;
            let session = shelf.sessions;
            shelf.uploads.insert(session, vec![]);
            Reply::new(202).header("Location", format!("/v2/demo/blobs/uploads/{session}"))
        }
        (method, ["v2", _, "blobs", "uploads", session]) => {
            let session: u64 = session.parse().unwrap_or(0);
            let location = format!("/v2/demo/blobs/uploads/{session}");
            let Some(upload) = shelf.uploads.get_mut(&session) else { return Reply::new(404) };
            match method {
                "PATCH" => {
                    let start =
                        asked.header("content-range").and_then(|range| range.split('-').next()?.parse().ok());
                    if start != Some(upload.len()) {
                        return Reply::new(416).header("Location", location);
                    }
                    upload.extend(&asked.body);
                }
                "GET" => {}
                "DELETE" => {
                    shelf.uploads.remove(&session);
                    return Reply::new(204);
                }
                _ => {
                    let blob = std::mem::take(upload);
                    shelf.uploads.remove(&session);
                    let wanted = parameter("digest").unwrap_or_default();
                    if digest(&blob) != wanted {
                        return Reply::new(400).body(r#"{"errors":[{"code":"DIGEST_INVALID"}]}"#);
                    }
                    shelf.blobs.insert(wanted, blob);
                    return Reply::new(201);
                }
            }
            let last = upload.len().saturating_sub(1);
            let status = if method == "GET" { 204 } else { 202 };
            Reply::new(status).header("Location", location).header("Range", format!("0-{last}"))
        }
        ("GET", ["v2", _, "manifests", reference]) => match shelf.manifests.get(*reference) {
            Some((kind, bytes)) => Reply::new(200)
                .header("Content-Type", kind)
                .header("Docker-Content-Digest", digest(bytes))
                .body(bytes.clone()),
            None => Reply::new(404),
        },
        ("PUT", ["v2", _, "manifests", reference]) => {
            let kind = asked.header("content-type").unwrap_or_default().to_owned();
            shelf.manifests.insert(digest(&asked.body), (kind.clone(), asked.body.clone()));
            shelf.manifests.insert((*reference).to_owned(), (kind, asked.body.clone()));
            Reply::new(201)
        }
        ("DELETE", ["v2", _, "manifests", digest]) => {
            let Some(found) = shelf.manifests.get(*digest).cloned() else { return Reply::new(404) };
            shelf.manifests.retain(|_, manifest| *manifest != found);
            Reply::new(202)
        }
        ("GET", ["v2", _, "tags", "list"]) => {
            let tags = shelf.manifests.keys().filter(|name| !name.contains(':'));
            let tags: Vec<String> = tags.map(|tag| format!("{tag:?}")).collect();
            Reply::new(200).body(format!(r#"{{"name":"demo","tags":[{}]}}"#, tags.join(",")))
        }
        _ => Reply::new(404),
    }
}

fn part(asked: &Asked, blob: &[u8]) -> Reply {
    if asked.method == "HEAD" {
        return Reply::new(200).header("Content-Length", blob.len().to_string());
    }
    let range = asked.header("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((first, last)) = range else { return Reply::new(200).body(blob) };
    let first: usize = first.parse().unwrap_or(0);
    let last = last.parse().unwrap_or(usize::MAX).min(blob.len().saturating_sub(1));
    match blob.get(first..=last) {
        Some(bytes) => Reply::new(206)
            .header("Content-Range", format!("bytes {first}-{last}/{}", blob.len()))
            .body(bytes),
        None => Reply::new(416),
    }
}
