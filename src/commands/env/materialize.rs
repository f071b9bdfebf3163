//! `env materialize`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use clap::Args;
use infradev_layers::{CheckoutStats, Content, Kind as Entry, Supply, farm_owners, write_farm, write_files};
use infradev_store::references::Reference;
use infradev_store::{GivenUp, LayerId, Lease, ObjectId, RootKind, Store};
use serde::Serialize;

use super::Which;
use super::create::find_built;
use super::export::held_trees;
use crate::build::root::BuiltTask;
use crate::env::back_end::BackEnd;
use crate::env::image::StackError;
use crate::env::packs::{self, Needs};
use crate::error::{CommandError, CommandResult, Kind};
use crate::export::{Exported, Format, Place, Room, check, copied_bytes, packed_bytes, shares_blocks};
use crate::materialize::{Part, activation, check_interpreter, first_difference, parts, shell_lines};
use crate::session::Session;
use crate::ui::bytes;

/// Arguments of `env materialize`.
#[derive(Debug, Args)]
pub(crate) struct MaterializeArgs {
    /// The task
    task: String,
    /// Where: a directory that does not exist yet; or `/`, for /opt/env and /workspace themselves
    #[arg(long, value_name = "DIR")]
    at: PathBuf,
    /// Move the files out of the store, which forgets the task: peak disk is what the files take once
    #[arg(long, conflicts_with = "link")]
    consume: bool,
    /// How files get their content [default: shared blocks where the file system has them, else copies]
    #[arg(long, value_enum)]
    link: Option<Link>,
    /// Replace what is there and differs
    #[arg(long)]
    force: bool,
    /// Only say what would be written, and how much disk that takes
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    which: Which,
}

/// How files get their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Link {
    /// Names of the store's own files: no disk, but whoever writes into one damages the store
    Hardlink,
    /// Shared blocks, or an error
    Reflink,
    /// Copies
    Copy,
}

#[derive(Serialize)]
struct Materialized {
    task: String,
    at: String,
    dry_run: bool,
    entries: usize,
    content: u64,
    /// Bytes that would be or were moved out of the store.
    moved: u64,
    peak_disk: u64,
    free: u64,
    /// Places that held the same before.
    unchanged: Vec<String>,
    variables: BTreeMap<String, String>,
}

pub(super) fn materialize(session: &Session, arguments: &MaterializeArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let MaterializeArgs { at, consume, force, dry_run, .. } = arguments;
    let built = find_built(session, store, &arguments.task, &arguments.which)?;
    let lease = store.lease(&format!("materialize {}", built.name()))?;
    let exported = Exported::new(built.clone(), held_trees(store, &lease, &built)?);
    let at = real(at)?;
    let all = parts(&built, &exported.merged, &at);
    check_interpreter(&exported.merged, &all)?;
    let (written, unchanged) = judge(all, &at, *force)?;
    let given = if *consume {
        if !store.layers()?.iter().any(|layer| built.layers.contains(layer)) {
            return Err(CommandError::usage("a shared store gives nothing away").hint("leave --consume out"));
        }
        store.plan_give_up(RootKind::Task, &built.name(), &stack_of(&built), &lease)?
    } else {
        vec![]
    };
    let demand = Demand::of(store, &written, arguments, &given);
    let parent = written.first().map_or(at.as_path(), |part| part.target.parent().unwrap_or(&part.target));
    let parent = existing(parent);
    if let (Some(Link::Reflink), Some(part)) = (arguments.link, written.first())
        && !shares_blocks(store, &part.tree, &parent)
    {
        let text = format!("files at {} cannot share blocks with the store", at.display());
        return Err(CommandError::usage(text).hint(
            "that takes one file system, such as btrfs or XFS, for both; without --link, files are copies where it must be",
        ));
    }
    let room = Room::look(store, &parent, demand.written, demand.kept)?;
    let mut done = Materialized {
        task: built.name(),
        at: at.display().to_string(),
        dry_run: *dry_run,
        entries: written.iter().map(|part| part.tree.entries().len()).sum(),
        content: written.iter().map(|part| part.tree.apparent_bytes()).sum(),
        moved: demand.moved,
        peak_disk: room.needed,
        free: room.free,
        unchanged: unchanged.iter().map(|part| part.target.display().to_string()).collect(),
        variables: activation(&built, &at),
    };
    say_plan(session, &done);
    room.ensure(&parent)?;
    if !dry_run && !written.is_empty() {
        done.moved = carry_out(session, store, &lease, &built, &written, arguments)?;
    }
    session.ui.data(&done, || if *dry_run { String::new() } else { shell_lines(&done.variables) });
    Ok(0)
}

