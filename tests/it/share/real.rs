//! Debian's own registry: open, with a password, by TLS; and killed in the middle.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use infradev::net::{Http, HttpSettings, Registry};
use infradev::share::{Digest, Remote};

use super::round::{json, round_trip};
use crate::support::{
    Guard, Need, Place, RealRegistry, Relay, TASK, User, digest, lacks, rounds, work_directory,
};

/// A place that has built both tasks.
fn built() -> Option<Place> {
    if lacks(Need::Sandbox) {
        return None;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", "all"]);
    Some(place)
}

#[test]
fn tasks_go_through_a_registry_and_only_what_is_missing_moves() {
    let Some(registry) = RealRegistry::start(Guard::Open) else { return };
    let Some(place) = built() else { return };
    let relay = Relay::to(registry.port());
    round_trip(&place, &relay.name("team/demo"), "zstd", &|user| Some(Place::new(user)));
    relay.moved();
    // What is there is asked for, and not sent.
    place.ok(&["push", "all", "--to", &relay.name("team/demo")]);
    let (up, _) = relay.moved();
    assert!(up < 30_000, "{up} bytes sent for nothing");
    // Another repository of the registry takes its blobs from the first.
    let pushed = json(&place.ok(&["--json", "push", TASK, "--to", &relay.name("other")]));
    let (pushed, (up, _)) = (&pushed["pushed"][0], relay.moved());
    assert!(pushed["mounted"].as_u64() > Some(0), "{pushed}");
    assert!(up < 40_000, "{up} bytes sent although they were there");
    let other = Place::new(User::Caller);
    other.ok(&["pull", TASK, "--from", &relay.name("other"), "--trust"]);
    relay.moved();
    let pulled = json(&other.ok(&["--json", "pull", "demo/two", "--from", &relay.name("team/demo")]));
    let (up, down) = relay.moved();
    let counted = pulled["pulled"][0]["fetched_bytes"].as_u64().expect("a number");
    // Heads of requests and answers come on top of what the program counts.
    assert!(down >= counted && down < counted + 30_000, "{counted} counted, {down} came");
    assert!(up < 30_000, "{up} bytes sent to fetch {down}");
    // By digest, with a tag that says nothing.
    let reference = pulled["pulled"][0]["digest"].as_str().expect("a digest").to_owned();
    let exact = format!("{}:none@{reference}", relay.name("team/demo"));
    other.ok(&["pull", "--from", &exact]);
    let absent = other.run(&["pull", "--from", &relay.name("team/demo:none")]);
    assert!(absent.status == 4 && absent.stderr.contains("does not have the image"), "{}", absent.stderr);
    other.assert_whole();
}

#[test]
fn a_cut_connection_costs_what_it_carried() {
    let Some(registry) = RealRegistry::start(Guard::Open) else { return };
    let Some(place) = built() else { return };
    let relay = Relay::to(registry.port());
    fs::write(place.path("infradev.toml"), "patience = 0.05\n").expect("an own file");
    for (number, at) in [1_500, 9_000].into_iter().enumerate() {
        let remote = relay.name(&format!("cut{number}"));
        relay.cut_after(at);
        place.ok(&["push", "all", "--to", &remote]);
        let other = Place::new(User::Caller);
        other.ok(&["pull", "all", "--from", &remote]);
        other.assert_whole();
    }
    assert_eq!(relay.cuts(), 2);
}

#[test]
fn large_blobs_go_in_chunks() {
    let Some(registry) = RealRegistry::start(Guard::Open) else { return };
    let relay = Relay::to(registry.port());
    let settings = HttpSettings { patience: 0.05, ..HttpSettings::default() };
    let http = Arc::new(Http::new(settings).expect("good settings"));
    let (client, _) = Registry::open(http, &relay.name("large"), vec![]).expect("a name");
    let size = 70 << 20;
    let content: Vec<u8> =
        (0..size / 4).flat_map(|at: u32| at.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let named: Digest = digest(&content).parse().expect("a digest");
    let mut file = tempfile::tempfile_in(work_directory()).expect("a file");
    file.write_all(&content).expect("an own file");
    // In the second of three chunks; this registry then forgets the upload.
    relay.cut_after(50 << 20);
    let heard = AtomicU64::new(0);
    let progress = |count| {
        heard.fetch_add(count, Ordering::SeqCst);
    };
    client.put_blob(&named, u64::from(size), &mut file, &progress).expect("it goes over");
    let (up, _) = relay.moved();
    assert_eq!(relay.cuts(), 1);
    assert!(up < 125 << 20, "{up} bytes sent");
    assert!(heard.load(Ordering::SeqCst) >= u64::from(size));
    let mut back = vec![];
    client.blob(&named, u64::from(size), 0).expect("it is there").read_to_end(&mut back).expect("it reads");
    assert!(back == content);
    let part = client.blob_part(&named, 1 << 20, 1000).expect("it is there").expect("parts are given");
    assert!(part == content[1 << 20..][..1000]);
}

#[test]
fn credentials_are_found_and_wrong_ones_are_said() {
    let Some(registry) = RealRegistry::start(Guard::Password) else { return };
    let Some(place) = built() else { return };
    let remote = registry.name("team/demo");
    let push = |files: &[(&str, &str)], variables: &[(&str, &str)]| {
        for (path, text) in files {
            let path = place.path(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("an own directory");
            fs::write(path, text).expect("an own file");
        }
        let mut command = place.command(&["push", TASK, "--to", &remote]);
        place.finish(command.envs(variables.iter().map(|(name, value)| (name, place.path(value)))))
    };
    let none = push(&[], &[]);
    assert_eq!(none.status, 3, "{}", none.stderr);
    assert!(none.stderr.contains("anybody without credentials") && none.stderr.contains("docker login"));
    let host = remote.split('/').next().expect("a host");
    // `user:wrong`
    let wrong = format!(r#"{{"auths":{{"{host}":{{"auth":"dXNlcjp3cm9uZw=="}}}}}}"#);
    let refused = push(&[("wrong.json", &wrong)], &[("REGISTRY_AUTH_FILE", "wrong.json")]);
    assert_eq!(refused.status, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("does not let these credentials"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("dXNlcjp3cm9uZw"), "{}", refused.stderr);
    let named = push(&[], &[("REGISTRY_AUTH_FILE", "absent.json")]);
    assert!(named.status == 2 && named.stderr.contains("absent.json"), "{}", named.stderr);
    // `user:secret`: for the namespace, over the wrong ones of the host.
    let right = "dXNlcjpzZWNyZXQ=";
    let longer = format!(
        r#"{{"auths":{{"{host}":{{"auth":"dXNlcjp3cm9uZw=="}},"{host}/team":{{"auth":"{right}"}}}}}}"#
    );
    let pushed = push(&[("auth.json", &longer)], &[("REGISTRY_AUTH_FILE", "auth.json")]);
    assert_eq!(pushed.status, 0, "{}", pushed.stderr);
    // podman's file, then docker's, in their usual places.
    let plain = format!(r#"{{"auths":{{"{host}":{{"auth":"{right}"}}}}}}"#);
    let podman = push(&[("run/containers/auth.json", &plain)], &[("XDG_RUNTIME_DIR", "run")]);
    assert_eq!(podman.status, 0, "{}", podman.stderr);
    let helped = format!(r#"{{"credHelpers":{{"{host}":"tests"}}}}"#);
    let helper = "#!/bin/sh\ncat > \"$0.asked\"\necho '{\"Username\":\"user\",\"Secret\":\"secret\"}'\n";
    let files = [("home/.docker/config.json", &*helped), ("bin/docker-credential-tests", helper)];
    let absent = push(&files, &[]);
    assert!(absent.status == 2 && absent.stderr.contains("config.json"), "{}", absent.stderr);
    let path = place.path("bin/docker-credential-tests");
    std::process::Command::new("chmod").arg("755").arg(&path).status().expect("chmod runs");
    let mut command = place.command(&["pull", TASK, "--from", &remote]);
    let search = format!("{}:/usr/bin:/bin", place.path("bin").display());
    let pulled = place.finish(command.env("PATH", search));
    assert_eq!(pulled.status, 0, "{}", pulled.stderr);
    let asked = fs::read_to_string(place.path("bin/docker-credential-tests.asked")).expect("it was asked");
    assert_eq!(asked, host);
}

#[test]
fn only_known_authorities_are_believed() {
    let Some(registry) = RealRegistry::start(Guard::Tls) else { return };
    let Some(place) = built() else { return };
    let remote = registry.name("demo");
    let push = ["push", TASK, "--to", &remote];
    let refused = place.run(&push);
    assert_eq!(refused.status, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("ca-file"), "{}", refused.stderr);
    let by_variable = place.finish(place.command(&push).env("SSL_CERT_FILE", registry.authority()));
    assert_eq!(by_variable.status, 0, "{}", by_variable.stderr);
    let other = Place::new(User::Caller);
    let text = format!("ca-file = \"{}\"\n", registry.authority().display());
    fs::write(other.path("infradev.toml"), text).expect("an own file");
    other.ok(&["pull", TASK, "--from", &remote, "--trust"]);
    other.assert_whole();
}

#[test]
fn build_steps_go_through_a_registry() {
    let Some(registry) = RealRegistry::start(Guard::Open) else { return };
    let Some(place) = built() else { return };
    let remote = registry.name("team/steps");
    place.ok(&["ci", "save", "all", "--to", &remote, "--all"]);
    let other = Place::new(User::Caller);
    let restored = other.run(&["ci", "restore", TASK, "--from", &remote, "--trust", "--require-hit"]);
    assert!(restored.status == 0 && restored.stderr.contains("6 of 6 steps restored"), "{}", restored.stderr);
    other.ok(&["--offline", "build", TASK, "--require-hit"]);
    place.ok(&["prune", TASK, "--remote", &remote]);
    let left = json(&place.ok(&["--json", "ci", "save", "all", "--to", &remote, "--all"]));
    assert!(left["saved"] == 1 && left["present"] == 6, "{left}");
}

#[test]
fn what_cannot_be_used_is_never_replaced() {
    let place = Place::new(User::Caller);
    fs::write(place.path("empty.pem"), "no certificate\n").expect("an own file");
    for (name, value, said) in [
        ("INFRADEV_CA_FILE", "absent.pem", "absent.pem"),
        ("INFRADEV_CA_FILE", "empty.pem", "it holds no certificate"),
        ("SSL_CERT_FILE", "absent.pem", "SSL_CERT_FILE"),
        ("SSL_CERT_DIR", "absent", "SSL_CERT_DIR"),
        ("HTTPS_PROXY", "http://[nonsense", "HTTPS_PROXY"),
        ("https_proxy", "socks4://127.0.0.1:1", "HTTPS_PROXY"),
        ("INFRADEV_PATIENCE", "soon", "INFRADEV_PATIENCE"),
        ("INFRADEV_PATIENCE", "0", "INFRADEV_PATIENCE"),
    ] {
        let mut command = place.command(&["pull", TASK, "--from", "127.0.0.1:1/demo"]);
        let finished = place.finish(command.env(name, value));
        assert_eq!(finished.status, 2, "{name}={value}: {}", finished.stderr);
        assert!(finished.stderr.contains(said), "{name}={value}: {}", finished.stderr);
    }
}

#[test]
fn killed_at_any_moment_the_tag_names_something_whole() {
    let Some(registry) = RealRegistry::start(Guard::Open) else { return };
    let Some(place) = built() else { return };
    let started = Instant::now();
    place.ok(&["push", TASK, "--to", &registry.name("whole")]);
    let push_takes = started.elapsed();
    let whole = Place::new(User::Caller);
    let started = Instant::now();
    whole.ok(&["pull", TASK, "--from", &registry.name("whole"), "--trust"]);
    let pull_takes = started.elapsed();
    let layers = stored_layers(&whole);
    let rounds = rounds(6, 100);
    for round in 0..rounds {
        let at = |all: Duration| all.mul_f64((round as f64 + 0.5) / rounds as f64);
        // Nothing of it is known to be elsewhere, so all of it is sent.
        fs::remove_dir_all(place.store().join("caches/transfers")).expect("an own directory");
        let repository = format!("killed{round}");
        let remote = format!("{}:now", registry.name(&repository));
        let new = round % 2 == 0;
        if !new {
            place.ok(&["push", "demo/two", "--to", &remote]);
        }
        killed(&place, &["push", TASK, "--to", &remote], at(push_takes));
        let other = Place::new(User::Caller);
        let pulled = other.run(&["pull", "--from", &remote]);
        let is_there =
            pulled.stdout.contains("demo/one@cpu") || !new && pulled.stdout.contains("demo/two@cpu");
        assert!(
            pulled.status == 0 && is_there || new && pulled.status == 4,
            "round {round}: {} {}",
            pulled.stdout,
            pulled.stderr
        );
        let before = registry.blobs(&repository);
        let again = json(&place.ok(&["--json", "push", TASK, "--to", &remote]));
        let moved = registry.blobs(&repository) - before;
        let pushed = &again["pushed"][0];
        let counted = ["uploaded", "mounted"].map(|what| pushed[what].as_u64().expect("a number"));
        assert_eq!(counted.iter().sum::<u64>(), moved, "only what was missing: {again}");

        let other = Place::new(User::Caller);
        let pull = ["--json", "pull", TASK, "--from", &registry.name("whole"), "--trust"];
        killed(&other, &pull, at(pull_takes));
        let before = stored_layers(&other);
        let left = json(&other.ok(&pull));
        assert_eq!(left["pulled"][0]["layers"], layers - before, "only what was missing: {left}");
        other.ok(&["--offline", "build", TASK, "--require-hit"]);
        other.assert_whole();
    }
}

/// How many layers the store has.
fn stored_layers(place: &Place) -> usize {
    place.contents().iter().filter(|(path, _)| path.contains("/store/layers/")).count()
}

/// Runs the program and kills it, with what it started, after `moment`.
fn killed(place: &Place, arguments: &[&str], moment: Duration) {
    let mut command = place.command(arguments);
    command.process_group(0).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    std::thread::sleep(moment);
    let group = rustix::process::Pid::from_child(&child);
    let _ended_already = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    child.wait().expect("a child");
}
