//! `infradev doctor`: what this machine and this store allow, by trying it.

use infradev_store::FileSystem;
use serde::Serialize;

use crate::build::host::Host;
use crate::env::back_end::{BackEnd, Uppers};
use crate::env::default_mapping;
use crate::env::image::{Sources, write_metadata, write_upper};
use crate::env::launch::{LaunchPlan, RootFileSystem, Streams, launch};
use crate::env::mount::{Overlay, Upper, try_pack};
use crate::env::plan::{Mapping, Network, Run, runtime_spec};
use crate::env::trial::choose;
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::counted;

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    state: &'static str,
    detail: String,
}

#[derive(Serialize)]
struct Findings {
    findings: Vec<Finding>,
    usable: bool,
}

pub(crate) fn run(session: &Session) -> CommandResult<u8> {
    let mut findings = vec![];
    let mut add = |what, good: bool, detail: String| {
        findings.push(Finding { what, state: if good { "ok" } else { "no" }, detail });
    };
    let kernel = rustix::system::uname();
    add("kernel", true, kernel.release().to_string_lossy().into_owned());
    let store = session.store();
    match &store {
        Ok(store) => {
            let (good, text) = match store.file_system() {
                FileSystem::Local => (true, "a local file system: everything".to_owned()),
                FileSystem::Memory => (true, "tmpfs: works, and is lost at the next boot".to_owned()),
                FileSystem::Overlay => {
                    (true, "overlayfs: full copies for what is kept or captured; put the store elsewhere with --store".to_owned())
                }
                FileSystem::Remote(kind) => (false, format!("{kind}: only for reading")),
            };
            add("store", good, format!("{}: {text}", store.layout().root().display()));
            for shared in store.shared() {
                let root = shared.layout().root().display();
                let layers = shared.layers()?.len();
                let text = format!("{root}: {} read in place", counted(layers, "layer"));
                add("shared store", true, text);
            }
        }
        Err(error) => add("store", false, error.message.clone()),
    }
    let host = Host::inspect();
    match &host.python {
        Some((path, version)) => add("host python", true, format!("{} ({version})", path.display())),
        None => add("host python", false, "no python3 below /usr: host bases cannot be built".to_owned()),
    }
    for (what, program, wants) in [
        ("git", "git", "sources from repositories need it"),
        ("mmdebstrap", "mmdebstrap", "Debian bases need it"),
        ("C++ compiler", "c++", "native extensions over the host base need it"),
    ] {
        let found = session
            .config
            .path
            .split(':')
            .map(|directory| std::path::Path::new(directory).join(program))
            .find(|path| path.is_file());
        match found {
            Some(path) => add(what, true, path.display().to_string()),
            None => add(what, false, format!("not found; {wants}")),
        }
    }
    if let Ok(store) = store {
        let wanted = session.config.back_end.as_ref();
        let wanted_back_end = wanted.map(|wanted| wanted.value);
        let choice = choose(store, wanted_back_end, Uppers::Disk, true)?;
        for (back_end, reason) in &choice.refused {
            add("back end", false, format!("{}: {reason}", back_end.word()));
        }
        match session.back_end().and_then(|back_end| trial(store, back_end)) {
            Ok(()) => {
                let mut text = format!("back end {}, {}", choice.back_end.word(), mapping_words());
                if let Some(wanted) = wanted {
                    text.push_str(&format!(" (asked for by {})", wanted.origin));
                }
                if let Some(degraded) = choice.back_end.degraded() {
                    text.push_str(&format!("; {degraded}"));
                }
                add("environments", true, text);
            }
            Err(error) => add("environments", false, error.message),
        }
        if store.file_system() == FileSystem::Overlay {
            let choice = choose(store, wanted_back_end, Uppers::Memory, true)?;
            let works = choice.works() && choice.back_end != BackEnd::Copy;
            let text = match works {
                true => format!(
                    "`env exec` by the back end {}, what is written in memory",
                    choice.back_end.word()
                ),
                false => "`env exec` makes full copies, too".to_owned(),
            };
            add("in memory", works, text);
        }
        match packs(store, choice.back_end)? {
            Ok(text) => add("packs", true, text),
            Err(text) => add("packs", false, text),
        }
    }
    let usable = findings
        .iter()
        .all(|finding| finding.state == "ok" || !matches!(finding.what, "store" | "environments"));
    let findings = Findings { findings, usable };
    session.ui.data(&findings, || {
        findings
            .findings
            .iter()
            .map(|finding| format!("{:3} {:13} {}\n", finding.state, finding.what, finding.detail))
            .collect()
    });
    Ok(if usable { 0 } else { 3 })
}

/// Says how environments here read what `gc --compress` has packed; the inner error is the slow way.
fn packs(store: &infradev_store::Store, back_end: BackEnd) -> CommandResult<Result<String, String>> {
    let promoted = "a packed file becomes plain when an environment needs it";
    if back_end != BackEnd::Erofs {
        return Ok(Err(format!("{promoted}: the back end {} does not mount packs", back_end.word())));
    }
    let lease = store.lease("doctor")?;
    let tried = try_pack(&store.sample_pack(&lease)?);
    Ok(match tried {
        Ok(()) => Ok("mounted, once for all environments".to_owned()),
        Err(error) => Err(format!("{promoted}: {}", crate::error::chain(&error))),
    })
}

fn mapping_words() -> String {
    match default_mapping() {
        Mapping::Range(first) => format!("ids 0 to 65535 are {first} and up outside"),
        Mapping::Caller { uid, .. } => format!("root inside is user {uid} outside"),
        Mapping::Host => "ids as outside".to_owned(),
    }
}

/// Runs `true` in an environment of nothing but the host's directories.
fn trial(store: &infradev_store::Store, back_end: BackEnd) -> CommandResult {
    let lease = store.lease("doctor")?;
    let ingest = store.ingest(&lease)?;
    let tree = infradev_layers::merge([&crate::build::trial_tree(&ingest)?]);
    let directory = lease.new_directory("doctor")?;
    let io = |error: std::io::Error| infradev_store::Error::io("write", &directory, error);
    for name in ["work", "merged"] {
        std::fs::create_dir(directory.join(name)).map_err(io)?;
    }
    let (mapping, metadata) = (default_mapping(), directory.join("metadata"));
    let sources = Sources::of(store);
    write_metadata(&tree, back_end, &sources, &metadata)?;
    let upper = directory.join("upper");
    write_upper(|| Ok(tree), back_end, &sources.objects, mapping, &upper)?;
    let upper = Upper::on_disk(upper, directory.join("work"));
    let overlay = Overlay { back_end, metadata, objects: sources.objects, packs: vec![], upper };
    let run = Run {
        command: vec!["/bin/true".to_owned()],
        directory: "/".into(),
        variables: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        terminal: false,
        network: Network::None,
        mapping,
        binds: Host::binds(),
        memory_files: 1 << 20,
        host_name: "infradev".to_owned(),
    };
    let spec = runtime_spec(&run, &directory.join("merged")).expect("every required field is given");
    let plan =
        LaunchPlan { spec, root: RootFileSystem::Overlay(overlay), mapping: run.mapping, detached: false };
    let mut launched = launch(&plan, Streams::inherited())?;
    launched.wait_started()?;
    launched.wait_ended()?;
    Ok(())
}
