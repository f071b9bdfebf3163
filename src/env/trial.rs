//! Which back ends work for this process on this store: found by mounting one file with each.
//!
//! A kernel's version does not tell: distributions carry parts back, containers and security modules forbid, and
//! the file system below the store has a say. So a child process makes the namespaces of a run, mounts an
//! environment of one file, and reads, writes, removes and replaces in it. That takes milliseconds; what it found
//! is kept in the store's caches, under a name for everything that could change it, and `infradev doctor` asks
//! anew.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::process::{Command, Stdio};

use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder, merge};
use infradev_store::{FileSystem, Lease, ObjectId, Store, object_name, read_json};
use serde::{Deserialize, Serialize};

use super::back_end::{BackEnd, Uppers};
use super::image::{Sources, StackError, write_metadata, write_upper};
use super::launch::TRIAL;
use super::mount::{Overlay, Upper};
use super::plan::Mapping;

/// How large an upper in memory may grow in a trial, in bytes.
const TRIAL_MEMORY: u64 = 1 << 20;

/// The content of the one file.
pub(crate) const CONTENT: &str = "trial\n";

/// What the child process is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub(crate) overlay: Overlay,
    pub(crate) mapping: Mapping,
    /// Where to mount.
    pub(crate) place: std::path::PathBuf,
}

/// The back end to use, and why not a cheaper one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What works.
    pub back_end: BackEnd,
    /// What does not, and what the kernel said.
    pub refused: Vec<(BackEnd, String)>,
}

impl Choice {
    /// Whether the back end works: one that was asked for may not.
    pub fn works(&self) -> bool {
        self.refused.iter().all(|(refused, _)| *refused != self.back_end)
    }
}

/// What was found out about this machine for this user.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Known {
    /// Everything that could change it.
    circumstances: String,
    /// By back end: `None` if it works, else why not.
    results: BTreeMap<BackEnd, Option<String>>,
    /// Likewise, with an upper in memory.
    in_memory: BTreeMap<BackEnd, Option<String>>,
}

/// Tries the back ends in order, or the one that was asked for; `anew` to believe no earlier result.
///
/// The last one, a full copy, is never refused. One that was asked for and does not work is the only one among
/// the refused then.
pub fn choose(
    store: &Store,
    wanted: Option<BackEnd>,
    uppers: Uppers,
    anew: bool,
) -> Result<Choice, StackError> {
    let uid = rustix::process::geteuid().as_raw();
    let path = store.layout().cache(&format!("back-ends-{uid}.json"));
    let circumstances = circumstances(store);
    let mut known = if anew { None } else { read_json::<Known>(&path).unwrap_or(None) }
        .filter(|known| known.circumstances == circumstances)
        .unwrap_or_else(|| Known { circumstances, ..Known::default() });
    let mut learned = false;
    let mut choice = Choice { back_end: BackEnd::Copy, refused: vec![] };
    let candidates = match wanted {
        Some(ref wanted) => std::slice::from_ref(wanted),
        None => BackEnd::ALL.as_slice(),
    };
    for &back_end in candidates {
        let results = match uppers {
            Uppers::Disk => &mut known.results,
            Uppers::Memory => &mut known.in_memory,
        };
        let result = match results.entry(back_end) {
            Entry::Occupied(result) => result.into_mut(),
            Entry::Vacant(unknown) => {
                learned = true;
                unknown.insert(attempt(store, &store.lease("trial")?, back_end, uppers)?)
            }
        };
        choice.back_end = back_end;
        match result {
            None => break,
            Some(reason) => choice.refused.push((back_end, reason.clone())),
        }
    }
    if learned {
        let text = serde_json::to_vec(&known).expect("plain data");
        let temporary = store.layout().cache(&format!("back-ends-{uid}.{}", std::process::id()));
        let _tried_again_next_time =
            std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path));
    }
    Ok(choice)
}

/// Names the kernel, its start, this process's namespace, this program and the file systems of the stores.
fn circumstances(store: &Store) -> String {
    let kernel = rustix::system::uname();
    let namespace = std::fs::read_link("/proc/self/ns/user").unwrap_or_default();
    let mut all = vec![
        kernel.release().to_string_lossy().into_owned(),
        kernel.version().to_string_lossy().into_owned(),
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
        namespace.display().to_string(),
        env!("CARGO_PKG_VERSION").to_owned(),
    ];
    all.extend(std::iter::once(store).chain(store.shared()).map(place));
    all.join("\n")
}

