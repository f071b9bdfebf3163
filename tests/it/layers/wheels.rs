//! Wheel layers: what pip installs, made from nothing but the wheel.

mod hostile;
mod real;

use std::path::Path;
use std::process::Command;

use infradev_layers::{Tree, WheelTarget, wheel_tree};
use infradev_store::LayerId;

use super::ground::Ground;

/// Where the wheels of these tests go: the place of every environment.
fn target(python: &str) -> WheelTarget {
    WheelTarget { prefix: "opt/env".parse().expect("a path"), python: python.to_owned() }
}

/// Makes a wheel a layer.
fn layer(ground: &Ground, wheel: &Path, python: &str) -> (Tree, LayerId) {
    ground.keep(|ingest| {
        let made = wheel_tree(wheel, &target(python), ingest);
        made.unwrap_or_else(|error| panic!("{}: {error}", wheel.display()))
    })
}

/// Runs a Python program with arguments; it must succeed.
#[track_caller]
fn python(program: &str, arguments: &[&str]) -> String {
    let mut python = Command::new("python3");
    python.args(["-W", "ignore", "-c", program]).args(arguments);
    let output = python.output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
