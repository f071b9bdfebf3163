//! `infradev gc`.

use clap::Args;
use infradev_store::{CompressDone, Lease, Store};
use serde::Serialize;

use super::reading::Reading;
use crate::env::packs::sweep_mounts;
use crate::env::state::mounted_layers;
use crate::error::CommandResult;
use crate::session::Session;
use crate::share::clear_transfers;
use crate::ui::{bytes, counted};

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Then compress: write large objects that nothing uses right now into packs
    ///
    /// Packs take about half the room. Root mounts them; for everybody else an object becomes plain again when
    /// it is used. Needs room for the pack before the plain objects go.
    #[arg(long)]
    compress: bool,
    /// Collect even if nothing says that anything must stay: empties the store
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Collected {
    dry_run: bool,
    roots: usize,
    live_layers: usize,
    layers: usize,
    objects: usize,
    images: usize,
    packs: usize,
    bytes: u64,
    waiting: usize,
    /// Bytes of what transfers had kept for the next ones.
    transfers: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    compress: Option<Compression>,
}

/// What a compression did, or would do.
#[derive(Serialize)]
#[serde(untagged)]
enum Compression {
    Planned {
        objects: usize,
        bytes: u64,
        /// Plain objects that a pack has already.
        copies: usize,
        copy_bytes: u64,
        /// Packs that would be rewritten.
        rewritten: usize,
        /// Plain objects that something uses right now.
        in_use: usize,
    },
    Done(CompressDone),
}

impl Compression {
    fn text(&self) -> String {
        match self {
            Compression::Planned { objects, bytes: size, copies, copy_bytes, rewritten, in_use } => {
                let mut text = format!("would pack {objects} objects: {}\n", bytes(*size));
                if *copies > 0 {
                    text.push_str(&format!(
                        "would remove {copies} plain objects that a pack has too: {}\n",
                        bytes(*copy_bytes)
                    ));
                }
                if *rewritten > 0 {
                    text.push_str(&format!("would rewrite {}\n", counted(*rewritten, "pack")));
                }
                if *in_use > 0 {
                    text.push_str(&format!("would leave {in_use} objects that are in use\n"));
                }
                text
            }
            Compression::Done(done) => match &done.pack {
                Some(pack) => format!(
                    "packed {} objects, {}, into {} ({})\nremoved {} plain objects\n",
                    done.objects,
                    bytes(done.content),
                    bytes(done.packed),
                    pack.short(),
                    done.plain
                ),
                None => format!("packed nothing\nremoved {} plain objects\n", done.plain),
            },
        }
    }
}

pub(crate) fn run(session: &Session, arguments: &GcArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let lease = store.lease("gc")?;
    let plan = store.plan_gc(&lease, arguments.all)?;
    let mut collected = Collected {
        dry_run: arguments.dry_run,
        roots: plan.roots,
        live_layers: plan.live_layers,
        layers: plan.layers.len(),
        objects: plan.objects.len(),
        images: plan.derived.len(),
        packs: plan.packs.len(),
        bytes: plan.bytes,
        waiting: 0,
        transfers: clear_transfers(store, arguments.dry_run)?,
        compress: None,
    };
    if !arguments.dry_run {
        let done = store.gc(plan, &lease)?;
        (collected.layers, collected.objects) = (done.layers, done.objects);
        (collected.packs, collected.bytes, collected.waiting) = (done.packs, done.freed, done.waiting);
    }
    let mut damaged = false;
    if arguments.compress {
        let compression = compress(session, store, &lease, arguments.dry_run)?;
        if let Compression::Done(done) = &compression {
            collected.waiting = collected.waiting.max(done.waiting);
            damaged = !done.damage.is_empty();
            for finding in &done.damage {
                session.ui.warn(format!("damaged, and not packed: {}: {}", finding.what, finding.detail));
            }
        }
        collected.compress = Some(compression);
    }
    if !arguments.dry_run {
        sweep_mounts(store)?;
    }
    session.ui.data(&collected, || {
        let Collected { roots, live_layers, layers, objects, images, .. } = collected;
        let word = if arguments.dry_run { "would remove" } else { "removed" };
        let packs = match collected.packs {
            0 => String::new(),
            packs => format!(", {}", counted(packs, "pack")),
        };
        let mut text = format!(
            "{word} {}, {}{packs} and {}: {}\nkept {} for {}\n",
            counted(layers, "layer"),
            counted(objects, "object"),
            counted(images, "image"),
            bytes(collected.bytes),
            counted(live_layers, "layer"),
            counted(roots, "root")
        );
        if collected.transfers > 0 {
            text.push_str(&format!(
                "{word} what pushes and pulls had kept: {}\n",
                bytes(collected.transfers)
            ));
        }
        text.push_str(&collected.compress.as_ref().map(Compression::text).unwrap_or_default());
        text
    });
    if collected.waiting > 0 {
        session.ui.note("some of it is freed by the next gc, when the commands that run now have ended");
    }
    if damaged {
        session.ui.note("to mend: `infradev verify --read-data --repair` (with --dry-run to see how)");
    }
    Ok(u8::from(damaged))
}

fn compress(session: &Session, store: &Store, lease: &Lease, dry_run: bool) -> CommandResult<Compression> {
    let in_use = || mounted_layers(store);
    let plan = store.plan_compress(lease, &in_use)?;
    if dry_run {
        return Ok(Compression::Planned {
            objects: plan.objects.len(),
            bytes: plan.bytes,
            copies: plan.copies.len(),
            copy_bytes: plan.copy_bytes,
            rewritten: plan.rewritten.len(),
            in_use: plan.in_use,
        });
    }
    let shown = Reading::new(&session.ui, "compress");
    Ok(Compression::Done(store.compress(plan, lease, &in_use, &shown)?))
}