fn say_plan(session: &Session, done: &Materialized) {
    for place in &done.unchanged {
        session.ui.note(format!("{place} is there already, as it would be written"));
    }
    let moved = if done.moved > 0 {
        format!(", {} of it moved out of the store", bytes(done.moved))
    } else {
        String::new()
    };
    session.ui.note(format!(
        "{} at {}: {} entries with {}{moved}; peak disk {}, {} free",
        done.task,
        done.at,
        done.entries,
        bytes(done.content),
        bytes(done.peak_disk),
        bytes(done.free)
    ));
}

/// What the disks must hold besides what is there.
struct Demand {
    /// Bytes where the files go.
    written: u64,
    /// Bytes in the store.
    kept: u64,
    /// Bytes of files that need none, since they are moved.
    moved: u64,
}

impl Demand {
    fn of(store: &Store, parts: &[Part], arguments: &MaterializeArgs, given: &[Reference]) -> Self {
        let Some(first) = parts.first() else { return Self { written: 0, kept: 0, moved: 0 } };
        let parent = existing(first.target.parent().unwrap_or(&first.target));
        let clones = match arguments.link {
            Some(Link::Copy) => false,
            Some(Link::Hardlink | Link::Reflink) => true,
            None => shares_blocks(store, &first.tree, &parent),
        };
        let written: u64 = parts.iter().map(|part| copied_bytes(&part.tree, clones)).sum();
        let kept = packed_bytes(store, parts.iter().map(|part| &part.tree));
        let device = |path: &Path| {
            std::fs::metadata(path).map(|found| std::os::unix::fs::MetadataExt::dev(&found)).ok()
        };
        if !arguments.consume || device(&parent) != device(store.layout().root()) {
            return Self { written, kept, moved: 0 };
        }
        let once = used_once(parts);
        let once = given.iter().filter(|found| once.contains(&found.object));
        let moved: u64 = once.map(|found| found.size).sum();
        Self { written: written.saturating_sub(if clones { 0 } else { moved }), kept, moved }
    }
}

/// The objects that are one file of `parts`: that file can be the object itself.
fn used_once(parts: &[Part]) -> HashSet<ObjectId> {
    let mut uses: HashMap<ObjectId, u32> = HashMap::new();
    for entry in parts.iter().flat_map(|part| part.tree.entries()) {
        if let Entry::File { content: Content::Object(object, _), .. } = &entry.kind {
            *uses.entry(*object).or_default() += 1;
        }
    }
    uses.into_iter().filter(|(_, uses)| *uses == 1).map(|(object, _)| object).collect()
}

/// Splits the parts into those to write and those that are there already; what differs is an error without `force`.
fn judge(parts: Vec<Part>, at: &Path, force: bool) -> CommandResult<(Vec<Part>, Vec<Part>)> {
    let (mut written, mut unchanged) = (vec![], vec![]);
    for part in parts {
        let is_empty = std::fs::read_dir(&part.target).is_ok_and(|mut entries| entries.next().is_none());
        if is_empty || std::fs::symlink_metadata(&part.target).is_err() {
            written.push(part);
            continue;
        }
        match first_difference(&part.tree, &part.target) {
            None => unchanged.push(part),
            Some(_) if force => {
                // The real places are the environment's own by convention.
                if at != Path::new("/") {
                    check(&part.target, Format::Rootfs, true)?;
                }
                written.push(part);
            }
            Some(path) => {
                let text = format!("{} is there, and is not what would be written", path.display());
                return Err(
                    CommandError::usage(text).hint("choose another place, or give --force to replace it")
                );
            }
        }
    }
    Ok((written, unchanged))
}

