//! What holds for every place that tasks are pushed to.

use std::fs;

use serde_json::Value;

use crate::support::{Need, Place, TASK, User, lacks};

pub(super) fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Pushes what `place` has built to `remote`, and pulls it into new places, as root and not.
pub(super) fn round_trip(
    place: &Place,
    remote: &str,
    compression: &str,
    other: &dyn Fn(User) -> Option<Place>,
) {
    let push = ["push", "all", "--to", remote, "--compression", compression];
    place.ok(&push);
    let again = place.run(&push);
    assert!(again.stderr.contains("demo/one@cpu: nothing to do"), "{}", again.stderr);
    for user in [User::Caller, User::Ordinary] {
        if user == User::Ordinary && lacks(Need::UserNamespaces) {
            continue;
        }
        let Some(other) = other(user) else { continue };
        other.ok(&["pull", TASK, "--from", remote, "--trust"]);
        let hits = other.run(&["--offline", "build", TASK, "--require-hit"]);
        assert!(hits.stderr.contains("nothing to do: 6 steps found"), "{}", hits.stderr);
        let run = ["env", "exec", TASK, "--", "sh", "-c", "tool; cat native/out.so /opt/env/share/demo/note"];
        assert_eq!(other.ok(&run), place.ok(&run));
        let root = "roots/tasks/demo%2Fone@cpu.json";
        assert_eq!(fs::read(other.store().join(root)).ok(), fs::read(place.store().join(root)).ok());
        other.assert_whole();
        // The second task differs in its source alone.
        let second = json(&other.ok(&["--json", "pull", "demo/two", "--from", remote, "--trust"]));
        let second = &second["pulled"][0];
        assert_eq!(second["layers"], 1, "{second}");
        assert!(second["fetched_bytes"].as_u64() < Some(40_000), "{second}");
        let nothing = json(&other.ok(&["--json", "pull", "all", "--from", remote]));
        assert_eq!(nothing["pulled"][0]["layers"], 0, "{nothing}");
        assert_eq!(nothing["pulled"][1]["layers"], 0, "{nothing}");
    }
}
