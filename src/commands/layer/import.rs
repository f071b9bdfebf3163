//! `layer import`.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use infradev_layers::{
    Decompressed, LayerTarOptions, Owners, ScanOptions, Seen, SpecialFiles, Tree, layer_tar_tree, scan,
};
use infradev_store::{Ingest, LayerId, Lease, RootKind, Stack, Store};
use serde::Serialize;

use crate::error::{CommandError, CommandResult, Kind};
use crate::hex::hex;
use crate::session::Session;
use crate::ui::bytes;

/// Arguments of `layer import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A directory, or a tar archive: plain, gzip or zstd
    path: PathBuf,
    /// Keep the layer under this name until `infradev unpin`; without a name, the next `gc` removes it
    #[arg(long, value_name = "NAME")]
    pin: Option<String>,
    /// Leave out devices, FIFOs and sockets of an archive, which else refuse it
    #[arg(long)]
    drop_special: bool,
    /// Keep owners; else everything belongs to root. Archives keep theirs always
    #[arg(long)]
    keep_owners: bool,
}

#[derive(Serialize)]
struct Imported {
    layer: LayerId,
    /// The `DiffID` of the archive, as container images name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff_id: Option<String>,
    entries: usize,
    apparent: u64,
    written: u64,
    notes: Vec<String>,
}

/// How many notes are shown one by one.
const SHOWN: usize = 20;

pub(super) fn import(session: &Session, arguments: &ImportArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let path = &arguments.path;
    let lease = store.lease(&format!("import {}", path.display()))?;
    let ingest = store.ingest(&lease)?;
    let Read { tree, layer, diff_id, notes } = match path.is_dir() {
        true => directory(store, &lease, arguments, &ingest)?,
        false => archive(session, arguments, &ingest)?,
    };
    let committed = ingest.commit()?;
    if let Some(name) = &arguments.pin {
        super::super::pin::ensure_free(store, name, &[layer])?;
        store.set_root(RootKind::Pin, name, &Stack::new(vec![layer]))?;
    }
    let imported = Imported {
        layer,
        diff_id,
        entries: tree.entries().len() - 1,
        apparent: tree.apparent_bytes(),
        written: committed.bytes,
        notes,
    };
    for note in imported.notes.iter().take(SHOWN) {
        session.ui.note(note);
    }
    if imported.notes.len() > SHOWN {
        session.ui.note(format!("{} notes more; --json has them all", imported.notes.len() - SHOWN));
    }
    session.ui.data(&imported, || format!("{layer}\n"));
    let Imported { entries, apparent, written, .. } = &imported;
    let kept = match &arguments.pin {
        Some(name) => format!("pinned as `{name}`"),
        None => "the next gc removes it, unless something needs it by then".to_owned(),
    };
    let (apparent, written) = (bytes(*apparent), bytes(*written));
    session.ui.note(format!("{entries} entries, {apparent}, of which {written} were new; {kept}"));
    Ok(0)
}

struct Read {
    tree: Tree,
    layer: LayerId,
    diff_id: Option<String>,
    notes: Vec<String>,
}

fn directory(
    store: &Store,
    lease: &Lease,
    arguments: &ImportArgs,
    ingest: &Ingest<'_>,
) -> CommandResult<Read> {
    let owners = if arguments.keep_owners { Owners::Keep } else { Owners::Root };
    let memory = memory(store, &arguments.path);
    let known = std::fs::read(&memory).unwrap_or_default();
    let seen = recall(store, lease, &known, owners);
    let options = ScanOptions { seen: seen.as_ref(), ..ScanOptions::plain(owners) };
    let scanned = scan(&arguments.path, options, ingest)
        .map_err(|error| CommandError::caused(Kind::Infrastructure, &error))?;
    let notes =
        scanned.dropped.iter().map(|path| format!("{path} is a device, FIFO or socket, and was left out"));
    let notes = notes.collect();
    let layer = ingest.put_layer(&scanned.tree.encode())?;
    let seen = scanned.seen(layer, owners);
    if seen != known {
        // A cache: without it, the next import reads everything again.
        let _next_time_then = std::fs::create_dir_all(memory.parent().unwrap_or(&memory))
            .and_then(|()| std::fs::write(&memory, seen));
    }
    Ok(Read { tree: scanned.tree, layer, diff_id: None, notes })
}

/// Where it is kept what an import of this directory found.
fn memory(store: &Store, directory: &Path) -> PathBuf {
    let path = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let name = blake3::hash(path.as_os_str().as_bytes()).to_hex();
    store.layout().cache("seen").join(name.as_str())
}

/// What the last import of the directory found, if its layer is still there.
fn recall(store: &Store, lease: &Lease, known: &[u8], owners: Owners) -> Option<Seen> {
    let layer = Seen::layer(known, owners)?;
    if !lease.hold(&[layer]).ok()?.is_empty() {
        return None;
    }
    Seen::decode(known, Tree::decode(&store.layer(&layer).ok()?).ok()?)
}

fn archive(session: &Session, arguments: &ImportArgs, ingest: &Ingest<'_>) -> CommandResult<Read> {
    let path: &Path = &arguments.path;
    let unreadable =
        |error: std::io::Error| CommandError::usage(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(unreadable)?;
    let mut reader = Decompressed::new(file).map_err(unreadable)?;
    let special_files = if arguments.drop_special { SpecialFiles::Drop } else { SpecialFiles::Refuse };
    let options = LayerTarOptions { special_files, ..LayerTarOptions::default() };
    let label = format!("import {}", path.display());
    session.ui.started(&label);
    let read = layer_tar_tree(&mut reader, options, ingest);
    session.ui.finished(&label, if read.is_ok() { "read" } else { "refused" }, &bytes(reader.taken()));
    let read = read.map_err(|error| {
        let mut refused = CommandError::caused(Kind::Failed, &error);
        refused.message = format!("{}: {}", path.display(), refused.message);
        refused
    })?;
    let layer = ingest.put_layer(&read.tree.encode())?;
    let notes = read.notes.iter().map(ToString::to_string).collect();
    Ok(Read { tree: read.tree, layer, diff_id: Some(format!("sha256:{}", hex(&read.diff_id))), notes })
}
