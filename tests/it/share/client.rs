//! The client against a registry that lies, is busy, slow, forgetful or broken.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use infradev::net::{AuthFile, Http, HttpSettings, NetError, Registry};
use infradev::share::{Digest, Remote, RemoteError};

use crate::support::{Asked, Liar, Reply, Shelf, digest, work_directory};

/// Waits are this much shorter than in life.
const PATIENCE: f64 = 0.02;

/// A client of `liar` with the credentials `user:secret`, and the directory of their file.
fn client(liar: &Liar) -> (Registry, tempfile::TempDir) {
    client_with(liar, PATIENCE)
}

fn client_with(liar: &Liar, patience: f64) -> (Registry, tempfile::TempDir) {
    let directory = tempfile::tempdir_in(work_directory()).expect("a directory");
    let path = directory.path().join("auth.json");
    // The entry is for this host alone; others must not see it.
    let text = format!(r#"{{"auths":{{"{}":{{"auth":"dXNlcjpzZWNyZXQ="}}}}}}"#, liar.address());
    std::fs::write(&path, text).expect("an own file");
    let settings = HttpSettings { patience, ..HttpSettings::default() };
    let http = Arc::new(Http::new(settings).expect("good settings"));
    let files = vec![AuthFile { path, named: true }];
    let (registry, given) = Registry::open(http, &liar.name(), files).expect("a name");
    assert_eq!(given, None);
    (registry, directory)
}

fn of(bytes: &[u8]) -> Digest {
    digest(bytes).parse().expect("a digest")
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile_in(work_directory()).expect("a file");
    file.write_all(bytes).expect("an own file");
    file
}

fn put(registry: &Registry, bytes: &[u8]) -> Result<(), RemoteError> {
    registry.put_blob(&of(bytes), bytes.len() as u64, &mut file(bytes), &|_| {})
}

fn get(registry: &Registry, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut read = vec![];
    let mut blob = registry.blob(&of(bytes), bytes.len() as u64, 0).map_err(std::io::Error::other)?;
    blob.read_to_end(&mut read)?;
    Ok(read)
}

fn blob(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 % 251) as u8).collect()
}

fn shelf(blobs: &[&[u8]]) -> Shelf {
    let blobs = blobs.iter().map(|blob| (digest(blob), blob.to_vec())).collect();
    Shelf { blobs, ..Shelf::default() }
}

fn said(error: &dyn std::error::Error) -> String {
    infradev::error::chain(error)
}

/// Answers the first `count` requests that `is_it` with `reply`.
fn first(
    count: usize,
    is_it: impl Fn(&Asked) -> bool + Send + Sync + 'static,
    reply: impl Fn() -> Reply + Send + Sync + 'static,
) -> impl Fn(&Asked, &mut Shelf) -> Option<Reply> + Send + Sync + 'static {
    let left = AtomicUsize::new(count);
    move |asked, _| {
        let take = |left: usize| left.checked_sub(1);
        let taken = is_it(asked) && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        taken.then(&reply)
    }
}

const OPEN_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

#[test]
fn blobs_of_every_size_come_back() {
    let liar = Liar::honest(Shelf::default());
    let (registry, _files) = client(&liar);
    for size in [0, 1, 2, 65_536, 200_001] {
        let bytes = blob(size);
        assert!(!registry.has_blob(&of(&bytes), size as u64).unwrap());
        put(&registry, &bytes).unwrap();
        assert!(registry.has_blob(&of(&bytes), size as u64).unwrap());
        assert_eq!(get(&registry, &bytes).unwrap(), bytes);
        let from = size / 3;
        let mut rest = vec![];
        registry.blob(&of(&bytes), size as u64, from as u64).unwrap().read_to_end(&mut rest).unwrap();
        assert_eq!(rest, bytes[from..]);
    }
    let bytes = blob(200_001);
    assert_eq!(registry.blob_part(&of(&bytes), 7, 100).unwrap(), Some(bytes[7..107].to_vec()));
    assert!(matches!(registry.blob_part(&of(&bytes), 200_000, 2), Err(RemoteError::Corrupt { .. })));
    assert!(matches!(registry.blob_part(&of(b"no"), 0, 2), Err(RemoteError::Absent { .. })));
    liar.twist(|asked, shelf| {
        asked.is("GET", "/blobs/").then(|| Reply::new(200).body(shelf.blobs.values().last().unwrap().clone()))
    });
    assert_eq!(registry.blob_part(&of(&bytes), 7, 100).unwrap(), None, "parts are not given");
}

