//! `infradev verify`.

use clap::Args;
use infradev_layers::write_image;
use infradev_store::{Depth, Finding, Progress, Report, Store, Subject};
use serde::Serialize;

use crate::build::root::BuiltTask;
use crate::env::image::merged_tree;
use crate::env::state::Environment;
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::{Ui, bytes};

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Also read every object, and compare every image with its layers
    #[arg(long)]
    read_data: bool,
}

#[derive(Serialize)]
struct Verified {
    #[serde(flatten)]
    report: Report,
    images: u64,
}

struct Shown<'a> {
    ui: &'a Ui,
    read: std::sync::atomic::AtomicU64,
}

impl Progress for Shown<'_> {
    fn advance(&self, count: u64) {
        let read = self.read.fetch_add(count, std::sync::atomic::Ordering::Relaxed) + count;
        self.ui.moving("verify", || format!("{} read", bytes(read)));
    }
}

/// Exit codes: 0 whole, 1 damaged, 3 something could not be checked (wins: it may hide damage).
pub(crate) fn run(session: &Session, arguments: &VerifyArgs) -> CommandResult<u8> {
    let store = session.store_for_reading()?;
    let depth = if arguments.read_data { Depth::ReadData } else { Depth::Quick };
    let shown = Shown { ui: &session.ui, read: 0.into() };
    let mut report = store.verify(depth, &shown)?;
    let images = if arguments.read_data { verify_images(store, &mut report)? } else { 0 };
    let verified = Verified { report, images };
    session.ui.data(&verified, || {
        let Verified { report, images } = &verified;
        let mut text = String::new();
        for (word, findings) in [("damaged", &report.damage), ("not checked", &report.unchecked)] {
            for finding in findings {
                text.push_str(&format!(
                    "{word}: {}: {}{}\n",
                    finding.what,
                    finding.detail,
                    users(store, finding)
                ));
            }
        }
        text.push_str(&format!(
            "{} layers, {} objects, {images} images; {} read; {} damaged, {} not checked, {} unneeded\n",
            report.layers,
            report.objects,
            bytes(report.bytes_read),
            report.damage.len(),
            report.unchecked.len(),
            report.unneeded_objects
        ));
        text
    });
    let report = &verified.report;
    if !report.damage.is_empty() {
        session.ui.note("to mend: `infradev rm` the tasks named, `infradev gc` (with --all if none is left), and build them again");
    }
    Ok(match (report.unchecked.is_empty(), report.damage.is_empty()) {
        (false, _) => 3,
        (true, false) => 1,
        (true, true) => 0,
    })
}

/// Names the tasks that a finding affects.
fn users(store: &Store, finding: &Finding) -> String {
    let all = BuiltTask::all(store).unwrap_or_default();
    let affected = |built: &&BuiltTask| {
        built.layers.iter().chain(&built.also).any(|layer| finding.layers.contains(layer))
    };
    let names: Vec<String> = all.iter().filter(affected).map(BuiltTask::name).collect();
    if names.is_empty() { String::new() } else { format!(" (in {})", names.join(", ")) }
}

/// Makes the image of every root anew and compares it with the one on disk, which nothing else vouches for.
fn verify_images(store: &Store, report: &mut Report) -> CommandResult<u64> {
    let tasks = BuiltTask::all(store)?.into_iter().map(|built| built.stack());
    let environments = Environment::all(store)?.into_iter().map(|environment| environment.state.stack());
    let (mut images, mut seen) = (0, std::collections::HashSet::new());
    for stack in tasks.chain(environments) {
        let path = store.layout().image(&stack.id());
        let Ok(found) = std::fs::read(&path) else { continue };
        if !seen.insert(stack.id()) {
            continue;
        }
        images += 1;
        let mut expected = vec![];
        let made = merged_tree(store, &stack).map(|tree| write_image(&tree, &mut expected));
        if matches!(made, Ok(Ok(_))) && expected != found {
            report.damage.push(Finding {
                what: Subject::Image(path),
                detail: "it is not what its layers make; delete it, it is made anew".to_owned(),
                layers: stack.layers,
            });
        }
    }
    Ok(images)
}
