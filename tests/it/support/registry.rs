//! A real registry: Debian's `docker-registry` on a port of this machine.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::machine::{Need, lacks, work_directory};
use super::place::wait_until;

/// How a registry is guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Not at all.
    Open,
    /// By basic authentication, of `user` by `secret`.
    Password,
    /// By TLS, with a certificate of an authority of its own.
    Tls,
}

/// `user:secret`, by bcrypt with 2^5 rounds.
const PASSWORDS: &str = "user:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

/// A registry; it ends, and what it holds is removed, with this.
#[derive(Debug)]
pub(crate) struct RealRegistry {
    child: Child,
    directory: TempDir,
    port: u16,
}

impl RealRegistry {
    /// Starts one; `None`, which is said, where the machine has none.
    pub(crate) fn start(guard: Guard) -> Option<Self> {
        if lacks(Need::Program("docker-registry")) {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("infradev-it-registry.").tempdir_in(work_directory());
        let directory = directory.expect("a directory");
        let extra = match guard {
            Guard::Open => String::new(),
            Guard::Password => {
                let passwords = directory.path().join("passwords");
                fs::write(&passwords, PASSWORDS).expect("an own file");
                format!("auth: {{htpasswd: {{realm: tests, path: {}}}}}\n", passwords.display())
            }
            Guard::Tls => {
                make_certificates(directory.path());
                String::new()
            }
        };
        let tls = match guard {
            Guard::Tls => format!(
                ", tls: {{certificate: {0}/server.pem, key: {0}/server.key}}",
                directory.path().display()
            ),
            _ => String::new(),
        };
        // Another process may take the port before the registry does.
        for _ in 0..5 {
            let port =
                TcpListener::bind("127.0.0.1:0").and_then(|held| held.local_addr()).expect("a port").port();
            let settings = directory.path().join("settings.yml");
            let text = format!(
                "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n\
                 storage: {{delete: {{enabled: true}}, filesystem: {{rootdirectory: {}/data}}}}\n\
                 http: {{addr: \"127.0.0.1:{port}\", relativeurls: true{tls}}}\n{extra}",
                directory.path().display()
            );
            fs::write(&settings, text).expect("an own file");
            let log = File::create(directory.path().join("log")).expect("an own file");
            let mut child = Command::new("docker-registry")
                .arg("serve")
                .arg(&settings)
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("it starts");
            let mut ended = false;
            wait_until("the registry listens", || {
                ended = child.try_wait().expect("a child").is_some();
                ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            if !ended {
                return Some(Self { child, directory, port });
            }
        }
        panic!("{}", fs::read_to_string(directory.path().join("log")).unwrap_or_default());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Names a repository of it.
    pub(crate) fn name(&self, repository: &str) -> String {
        format!("127.0.0.1:{}/{repository}", self.port)
    }

    /// How many blobs a repository has.
    pub(crate) fn blobs(&self, repository: &str) -> u64 {
        let links = format!("data/docker/registry/v2/repositories/{repository}/_layers/sha256");
        fs::read_dir(self.directory.path().join(links)).map_or(0, |links| links.count() as u64)
    }

    /// The certificate of the authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _it_has_ended = self.child.kill();
        let _it_has_ended = self.child.wait();
    }
}

/// Makes an authority, `authority.pem`, and a certificate of it for this machine, `server.pem` and `server.key`.
pub(crate) fn make_certificates(directory: &Path) {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).current_dir(directory).stdin(Stdio::null());
        let output = command.output().expect("openssl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout authority.key -out authority.pem -days 2 -subj /CN=tests"));
    openssl(&format!("req {key} -keyout server.key -out server.csr -subj /CN=127.0.0.1"));
    fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("an own file");
    openssl(
        "x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
         -extfile names -out server.pem",
    );
}
