//! A runtime bundle: the whole tree and a `config.json` that crun and runc execute (OCI runtime specification,
//! `bundle.md`).

use std::fs;
use std::path::Path;

use crate::build::root::BuiltTask;
use crate::env::default_mapping;
use crate::env::memory_files;
use crate::env::plan::{Mapping, Network, Run, runtime_spec};
use crate::error::{CommandError, CommandResult};

/// Writes `config.json` into the bundle at `directory`; it runs `command` as root of namespaces of its own.
pub(super) fn write_config(directory: &Path, built: &BuiltTask, command: &[String]) -> CommandResult {
    let mapping = match default_mapping() {
        // Files belong to whom the tree says: nobody shifts them for another runtime.
        Mapping::Range(_) | Mapping::Host => Mapping::Host,
        caller @ Mapping::Caller { .. } => caller,
    };
    let run = Run {
        command: if command.is_empty() { vec!["/bin/sh".to_owned()] } else { command.to_vec() },
        directory: built.workspace.clone().into(),
        variables: built.run_variables(),
        terminal: false,
        network: Network::None,
        mapping,
        binds: vec![],
        memory_files: memory_files(),
        host_name: "infradev".to_owned(),
    };
    let spec = runtime_spec(&run, Path::new("rootfs")).expect("every required field is given");
    let mut spec = serde_json::to_value(&spec).expect("plain data");
    // Nothing in it is newer, and runtimes refuse versions that they do not know.
    spec["ociVersion"] = "1.0.2".into();
    let text = serde_json::to_vec_pretty(&spec).expect("plain data");
    let path = directory.join("config.json");
    fs::write(&path, text).map_err(|error| CommandError::file("write", &path, &error))
}
