//! The shipped catalog, as the program reads it.

use crate::support::{Place, User};

#[test]
fn every_shipped_task_can_be_shown_and_listed() {
    let place = Place::new(User::Caller);
    let catalog = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/catalog");
    let listed = place.ok(&["--catalog", catalog, "ls", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let tasks = value["tasks"].as_array().expect("a list");
    assert!(tasks.len() >= 9, "{listed}");
    for task in tasks {
        let name = task["task"].as_str().expect("a name");
        let shown = place.ok(&["--catalog", catalog, "show", name]);
        assert!(shown.contains(name), "{shown}");
    }
}