/// As docker-registry answers while another push links a blob that the manifest names.
#[test]
fn a_manifest_that_was_looked_at_too_early_is_put_again() {
    let invalid = || {
        Reply::new(400)
            .body(r#"{"errors":[{"code":"DIGEST_INVALID","message":"provided digest did not match"}]}"#)
    };
    let liar = Liar::serve(Shelf::default(), first(2, |asked| asked.is("PUT", "/manifests/"), invalid));
    let (registry, _files) = client(&liar);
    registry.put_manifest("tag", OPEN_MANIFEST, b"{}").unwrap();
    assert_eq!(liar.count("PUT", "/manifests/"), 3);
    liar.twist(move |asked, _| asked.is("PUT", "/manifests/").then(invalid));
    liar.forget();
    let error = registry.put_manifest("tag", OPEN_MANIFEST, b"{}").unwrap_err();
    assert!(said(&error).contains("DIGEST_INVALID"), "{error}");
    assert_eq!(liar.count("PUT", "/manifests/"), 5);
    liar.twist(|asked, _| asked.is("PUT", "/manifests/").then(|| Reply::new(400)));
    liar.forget();
    registry.put_manifest("tag", OPEN_MANIFEST, b"{}").unwrap_err();
    assert_eq!(liar.count("PUT", "/manifests/"), 1, "what is refused is refused");
}

#[test]
fn busy_registries_are_waited_for() {
    // N01
    let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(2));
    for after in [Some("2".to_owned()), Some(soon), None, Some("1000000000".to_owned())] {
        let bytes = blob(100);
        let reply = move || match &after {
            Some(after) => Reply::new(429).header("Retry-After", after.clone()),
            None => Reply::new(429),
        };
        let liar = Liar::serve(shelf(&[&bytes]), first(1, |asked| asked.is("GET", "/blobs/"), reply));
        let (registry, _files) = client(&liar);
        assert_eq!(get(&registry, &bytes).unwrap(), bytes);
        assert_eq!(liar.count("GET", "/blobs/"), 2);
    }
    let never = Liar::serve(Shelf::default(), |asked, _| {
        (asked.target != "/v2/").then(|| {
            Reply::new(429)
                .header("Retry-After", "9999999999")
                .body(r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#)
        })
    });
    let (registry, _files) = client(&never);
    let error = registry.tags().unwrap_err();
    assert!(said(&error).contains("429") && said(&error).contains("TOOMANYREQUESTS: slow down"), "{error}");
    assert!(said(&error).contains(never.address()));
    assert!(never.asked().len() <= 5);
}

#[test]
fn broken_uploads_go_on_where_they_broke() {
    // N02
    let bytes = blob(300_000);
    let liar = Liar::serve(Shelf::default(), first(2, |asked| asked.is("PATCH", ""), || Reply::new(503)));
    let (registry, _files) = client(&liar);
    put(&registry, &bytes).unwrap();
    assert_eq!(get(&registry, &bytes).unwrap(), bytes);

    for at in [0, 1, 100_000, 299_999] {
        let liar = Liar::honest(Shelf { cut: Some(at), ..Shelf::default() });
        let (registry, _files) = client(&liar);
        put(&registry, &bytes).unwrap();
        assert_eq!(get(&registry, &bytes).unwrap(), bytes);
        let sent: Vec<usize> = liar
            .asked()
            .iter()
            .filter(|asked| asked.method == "PATCH")
            .map(|asked| asked.body.len())
            .collect();
        // One byte cannot be told from none.
        let kept = if at == 1 { None } else { Some(at) };
        if let Some(at) = kept {
            assert_eq!(sent, [at, bytes.len() - at], "cut at {at}");
        }
        assert_eq!(liar.count("POST", ""), if at == 1 { 2 } else { 1 });
    }
    // The answer to the last request is lost; the upload is not.
    let liar = Liar::serve(Shelf::default(), |asked, shelf| {
        asked.is("PUT", "/uploads/").then(|| {
            let upload = std::mem::take(shelf.uploads.values_mut().next().unwrap());
            shelf.blobs.insert(digest(&upload), upload);
            Reply::raw(|_| {})
        })
    });
    let (registry, _files) = client(&liar);
    put(&registry, &bytes).unwrap();
    assert_eq!(liar.count("PUT", ""), 1);
    // The registry forgets the upload, once; then always.
    let liar =
        Liar::serve(Shelf::default(), first(1, |asked| asked.is("PUT", "/uploads/"), || Reply::new(404)));
    let (registry, _files) = client(&liar);
    put(&registry, &bytes).unwrap();
    assert_eq!(liar.count("POST", ""), 2);
    liar.twist(|asked, _| asked.is("PATCH", "/uploads/").then(|| Reply::new(404)));
    liar.forget();
    let error = put(&registry, &blob(10)).unwrap_err();
    assert!(said(&error).contains("lost the upload"), "{error}");
    assert!(liar.count("POST", "") <= 5);
    // Byte by byte is not for ever.
    liar.twist(|asked, shelf| {
        asked.is("PATCH", "/uploads/").then(|| {
            let upload = shelf.uploads.values_mut().last().unwrap();
            upload.extend(&asked.body[..2]);
            Reply::new(202)
                .header("Location", asked.target.clone())
                .header("Range", format!("0-{}", upload.len() - 1))
        })
    });
    liar.forget();
    let error = put(&registry, &bytes).unwrap_err();
    assert!(said(&error).contains("less than all"), "{error}");
    assert!(liar.count("PATCH", "") < 50);
    // Other bytes arrive than were sent: no second try.
    liar.twist(|asked, shelf| {
        if asked.is("PUT", "/uploads/") {
            shelf.uploads.values_mut().for_each(|upload| upload.push(0));
        }
        None
    });
    liar.forget();
    let error = put(&registry, &blob(11)).unwrap_err();
    assert!(said(&error).contains("DIGEST_INVALID"), "{error}");
    assert_eq!(liar.count("PUT", ""), 1);
}

#[test]
fn broken_downloads_go_on_where_they_broke() {
    let bytes = blob(100_000);
    let whole = bytes.clone();
    let cut = move || {
        let bytes = whole.clone();
        Reply::raw(move |stream| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
            let _gone = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&bytes[..40_000]));
        })
    };
    let liar = Liar::serve(shelf(&[&bytes]), first(1, |asked| asked.is("GET", "/blobs/"), cut));
    let (registry, _files) = client(&liar);
    assert_eq!(get(&registry, &bytes).unwrap(), bytes);
    let ranges: Vec<_> = liar.asked().iter().map(|asked| asked.header("range").map(str::to_owned)).collect();
    assert_eq!(ranges, [None, Some("bytes=40000-".to_owned())]);
    // A registry that always breaks is given up.
    liar.twist(|asked, _| {
        asked.is("GET", "/blobs/").then(|| {
            Reply::raw(|stream| {
                let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nx");
            })
        })
    });
    let error = get(&registry, &bytes).unwrap_err();
    assert!(error.downcast::<NetError>().is_ok());
}

