//! Authorities of one's own reach the tools of the host, too.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::support::{Need, Place, TASK, User, lacks, make_certificates};

const SERVER: &str = r#"
import http.server, ssl
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("server.pem", "server.key")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _it_has_ended = self.0.kill();
        let _it_has_ended = self.0.wait();
    }
}

#[test]
fn git_believes_the_authorities_of_the_configuration() {
    if lacks(Need::Sandbox) || lacks(Need::Program("openssl")) {
        return;
    }
    let place = Place::new(User::Caller);
    make_certificates(&place.path(""));
    let mut command = place.tool("python3");
    let mut server = command.args(["-c", SERVER]).stdout(Stdio::piped()).spawn().expect("python3 runs");
    let mut port = String::new();
    BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut port).expect("it says its port");
    let _ends_with_the_test = Served(server);
    let url = format!("https://127.0.0.1:{}/repository", port.trim());
    let mirror = format!("{}={url}", "https://git.invalid/demo");
    let refused = place.run(&["--mirror", &mirror, "build", TASK]);
    assert!(refused.status == 3 && refused.stderr.contains("certificate"), "{}", refused.stderr);
    // The server is no repository; that git could ask it says that it was believed.
    std::fs::write(place.path("infradev.toml"), "ca-file = \"authority.pem\"\n").expect("an own file");
    let believed = place.run(&["--mirror", &mirror, "build", TASK]);
    assert_eq!(believed.status, 3, "{}", believed.stderr);
    assert!(
        believed.stderr.contains("not found") && !believed.stderr.contains("certificate"),
        "{}",
        believed.stderr
    );
    // Those of the system are not forgotten.
    let bundle = std::fs::read_to_string(place.store().join("caches/authorities.pem")).expect("a bundle");
    let own = std::fs::read_to_string(place.path("authority.pem")).expect("an authority");
    assert!(bundle.contains(&own));
}
