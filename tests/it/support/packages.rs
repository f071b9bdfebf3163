//! Distributions made by the tests, a package index that serves them, and a few real ones.

use std::fs;
use std::io::{Cursor, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use zip::write::SimpleFileOptions;

use super::machine::{long, work_directory};

/// A file of an index.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    pub(crate) project: String,
    pub(crate) version: String,
    pub(crate) file: String,
    pub(crate) bytes: Vec<u8>,
}

impl Package {
    pub(crate) fn sha256(&self) -> String {
        sha256(&self.bytes)
    }
}

/// Hashes with the system's own tool, so that no code under test vouches for itself.
fn sha256(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sha256sum runs");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout)[..64].to_owned()
}

/// Makes a pure wheel of `files`.
pub(crate) fn wheel(name: &str, version: &str, files: &[(&str, &str)]) -> Package {
    let info = format!("{name}-{version}.dist-info");
    let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
    let tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let mut all: Vec<(String, String)> =
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    all.push((format!("{info}/METADATA"), metadata));
    all.push((format!("{info}/WHEEL"), tags.to_owned()));
    let record: String = all.iter().map(|(path, _)| format!("{path},,\n")).collect();
    all.push((format!("{info}/RECORD"), format!("{record}{info}/RECORD,,\n")));
    let mut archive = zip::ZipWriter::new(Cursor::new(vec![]));
    for (path, text) in &all {
        archive.start_file(path.as_str(), SimpleFileOptions::default()).expect("a file of a zip");
        archive.write_all(text.as_bytes()).expect("memory");
    }
    let bytes = archive.finish().expect("memory").into_inner();
    let file = format!("{name}-{version}-py3-none-any.whl");
    Package { project: name.to_owned(), version: version.to_owned(), file, bytes }
}

/// Makes a source distribution of `files`.
pub(crate) fn sdist(name: &str, version: &str, files: &[(&str, &str)]) -> Package {
    let directory = tempfile::tempdir_in(work_directory()).expect("a directory");
    let top = format!("{name}-{version}");
    for (path, text) in files {
        let path = directory.path().join(&top).join(path);
        fs::create_dir_all(path.parent().expect("a file below the top")).expect("an own directory");
        fs::write(path, text).expect("an own file");
    }
    let file = format!("{top}.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--mtime=@0", "-czf", &file, &top]).current_dir(directory.path());
    assert!(tar.status().expect("tar runs").success());
    let bytes = fs::read(directory.path().join(&file)).expect("tar wrote it");
    Package { project: name.to_owned(), version: version.to_owned(), file, bytes }
}

/// A package index (the simple repository API in HTML) over a directory of `<project>/<file>`.
#[derive(Debug)]
pub(crate) struct Index {
    directory: PathBuf,
    url: String,
    requests: Arc<AtomicUsize>,
}

impl Index {
    /// Serves `directory` on a port of this machine until the tests end.
    pub(crate) fn serve(directory: PathBuf) -> Self {
        fs::create_dir_all(&directory).expect("an own directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/simple", listener.local_addr().expect("bound"));
        let requests = Arc::new(AtomicUsize::new(0));
        let (served, counter) = (directory.clone(), Arc::clone(&requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (served, counter) = (served.clone(), Arc::clone(&counter));
                std::thread::spawn(move || {
                    counter.fetch_add(1, Ordering::SeqCst);
                    let _client_may_be_killed = answer(stream, &served);
                });
            }
        });
        Self { directory, url, requests }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How many requests came so far.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self, package: &Package) {
        let directory = self.directory.join(&package.project);
        fs::create_dir_all(&directory).expect("an own directory");
        fs::write(directory.join(&package.file), &package.bytes).expect("an own file");
    }
}

fn answer(mut stream: TcpStream, directory: &Path) -> std::io::Result<()> {
    let mut request = vec![];
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let target = request.split(' ').nth(1).unwrap_or_default();
    let parts: Vec<&str> = target.trim_matches('/').split('/').collect();
    let body = match parts.as_slice() {
        ["simple", project] => fs::read_dir(directory.join(project)).ok().map(|files| {
            let names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
            let link = |name: String| {
                let sha256 = sha256(&fs::read(directory.join(project).join(&name)).unwrap_or_default());
                format!("<a href=\"/files/{project}/{name}#sha256={sha256}\">{name}</a>\n")
            };
            names.map(link).collect::<String>().into_bytes()
        }),
        ["files", project, file] => fs::read(directory.join(project).join(file)).ok(),
        _ => None,
    };
    let (status, body) = body.map_or(("404 Not Found", vec![]), |body| ("200 OK", body));
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

/// Real wheels: pure, native, with entry points, and with everything that `.data` can hold: scripts, headers, data.
const REAL: [&str; 8] = [
    "six==1.16.0",
    "click==8.1.7",
    "wheel==0.45.1",
    "markupsafe==3.0.2",
    "pyyaml==6.0.3",
    "docutils==0.19",
    "greenlet==3.2.4",
    "pybind11-global==2.13.6",
];

/// The wheels of the long run.
const MANY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/testdata/wheels.txt");

/// The real wheels, downloaded once; `None` if no index answers.
pub(crate) fn downloaded() -> Option<&'static [PathBuf]> {
    static DOWNLOADED: OnceLock<Option<Vec<PathBuf>>> = OnceLock::new();
    DOWNLOADED.get_or_init(download).as_deref()
}

fn download() -> Option<Vec<PathBuf>> {
    let listed = fs::read_to_string(MANY).expect("a file of the tests");
    let (kind, wanted): (&str, Vec<&str>) = match long() {
        true => ("-long", listed.lines().filter(|line| !line.starts_with('#')).collect()),
        false => ("", REAL.to_vec()),
    };
    let user = rustix::process::geteuid().as_raw();
    let cache = work_directory().join(format!("infradev-it-wheels-{user}{kind}"));
    let found = || -> Vec<PathBuf> {
        let files = fs::read_dir(&cache).into_iter().flatten().flatten().map(|file| file.path());
        let mut wheels: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|end| end == "whl")).collect();
        wheels.sort();
        wheels
    };
    if found().len() != wanted.len() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]);
        let status = pip.arg(&cache).args(&wanted).status();
        if !status.is_ok_and(|status| status.success()) {
            return None;
        }
    }
    let wheels = found();
    assert_eq!(wheels.len(), wanted.len(), "{} has other wheels than these", cache.display());
    Some(wheels)
}
