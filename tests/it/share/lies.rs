//! The program against a registry that lies: nothing of it is kept, and nothing is sent where it may not go.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::{
    Asked, Finished, Liar, Need, Place, Reply, Shelf, TASK, User, digest, lacks, wait_until,
};

const TAG: &str = "demo-one-cpu";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// What an honest registry holds after both tasks were pushed.
fn published() -> Option<&'static Shelf> {
    static PUBLISHED: OnceLock<Option<Shelf>> = OnceLock::new();
    let publish = || {
        if lacks(Need::Sandbox) {
            return None;
        }
        let place = Place::new(User::Caller);
        place.ok(&["build", "all"]);
        let registry = Liar::honest(Shelf::default());
        place.ok(&["push", "all", "--to", &registry.name()]);
        let shelf = registry.shelf().clone();
        Some(shelf)
    };
    PUBLISHED.get_or_init(publish).as_ref()
}

/// Pulls from `liar`, which must fail with `status` and leave nothing.
#[track_caller]
fn refused(liar: &Liar, status: i32, words: &str) -> Finished {
    let place = Place::new(User::Caller);
    let pulled = refused_by(&place, liar, status, words);
    place.assert_whole();
    pulled
}

#[track_caller]
fn refused_by(place: &Place, liar: &Liar, status: i32, words: &str) -> Finished {
    fs::write(place.path("infradev.toml"), "patience = 0.02\n").expect("an own file");
    let pulled = place.run(&["pull", TASK, "--from", &liar.name(), "--trust"]);
    assert!(pulled.status == status && pulled.stderr.contains(words), "{} {}", pulled.status, pulled.stderr);
    for below in ["roots/tasks", "steps"] {
        assert_eq!(place.listing(below), Vec::<String>::new(), "{below}");
    }
    pulled
}

/// The manifest of the first task, and its configuration.
fn documents(shelf: &Shelf) -> (Value, Value) {
    let manifest: Value = serde_json::from_slice(&shelf.manifests[TAG].1).expect("JSON");
    let configuration = &shelf.blobs[manifest["config"]["digest"].as_str().expect("a digest")];
    (manifest.clone(), serde_json::from_slice(configuration).expect("JSON"))
}

/// A shelf on which the tag names `manifest`, with `configuration`.
fn with(shelf: &Shelf, manifest: &Value, configuration: &Value) -> Shelf {
    let (mut shelf, mut manifest) = (shelf.clone(), manifest.clone());
    let bytes = configuration.to_string().into_bytes();
    manifest["config"]["digest"] = digest(&bytes).into();
    manifest["config"]["size"] = bytes.len().into();
    shelf.blobs.insert(digest(&bytes), bytes);
    shelf.manifests.insert(TAG.to_owned(), (MANIFEST.to_owned(), manifest.to_string().into_bytes()));
    shelf
}

#[test]
fn other_bytes_than_named_are_corruption() {
    // M01
    let Some(shelf) = published() else { return };
    let (manifest, _) = documents(shelf);
    let configuration = manifest["config"]["digest"].as_str().expect("a digest").to_owned();
    let mut bad = shelf.clone();
    bad.blobs.get_mut(&configuration).expect("it is there")[5] ^= 1;
    let liar = Liar::honest(bad);
    refused(&liar, 1, "does not hash to that");
    assert_eq!(liar.count("GET", &configuration), 1, "corruption is not tried again");
    // A layer, whole: this registry gives no parts.
    let layer = &manifest["layers"][0];
    let layer = layer["digest"].as_str().expect("a digest").to_owned();
    let mut bad = shelf.clone();
    let blob = bad.blobs.get_mut(&layer).expect("it is there");
    let middle = blob.len() / 2;
    blob[middle] ^= 1;
    let liar = Liar::serve(bad, no_parts);
    refused(&liar, 1, "does not hash to that");
    let is_whole = |asked: &&Asked| asked.is("GET", &layer) && asked.header("range").is_none();
    assert_eq!(liar.asked().iter().filter(is_whole).count(), 1, "corruption is not tried again");
}

fn no_parts(asked: &Asked, shelf: &mut Shelf) -> Option<Reply> {
    let digest = asked.target.rsplit('/').next().unwrap_or_default();
    let blob = shelf.blobs.get(digest).filter(|_| asked.is("GET", "/blobs/"))?;
    Some(Reply::new(200).body(blob.clone()))
}