/// Names the file system of a store, as far as it has a say. An overlay can be the last that may lie on another, so
/// what it is made of belongs to that.
fn place(store: &Store) -> String {
    let root = store.layout().root();
    let flags = rustix::fs::AtFlags::empty();
    let found = rustix::fs::statx(rustix::fs::CWD, root, flags, rustix::fs::StatxFlags::MNT_ID);
    let Ok(found) = found else { return root.display().to_string() };
    let made_of = match store.file_system() {
        FileSystem::Overlay => {
            let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let id = format!("{} ", found.stx_mnt_id);
            all.lines().find(|line| line.starts_with(&id)).unwrap_or_default().to_owned()
        }
        _ => String::new(),
    };
    let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
    format!("{} {:?} {major}:{minor} {made_of}", root.display(), store.file_system())
}

/// Tries one back end; returns why it does not work.
fn attempt(
    store: &Store,
    lease: &Lease,
    back_end: BackEnd,
    uppers: Uppers,
) -> Result<Option<String>, StackError> {
    if back_end == BackEnd::Copy {
        return Ok(None);
    }
    if back_end == BackEnd::Erofs && !rustix::process::geteuid().is_root() {
        return Ok(Some("only root may mount an image".to_owned()));
    }
    let directory = lease.new_directory("trial")?;
    let tried = prepare(store, &directory, back_end, uppers).and_then(|trial| run(&trial, &directory));
    match tried {
        Ok(refused) => Ok(refused),
        // A file system that cannot even hold the files, such as one without attributes, works no better.
        Err(error) => {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            Ok(Some(format!("{error}{}", source.unwrap_or_default())))
        }
    }
}

fn prepare(store: &Store, directory: &Path, back_end: BackEnd, uppers: Uppers) -> Result<Trial, StackError> {
    let mapping = super::default_mapping();
    let [objects, stub_pool, farm_pool, metadata, place, work] =
        ["objects", "stub-pool", "farm-pool", "metadata", "merged", "work"].map(|name| directory.join(name));
    let object = objects.join(object_name(&ObjectId::of(CONTENT.as_bytes())));
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| StackError::Io { action: "write", path, source }
    };
    for path in [object.parent().unwrap_or(&objects), &place, &work] {
        std::fs::create_dir_all(path).map_err(io(path))?;
    }
    std::fs::write(&object, CONTENT).map_err(io(&object))?;
    // The file systems of shared stores have a say, too.
    let shared = store.shared().iter().map(|store| store.layout().objects());
    let objects = std::iter::once(objects).chain(shared).collect();
    let sources = Sources { objects, stub_pool, farm_pool, disk: infradev_store::Disk::default() };
    let tree = tree();
    write_metadata(&tree, back_end, &sources, &metadata)?;
    let upper = directory.join("upper");
    let upper = match uppers {
        Uppers::Disk => {
            write_upper(|| Ok(tree), back_end, &sources.objects, mapping, &upper)?;
            Upper::on_disk(upper, work)
        }
        Uppers::Memory => {
            std::fs::create_dir(&upper).map_err(io(&upper))?;
            Upper::in_memory(upper, TRIAL_MEMORY, mapping)
        }
    };
    let (objects, packs) = (sources.objects, vec![]);
    let overlay = Overlay { back_end, metadata, objects, packs, upper };
    Ok(Trial { overlay, mapping, place })
}

fn tree() -> Tree {
    let content = Content::Object(ObjectId::of(CONTENT.as_bytes()), CONTENT.len() as u64);
    let file = Kind::File { metadata: Metadata::new(0o644, 0), content };
    let mut builder = TreeBuilder::new();
    builder.add("directory/file".parse().expect("a plain path"), file).expect("the only entry");
    merge([&builder.finish().expect("one file")])
}

fn run(trial: &Trial, directory: &Path) -> Result<Option<String>, StackError> {
    let output = Command::new("/proc/self/exe")
        .args([TRIAL, &serde_json::to_string(trial).expect("plain data")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|source| StackError::Io { action: "try a mount at", path: directory.to_owned(), source })?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok((!output.status.success()).then_some(if said.is_empty() { output.status.to_string() } else { said }))
}
