//! `infradev gc`.

use clap::Args;
use serde::Serialize;

use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::bytes;

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
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
    bytes: u64,
    waiting: usize,
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
        bytes: plan.bytes,
        waiting: 0,
    };
    if !arguments.dry_run {
        let done = store.gc(plan, &lease)?;
        (collected.layers, collected.objects) = (done.layers, done.objects);
        (collected.bytes, collected.waiting) = (done.freed, done.waiting);
    }
    session.ui.data(&collected, || {
        let Collected { roots, live_layers, layers, objects, images, .. } = collected;
        let word = if arguments.dry_run { "would remove" } else { "removed" };
        format!(
            "{word} {layers} layers, {objects} objects and {images} images: {}\nkept {live_layers} layers that {roots} roots need\n",
            bytes(collected.bytes)
        )
    });
    if collected.waiting > 0 {
        session.ui.note("some of it is freed by the next gc, when the commands that run now have ended");
    }
    Ok(0)
}