/// Writes the parts; returns the bytes that were moved out of the store.
fn carry_out(
    session: &Session,
    store: &Store,
    lease: &Lease,
    built: &BuiltTask,
    parts: &[Part],
    arguments: &MaterializeArgs,
) -> CommandResult<u64> {
    let mut places = vec![];
    for part in parts {
        if let Some(parent) = part.target.parent() {
            std::fs::create_dir_all(parent).map_err(|error| CommandError::file("create", parent, &error))?;
        }
        places.push(Place::prepare(&part.target)?);
    }
    let references: BTreeSet<Reference> = parts.iter().flat_map(|part| part.tree.references()).collect();
    let references: Vec<Reference> = references.into_iter().collect();
    packs::ready(store, BackEnd::Copy, Needs::Objects(&references), lease)?;
    if arguments.link == Some(Link::Hardlink) {
        session.ui.warn(
            "the files are the store's own by another name: whoever writes into one, instead of replacing it, damages the store",
        );
    }
    let label = format!("materialize {}", built.name());
    session.ui.started(&label);
    let stats = write_parts(store, lease, built, parts, &places, arguments);
    let published = stats
        .and_then(|stats| places.iter().try_for_each(|place| place.publish(arguments.force)).map(|()| stats));
    let word = if published.is_ok() { "written" } else { "failed" };
    let content: u64 = parts.iter().map(|part| part.tree.apparent_bytes()).sum();
    session.ui.finished(&label, word, &bytes(content));
    let stats = published?;
    Ok(if arguments.consume { content.saturating_sub(stats.copied) } else { 0 })
}

fn write_parts(
    store: &Store,
    lease: &Lease,
    built: &BuiltTask,
    parts: &[Part],
    places: &[Place],
    arguments: &MaterializeArgs,
) -> CommandResult<CheckoutStats> {
    let given: Option<GivenUp<'_>> = match arguments.consume {
        // From here on the store does not have the task any more, whatever happens.
        true => Some(store.give_up(RootKind::Task, &built.name(), &stack_of(built), lease)?),
        false => None,
    };
    let once = used_once(parts);
    let supply = match (&given, arguments.link) {
        (Some(given), _) => Supply::Given(given, &once),
        (None, Some(Link::Reflink)) => Supply::Clones,
        (None, Some(Link::Copy)) => Supply::Copies,
        (None, _) => Supply::Any,
    };
    let mut total = CheckoutStats::default();
    for (part, place) in parts.iter().zip(places) {
        let (objects, out) = (store.object_directories(), place.new_content());
        let stats = match arguments.link {
            Some(Link::Hardlink) => {
                write_farm(&part.tree, &objects, &store.layout().farm_pool(), farm_owners(), &out)
            }
            _ => write_files(&part.tree, &objects, farm_owners(), supply, &out),
        };
        total = total + stats.map_err(|error| CommandError::from(StackError::from(error)))?;
    }
    if let Some(given) = given {
        given.finish(lease)?;
    }
    Ok(total)
}

/// The layers that go with a task: those of its stack, and those that built it.
fn stack_of(built: &BuiltTask) -> Vec<LayerId> {
    built.layers.iter().chain(&built.also).copied().collect()
}

/// Makes `at` absolute; its parent need not exist yet.
fn real(at: &Path) -> CommandResult<PathBuf> {
    let failed = |error| CommandError::new(Kind::Usage, format!("{}: {error}", at.display()));
    let absolute = std::path::absolute(at).map_err(failed)?;
    if absolute.parent().is_none() {
        return Ok(PathBuf::from("/"));
    }
    Ok(absolute)
}

/// The nearest directory above `path` that is there.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}