#[test]
fn stalled_transfers_end() {
    // N06
    let bytes = blob(100_000);
    let slow = |asked: &Asked, _: &mut Shelf| {
        asked.is("GET", "/blobs/").then(|| {
            Reply::raw(|stream| {
                let _gone = stream.write_all(b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-99999/100000\r\nContent-Length: 100000\r\n\r\n");
                while stream.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(200));
                }
            })
        })
    };
    let liar = Liar::serve(shelf(&[&bytes]), slow);
    let (registry, _files) = client_with(&liar, PATIENCE / 4.0);
    let error = registry.blob_part(&of(&bytes), 0, bytes.len() as u64).unwrap_err();
    assert!(said(&error).contains("stalled"), "{}", said(&error));
    assert!(liar.count("GET", "/blobs/") <= 5);
    // One that never answers.
    liar.twist(|asked, _| {
        (asked.target != "/v2/").then(|| Reply::raw(|_| std::thread::sleep(Duration::from_secs(2))))
    });
    let error = registry.tags().unwrap_err();
    assert!(said(&error).contains("silent"), "{}", said(&error));
}

/// A registry that wants tokens, and gives those numbered by `issued` to `user:secret` alone.
fn with_tokens(asked: &Asked, address: &str, issued: &AtomicUsize) -> Option<Reply> {
    let current = || format!("Bearer token{}", issued.load(Ordering::SeqCst));
    if asked.target.starts_with("/token?") {
        if asked.header("authorization") != Some("Basic dXNlcjpzZWNyZXQ=") {
            return Some(Reply::new(401));
        }
        let number = issued.fetch_add(1, Ordering::SeqCst) + 1;
        return Some(Reply::new(200).body(format!(r#"{{"token":"token{number}","expires_in":300}}"#)));
    }
    let known = asked.header("authorization") == Some(&current());
    (!known && asked.target != "/v2/").then(|| challenge(&format!("http://{address}/token")))
}

fn challenge(realm: &str) -> Reply {
    Reply::new(401).header("WWW-Authenticate", format!(r#"Bearer realm="{realm}",service="tests""#))
}

#[test]
fn tokens_are_renewed_once() {
    // N03: with each new token the others end, and the one that is used ends in the middle of the push.
    let issued = Arc::new(AtomicUsize::new(0));
    let liar = Liar::honest(Shelf::default());
    let (address, counter) = (liar.address().to_owned(), Arc::clone(&issued));
    let ended = AtomicUsize::new(0);
    liar.twist(move |asked, _| {
        if asked.method == "PUT" && ended.fetch_add(1, Ordering::SeqCst) == 0 {
            return Some(challenge(&format!("http://{address}/token")));
        }
        with_tokens(asked, &address, &counter)
    });
    let (registry, _files) = client(&liar);
    let bytes = blob(1000);
    put(&registry, &bytes).unwrap();
    assert_eq!(liar.count("GET", "/token?"), 2);
    assert!(liar.asked().iter().any(|asked| asked.target.contains("scope=repository%3Ademo%3Apull%2Cpush")));
    assert_eq!(get(&registry, &bytes).unwrap(), bytes);

    // Refused twice is refused; forbidden is not tried again.
    for (status, realm) in [(401, true), (403, false)] {
        let address = liar.address().to_owned();
        let counter = Arc::clone(&issued);
        liar.twist(move |asked, _| match asked.target.starts_with("/token?") {
            true => with_tokens(asked, &address, &counter),
            false => Some(match realm {
                true => challenge(&format!("http://{address}/token")),
                false => Reply::new(status).body(r#"{"errors":[{"code":"DENIED","message":"no\u001b[2J"}]}"#),
            }),
        });
        liar.forget();
        let error = registry.manifest("v1").unwrap_err();
        assert!(matches!(&error, RemoteError::Net(NetError::Denied { known: true, .. })), "{error:?}");
        assert!(said(&error).contains(&status.to_string()) && !said(&error).contains('\u{1b}'), "{error}");
        assert!(liar.count("GET", "/manifests/") <= 2);
    }
}

#[test]
fn credentials_go_to_their_host_alone() {
    let other = Liar::honest(Shelf::default());
    // M08
    let liar = Liar::honest(Shelf::default());
    for realm in [
        "http://127.0.0.1:1/".to_owned(),
        format!("http://{}/token", other.address()),
        "http://192.0.2.1/token".to_owned(),
        "file:///etc/passwd".to_owned(),
        "gopher://127.0.0.1/".to_owned(),
        format!("http://user:pass@{}/token", liar.address()),
        "/token".to_owned(),
        String::new(),
    ] {
        let named = realm.clone();
        liar.twist(move |asked, _| (asked.target != "/v2/").then(|| challenge(&named)));
        liar.forget();
        let (registry, _files) = client(&liar);
        let error = registry.tags().unwrap_err();
        assert!(matches!(&error, RemoteError::Net(NetError::Unsafe { .. })), "{realm}: {error:?}");
        assert!(liar.asked().iter().all(|asked| asked.header("authorization").is_none()), "{realm}");
        assert_eq!(liar.asked().len(), 1, "{realm}");
    }
    assert!(other.asked().is_empty());

    // M09: a redirect, by basic authentication
    let bytes = blob(5000);
    other.shelf().blobs.insert(digest(&bytes), bytes.clone());
    let target = other.name();
    liar.twist(move |asked, _| {
        if asked.target == "/v2/" {
            return None;
        }
        if asked.header("authorization") != Some("Basic dXNlcjpzZWNyZXQ=") {
            return Some(Reply::new(401).header("WWW-Authenticate", "Basic realm=\"x\""));
        }
        let path = asked.target.rsplit_once("/demo/").map(|(_, path)| path.to_owned()).unwrap_or_default();
        let target = target.replace("/demo", &format!("/v2/demo/{path}"));
        asked.is("GET", "/blobs/").then(|| Reply::new(307).header("Location", format!("http://{target}")))
    });
    liar.forget();
    let (registry, _files) = client(&liar);
    assert_eq!(get(&registry, &bytes).unwrap(), bytes);
    assert_eq!(liar.asked().len(), 2);
    let seen = other.asked();
    assert!(seen.len() == 1 && seen[0].header("authorization").is_none(), "{seen:?}");

    // Redirects to where nothing is sent, and without an end.
    for location in [
        "http://192.0.2.1/x",
        "file:///etc/passwd",
        "http://user:pass@127.0.0.1:1/",
        "gopher://127.0.0.1/",
        "/v2/demo/blobs/again",
    ] {
        liar.twist(move |asked, _| {
            asked.is("GET", "/blobs/").then(|| Reply::new(302).header("Location", location))
        });
        liar.forget();
        let error = registry.blob(&of(&bytes), 5000, 0).err().expect("refused");
        assert!(matches!(&error, RemoteError::Net(NetError::Unsafe { .. })), "{location}: {error:?}");
        assert!(liar.asked().len() <= 6, "{location}");
    }
}

#[test]
fn uploads_elsewhere_go_without_credentials() {
    // M09: an upload's location
    let bytes = blob(5000);
    let other = Liar::honest(Shelf::default());
    other.shelf().uploads.insert(7, vec![]);
    let target = format!("http://{}/v2/demo/blobs/uploads/7", other.address());
    let liar = Liar::serve(Shelf::default(), move |asked, _| {
        if asked.target != "/v2/" && asked.header("authorization").is_none() {
            return Some(Reply::new(401).header("WWW-Authenticate", "Basic realm=\"x\""));
        }
        asked.is("POST", "/uploads/").then(|| Reply::new(202).header("Location", target.clone()))
    });
    let (registry, _files) = client(&liar);
    put(&registry, &bytes).unwrap();
    assert_eq!(other.shelf().blobs.get(&digest(&bytes)), Some(&bytes));
    assert!(other.asked().len() >= 2);
    assert!(other.asked().iter().all(|asked| asked.header("authorization").is_none()));
    for location in ["http://192.0.2.1/x", "file:///tmp/x", ""] {
        liar.twist(move |asked, _| {
            asked.is("POST", "/uploads/").then(|| Reply::new(202).header("Location", location))
        });
        liar.forget();
        assert!(put(&registry, &bytes).is_err(), "{location}");
        assert_eq!(liar.count("PATCH", "") + liar.count("PUT", ""), 0, "{location}");
    }
}

#[test]
fn a_mount_that_is_refused_is_an_upload() {
    // N04
    let bytes = blob(5000);
    let liar = Liar::honest(Shelf::default());
    let (registry, _files) = client(&liar);
    let from = format!("{}/other/name", liar.address());
    assert!(!registry.mount_blob(&of(&bytes), &from).unwrap());
    let asked = liar.asked();
    assert!(
        asked[0].target.contains("mount=sha256") && asked[0].target.contains("from=other%2Fname"),
        "{asked:?}"
    );
    assert!(asked[1].is("DELETE", "/uploads/"), "{asked:?}");
    put(&registry, &bytes).unwrap();
    liar.twist(|asked, _| asked.is("POST", "mount=").then(|| Reply::new(201)));
    assert!(registry.mount_blob(&of(&bytes), &from).unwrap());
    liar.forget();
    assert!(!registry.mount_blob(&of(&bytes), "elsewhere.example/other").unwrap());
    assert!(liar.asked().is_empty(), "nothing of another registry is asked for");
}

#[test]
fn manifests_are_what_they_should_be() {
    let liar = Liar::honest(Shelf::default());
    let (registry, _files) = client(&liar);
    let text = br#"{"schemaVersion":2}"#;
    registry.put_manifest("v1", OPEN_MANIFEST, text).unwrap();
    let found = registry.manifest("v1").unwrap().expect("it is there");
    assert_eq!((found.media_type.as_str(), found.digest), (OPEN_MANIFEST, of(text)));
    assert_eq!(registry.manifest(&of(text).to_string()).unwrap(), Some(found));
    assert_eq!(registry.manifest("v2").unwrap(), None);
    assert_eq!(registry.tags().unwrap(), ["v1"]);
    // M04
    liar.forget();
    for bad in ["sha256:../../x", "../x", "sha256:00", "", "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709"] {
        assert!(registry.manifest(bad).is_err(), "{bad}");
    }
    assert!(liar.asked().is_empty());
    // M01, M05, N07
    let kind = "application/vnd.oci.image.manifest.v1+json; charset=utf-8";
    let good = move || Reply::new(200).header("Content-Type", kind);
    type Case = (&'static str, fn() -> Reply, &'static str);
    let cases: [Case; 4] = [
        (
            "v1",
            || Reply::new(200).header("Content-Type", "text/html").body("<html>log in"),
            "text/html, which is not a manifest",
        ),
        ("v1", || Reply::new(200).body("{}"), "not a manifest"),
        (
            "v1",
            || {
                Reply::new(200)
                    .header("Content-Type", OPEN_MANIFEST)
                    .header("Docker-Content-Digest", "sha256:0")
                    .body("{}")
            },
            "hashes to",
        ),
        ("", || Reply::new(200).header("Content-Type", OPEN_MANIFEST).body("{}"), "hashes to"),
    ];
    for (reference, reply, words) in cases {
        let reference = if reference.is_empty() { of(text).to_string() } else { reference.to_owned() };
        liar.twist(move |asked, _| asked.is("GET", "/manifests/").then(reply));
        liar.forget();
        let error = registry.manifest(&reference).unwrap_err();
        assert!(said(&error).contains(words) && said(&error).contains(liar.address()), "{error}");
        assert_eq!(liar.asked().len(), 1, "{words}");
    }
    liar.twist(move |asked, _| asked.is("GET", "/manifests/").then(|| good().body("{}")));
    assert_eq!(registry.manifest("v1").unwrap().expect("it is there").media_type, OPEN_MANIFEST);
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    liar.twist(move |asked, _| {
        let counter = Arc::clone(&counter);
        asked.is("GET", "/manifests/").then(|| {
            Reply::raw(move |stream| {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {OPEN_MANIFEST}\r\nContent-Length: 52428800\r\n\r\n"
                );
                let _gone = stream.write_all(head.as_bytes());
                while counter.load(Ordering::SeqCst) < 52_428_800 && stream.write_all(&[b' '; 65_536]).is_ok()
                {
                    counter.fetch_add(65_536, Ordering::SeqCst);
                }
            })
        })
    });
    let error = registry.manifest("v1").unwrap_err();
    assert!(said(&error).contains("more than 4194304 bytes"), "{error}");
    assert!(sent.load(Ordering::SeqCst) < 40 << 20, "the rest is not read");
}

#[test]
fn referrers_are_found_by_list_or_by_tag() {
    const KIND: &str = "application/vnd.tests.v1";
    let liar = Liar::honest(Shelf::default());
    let (registry, _files) = client(&liar);
    let (subject, text) = (of(b"subject"), br#"{"schemaVersion":2}"#);
    assert_eq!(registry.referrers(&subject, KIND).unwrap(), []);
    registry.put_manifest(&of(text).to_string(), OPEN_MANIFEST, text).unwrap();
    let manifest = registry.manifest(&of(text).to_string()).unwrap().expect("it is there");
    for _ in 0..2 {
        registry.add_referrer(&subject, &manifest, KIND).unwrap();
    }
    assert_eq!(registry.referrers(&subject, KIND).unwrap(), [of(text)]);
    assert_eq!(registry.referrers(&subject, "other").unwrap(), []);
    assert_eq!(registry.tags().unwrap(), [format!("sha256-{}", subject.hex())]);
    assert_eq!(liar.count("PUT", "/manifests/sha256-"), 1);

    let list = |digest: Digest| {
        format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{{"mediaType":"{OPEN_MANIFEST}","digest":"{digest}","size":1,"artifactType":"{KIND}"}}]}}"#
        )
    };
    let index = "application/vnd.oci.image.index.v1+json";
    let pages = move |asked: &Asked, _: &mut Shelf| {
        asked.is("GET", "/referrers/").then(|| match asked.target.contains("page=2") {
            false => Reply::new(200)
                .header("Content-Type", index)
                .header("Link", "</v2/demo/referrers/x?page=2>; rel=\"next\"")
                .body(list(of(b"1"))),
            true => Reply::new(200).header("Content-Type", index).body(list(of(b"2"))),
        })
    };
    let liar = Liar::serve(Shelf::default(), pages);
    let (registry, _files) = client(&liar);
    assert_eq!(registry.referrers(&subject, KIND).unwrap(), [of(b"1"), of(b"2")]);
    registry.add_referrer(&subject, &manifest, KIND).unwrap();
    assert_eq!(liar.count("PUT", ""), 0, "the registry lists it by itself");
}

#[test]
fn lists_have_an_end() {
    let page = |link: &'static str| {
        move |asked: &Asked, _: &mut Shelf| {
            asked
                .is("GET", "/tags/list")
                .then(|| Reply::new(200).header("Link", link).body(r#"{"name":"demo","tags":["a","../x"]}"#))
        }
    };
    let liar = Liar::serve(Shelf::default(), page("</v2/demo/tags/list?last=a>; rel=\"next\""));
    let (registry, _files) = client(&liar);
    assert!(said(&registry.tags().unwrap_err()).contains("more than 100 pages"));
    assert_eq!(liar.asked().len(), 100);
    liar.twist(page("<http://192.0.2.1/v2/demo/tags/list>; rel=\"next\""));
    assert!(said(&registry.tags().unwrap_err()).contains("another host"));
    liar.twist(page("<>"));
    assert_eq!(registry.tags().unwrap(), ["a"]);
    liar.twist(|asked, _| asked.is("DELETE", "").then(|| Reply::new(405)));
    assert!(!registry.remove_manifest(&of(b"x")).unwrap());
    liar.twist(|_, _| None);
    assert!(registry.remove_manifest(&of(b"x")).unwrap(), "it is not there");
}
