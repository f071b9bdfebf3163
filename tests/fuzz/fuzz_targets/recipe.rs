//! Any text as each kind of document: values, or faults with a place.
#![no_main]

use infradev_recipes::{
    BaseLock, Pylock, WheelName, parse_mutant, parse_probe, parse_project, parse_task,
};
use libfuzzer_sys::fuzz_target;

const PROJECT: &str = include_str!("../../../recipes/catalog/verl/project.toml");

fuzz_target!(|text: &str| {
    let read = |_: &str| Some(b"content".to_vec());
    let project = parse_project("project.toml", PROJECT, &read).expect("a shipped document");
    let faults = [
        parse_project("project.toml", text, &read).err(),
        parse_task("task.toml", text, &project, &read).err(),
        parse_probe("probe.toml", "probe", text).err(),
        parse_mutant("mutant.toml", "mutant", text).err(),
        Pylock::parse("pylock.toml", text).err(),
        BaseLock::parse("base.lock", text).err(),
    ];
    for faults in faults.into_iter().flatten() {
        assert!(!faults.to_string().is_empty());
    }
    if let Ok(name) = text.parse::<WheelName>() {
        let _shown = format!("{name:?}");
    }
});