#[test]
fn blobs_end_where_their_manifest_says() {
    // M02
    let Some(shelf) = published() else { return };
    let (manifest, configuration) = documents(shelf);
    for change in [-1, 1] {
        let mut bad = with(shelf, &manifest, &configuration);
        let mut manifest: Value = serde_json::from_slice(&bad.manifests[TAG].1).expect("JSON");
        let size = manifest["config"]["size"].as_i64().expect("a number");
        manifest["config"]["size"] = (size + change).into();
        bad.manifests.insert(TAG.to_owned(), (MANIFEST.to_owned(), manifest.to_string().into_bytes()));
        refused(&Liar::honest(bad), 1, "bytes that its manifest says");
    }
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let configuration = manifest["config"]["digest"].as_str().expect("a digest").to_owned();
    let liar = Liar::serve(shelf.clone(), move |asked, _| {
        let counter = Arc::clone(&counter);
        asked.is("GET", &configuration).then(|| {
            Reply::raw(move |stream| {
                let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                while counter.load(Ordering::SeqCst) < 256 << 20 && stream.write_all(&[0; 65_536]).is_ok() {
                    counter.fetch_add(65_536, Ordering::SeqCst);
                }
            })
        })
    });
    refused(&liar, 1, "bytes that its manifest says");
    assert!(sent.load(Ordering::SeqCst) < 64 << 20, "an endless body is not read");
}

#[test]
fn manifests_of_two_meanings_are_refused() {
    // M03, M04, M05
    let Some(shelf) = published() else { return };
    let text = String::from_utf8(shelf.manifests[TAG].1.clone()).expect("text");
    let (manifest, _) = documents(shelf);
    let layer = manifest["layers"][0]["digest"].as_str().expect("a digest");
    let itself = json!({ "schemaVersion": 2, "manifests": [
        { "mediaType": "application/vnd.oci.image.index.v1+json", "digest": layer, "size": 1 }
    ]});
    let place = Place::new(User::Caller);
    for (kind, text) in [
        (MANIFEST, text.replacen('{', r#"{"manifests":[],"#, 1)),
        (MANIFEST, text.replacen("\"layers\":", "\"layers\":[],\"layers\":", 1)),
        (MANIFEST, text.replacen(MANIFEST, "application/vnd.docker.distribution.manifest.v2+json", 1)),
        ("application/vnd.oci.image.index.v1+json", text.clone()),
        ("application/vnd.oci.image.index.v1+json", itself.to_string()),
        (MANIFEST, text.replacen(layer, "sha256:../../x", 1)),
        (MANIFEST, text.replacen(layer, &layer.to_uppercase(), 1)),
        (MANIFEST, text.replacen(layer, &layer[..70], 1)),
        (MANIFEST, text.replacen(layer, "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709", 1)),
        (MANIFEST, "[".repeat(1_000_000)),
        (MANIFEST, text[..text.len() / 2].to_owned()),
    ] {
        let mut bad = shelf.clone();
        bad.manifests.insert(TAG.to_owned(), (kind.to_owned(), text.clone().into_bytes()));
        let liar = Liar::honest(bad);
        refused_by(&place, &liar, 1, "cannot be pulled");
        let asked = liar.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
    }
    place.assert_whole();
    // As typed.
    let liar = Liar::honest(shelf.clone());
    let typed = place.run(&["pull", "--from", &format!("{}@sha256:../../x", liar.name())]);
    assert_eq!(typed.status, 2, "{}", typed.stderr);
    assert!(liar.asked().is_empty());
}

#[test]
fn archives_are_those_of_the_configuration() {
    // M06
    let Some(shelf) = published() else { return };
    let (manifest, configuration) = documents(shelf);
    let mut fewer = configuration.clone();
    fewer["rootfs"]["diff_ids"].as_array_mut().expect("a list").pop();
    refused(&Liar::honest(with(shelf, &manifest, &fewer)), 1, "layers, its manifest");
    let mut other = configuration.clone();
    for diff_id in other["rootfs"]["diff_ids"].as_array_mut().expect("a list") {
        *diff_id = digest(b"another").into();
    }
    let liar = Liar::serve(with(shelf, &manifest, &other), no_parts);
    refused(&liar, 1, "another archive than");
}

#[test]
fn urls_of_layers_are_not_fetched() {
    // M07
    let Some(shelf) = published() else { return };
    let (mut manifest, configuration) = documents(shelf);
    let elsewhere = Liar::honest(shelf.clone());
    for layer in manifest["layers"].as_array_mut().expect("a list") {
        layer["urls"] = json!([
            format!("http://{}/x", elsewhere.address()),
            "http://169.254.169.254/x",
            "file:///etc/passwd"
        ]);
    }
    let mut bad = with(shelf, &manifest, &configuration);
    for layer in manifest["layers"].as_array().expect("a list") {
        bad.blobs.remove(layer["digest"].as_str().expect("a digest"));
    }
    refused(&Liar::honest(bad), 4, "does not have blob");
    assert!(elsewhere.asked().is_empty());
}

#[test]
fn a_login_page_is_no_manifest() {
    // N07
    let Some(shelf) = published() else { return };
    let liar = Liar::serve(shelf.clone(), |asked, _| {
        (asked.target != "/v2/").then(|| Reply::new(200).header("Content-Type", "text/html").body("<html>"))
    });
    let pulled = refused(&liar, 3, "not a manifest");
    assert!(pulled.stderr.contains(liar.address()), "{}", pulled.stderr);
    assert_eq!(liar.asked().len(), 1);
}

#[test]
fn killed_before_the_tag_nothing_is_published() {
    // N05
    if lacks(Need::Sandbox) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", "all"]);
    let liar = Liar::honest(Shelf::default());
    let to = format!("{}:now", liar.name());
    place.ok(&["push", "demo/two", "--to", &to]);
    let old = liar.shelf().manifests["now"].clone();
    let reached = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&reached);
    liar.twist(move |asked, _| {
        asked.is("PUT", "/manifests/").then(|| {
            flag.store(true, Ordering::SeqCst);
            // Until the program is dead.
            Reply::raw(|stream| drop(std::io::copy(stream, &mut std::io::sink())))
        })
    });
    let mut child = place.command(&["-q", "push", TASK, "--to", &to]).spawn().expect("it starts");
    wait_until("the manifest is sent", || reached.load(Ordering::SeqCst));
    child.kill().expect("it runs");
    child.wait().expect("a child");
    assert_eq!(liar.shelf().manifests["now"], old, "the tag is as it was");
    liar.twist(|_, _| None);
    liar.forget();
    let again: Value = serde_json::from_str(&place.ok(&["--json", "push", TASK, "--to", &to])).expect("JSON");
    assert_eq!(
        again["pushed"][0]["uploaded_bytes"].as_u64().map(|bytes| bytes < 5_000),
        Some(true),
        "{again}"
    );
    assert_ne!(liar.shelf().manifests["now"], old);
    let other = Place::new(User::Caller);
    other.ok(&["pull", "--from", &to]);
    other.assert_whole();
}

#[test]
fn proxies_are_used_but_for_hosts_that_need_none() {
    let proxy = Liar::serve(Shelf::default(), |_, _| Some(Reply::new(404)));
    let place = Place::new(User::Caller);
    let pull = |none: &str, arguments: &[&str]| {
        let from = ["pull", TASK, "--from", "registry.invalid:5000/demo"];
        let mut command = place.command(&[arguments, &from].concat());
        command
            .env("HTTP_PROXY", format!("http://{}", proxy.address()))
            .env("NO_PROXY", none)
            .env("INFRADEV_PATIENCE", "0.01")
            .env("INFRADEV_PLAIN_HTTP", "registry.invalid:5000");
        place.finish(&mut command)
    };
    let through = pull("other.invalid", &[]);
    assert!(through.status == 4 && through.stderr.contains("does not have the image"), "{}", through.stderr);
    let asked = proxy.asked();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].target.starts_with("http://registry.invalid:5000/v2/demo/manifests/"), "{asked:?}");
    let direct = pull("registry.invalid", &[]);
    assert!(direct.status == 3 && direct.stderr.contains("registry.invalid:5000"), "{}", direct.stderr);
    let offline = pull("", &["--offline"]);
    assert!(offline.status == 4 && offline.stderr.contains("the network is off"), "{}", offline.stderr);
    assert_eq!(proxy.asked().len(), 1);
}
