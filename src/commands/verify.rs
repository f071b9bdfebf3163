//! `infradev verify`.

use std::collections::{BTreeSet, HashSet};

use clap::Args;
use infradev_layers::{check_farm_pool, differing_stub, write_image};
use infradev_store::{Depth, Finding, Report, Store, Subject};
use serde::Serialize;

use super::reading::Reading;
use crate::build::root::BuiltTask;
use crate::env::image::merged_tree;
use crate::env::state::Environment;
use crate::error::CommandResult;
use crate::repair::{Remedy, RepairPlan};
use crate::session::Session;
use crate::ui::{bytes, counted};

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Also read every object, and compare images, stub trees and farms with what they were made from
    #[arg(long)]
    read_data: bool,
    /// Mend what is found: run the steps that made damaged layers again, delete damaged caches
    ///
    /// A step must give the layer that it gave before; otherwise the damage stays, and is named again.
    #[arg(long)]
    repair: bool,
    /// Only say what --repair would do
    #[arg(long, requires = "repair")]
    dry_run: bool,
}

#[derive(Serialize)]
struct Verified<'a> {
    #[serde(flatten)]
    report: Report,
    images: u64,
    /// Copies in the pool of farms.
    copies: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<Repair<'a>>,
}

#[derive(Serialize)]
struct Repair<'a> {
    dry_run: bool,
    /// What was found before; `damage` is what is left.
    found: Vec<Finding>,
    remedies: &'a BTreeSet<Remedy>,
}

/// Exit codes: 0 whole, or mended; 1 damaged; 3 something could not be checked (wins: it may hide damage).
pub(crate) fn run(session: &Session, arguments: &VerifyArgs) -> CommandResult<u8> {
    let store = match arguments.repair && !arguments.dry_run {
        true => session.store()?,
        false => session.store_for_reading()?,
    };
    let depth = if arguments.read_data { Depth::ReadData } else { Depth::Quick };
    let (mut report, mut derived) = check(session, store, depth)?;
    let mut plan = RepairPlan::default();
    let mut found = vec![];
    if arguments.repair && !report.damage.is_empty() {
        // A layer that is whole again may show which of its objects are damaged.
        for _ in 0..ROUNDS {
            let next = RepairPlan::new(session, store, &report)?;
            let is_new = !next.remedies.is_subset(&plan.remedies);
            show(session, store, &report, &next);
            if found.is_empty() {
                found = report.damage.clone();
            }
            plan = next;
            if arguments.dry_run || !is_new {
                break;
            }
            plan.carry_out(session, store)?;
            (report, derived) = check(session, store, depth)?;
            if report.damage.is_empty() {
                break;
            }
        }
    }
    let repair =
        arguments.repair.then_some(Repair { dry_run: arguments.dry_run, found, remedies: &plan.remedies });
    let Derived { images, copies } = derived;
    let verified = Verified { report, images, copies, repair };
    session.ui.data(&verified, || {
        let Verified { report, images, copies, .. } = &verified;
        let mut text = findings(store, report);
        text.push_str(&format!(
            "{} layers, {} objects{}{}{}; {} read; {} damaged, {} not checked, {} unneeded\n",
            report.layers,
            report.objects,
            if arguments.read_data {
                format!(", {}", counted(*images as usize, "image"))
            } else {
                String::new()
            },
            if report.packs > 0 { format!(", {} packs", report.packs) } else { String::new() },
            if *copies > 0 { format!(", {copies} copies for farms") } else { String::new() },
            bytes(report.bytes_read),
            report.damage.len(),
            report.unchecked.len(),
            report.unneeded_objects
        ));
        text
    });
    let report = &verified.report;
    if report.shadowed > 0 {
        session.ui.note(format!(
            "{} damaged objects in packs have sound plain copies; `infradev gc --compress` drops them",
            report.shadowed
        ));
    }
    match (&verified.repair, report.damage.is_empty()) {
        (None, false) => {
            let depth = if arguments.read_data { " --read-data" } else { "" };
            session.ui.note(format!("to mend: `infradev verify{depth} --repair` (with --dry-run to see how)"));
        }
        (Some(repair), true) if !repair.found.is_empty() => session.ui.note("mended"),
        (Some(Repair { dry_run: false, .. }), false) => session.ui.note(
            "what is left could not be mended: a step that gives another layer now cannot give the lost one; `infradev rm` the tasks named, `infradev gc` (with --all if none is left), and build them again",
        ),
        _ => {}
    }
    Ok(match (report.unchecked.is_empty(), report.damage.is_empty()) {
        (false, _) => 3,
        (true, false) => 1,
        (true, true) => 0,
    })
}

/// How often a repair looks again.
const ROUNDS: usize = 3;

/// How much of what is made from layers was compared.
#[derive(Default)]
struct Derived {
    images: u64,
    copies: u64,
}

fn check(session: &Session, store: &Store, depth: Depth) -> CommandResult<(Report, Derived)> {
    let shown = Reading::new(&session.ui, "verify");
    let mut report = store.verify(depth, &shown)?;
    let derived = match depth {
        Depth::ReadData => Derived {
            images: verify_derived(store, &mut report),
            copies: verify_farm_pool(store, &mut report),
        },
        Depth::Quick => Derived::default(),
    };
    Ok((report, derived))
}

/// Says what was found, and what is done about it.
fn show(session: &Session, store: &Store, report: &Report, plan: &RepairPlan) {
    for line in findings(store, report).lines() {
        session.ui.note(line);
    }
    for remedy in &plan.remedies {
        session.ui.note(format!("repair: {remedy}"));
    }
}

fn findings(store: &Store, report: &Report) -> String {
    let mut text = String::new();
    for (word, findings) in [("damaged", &report.damage), ("not checked", &report.unchecked)] {
        for finding in findings {
            let users = users(store, finding);
            text.push_str(&format!("{word}: {}: {}{users}\n", finding.what, finding.detail));
        }
    }
    text
}

/// Names the tasks that a finding affects.
fn users(store: &Store, finding: &Finding) -> String {
    let all = BuiltTask::readable(store);
    let affected = |built: &&BuiltTask| {
        built.layers.iter().chain(&built.also).any(|layer| finding.layers.contains(layer))
    };
    let names: Vec<String> = all.iter().filter(affected).map(BuiltTask::name).collect();
    if names.is_empty() { String::new() } else { format!(" (in {})", names.join(", ")) }
}

/// Makes the image of every root anew and compares it with the one on disk, which nothing else vouches for; and
/// its stubs. Returns how many were compared.
fn verify_derived(store: &Store, report: &mut Report) -> u64 {
    let tasks = BuiltTask::readable(store).into_iter().map(|built| built.stack());
    let environments = Environment::readable(store).into_iter().map(|environment| environment.state.stack());
    let (mut compared, mut seen) = (0, HashSet::new());
    for stack in tasks.chain(environments) {
        let (image, stubs) = (store.layout().image(&stack.id()), store.layout().stubs(&stack.id()));
        let (has_image, has_stubs) = (image.symlink_metadata().is_ok(), stubs.symlink_metadata().is_ok());
        if !seen.insert(stack.id()) || !(has_image || has_stubs) {
            continue;
        }
        // Layers that cannot be read are findings of their own.
        let Ok(tree) = merged_tree(store, &stack) else { continue };
        compared += 1;
        let mut note = |what: Subject, detail: String| {
            report.damage.push(Finding { what, detail, layers: stack.layers.clone() });
        };
        let mut expected = vec![];
        if has_image && write_image(&tree, &mut expected).is_ok() {
            match std::fs::read(&image) {
                Ok(found) if found == expected => {}
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    let (what, detail) = (Subject::Image(image), error.to_string());
                    report.unchecked.push(Finding { what, detail, layers: vec![] });
                    continue;
                }
                _ => note(Subject::Image(image), "it is not what its layers make".to_owned()),
            }
        }
        if has_stubs {
            match differing_stub(&tree, &stubs) {
                Ok(None) => {}
                Ok(Some(path)) => {
                    note(Subject::Stubs(stubs), format!("{path} is not what its layers make"));
                }
                Err(error) => {
                    let (what, detail) = (Subject::Stubs(stubs), error.to_string());
                    report.unchecked.push(Finding { what, detail, layers: vec![] });
                }
            }
        }
    }
    compared
}

/// Compares every copy that farms link to with its name. The other files of a farm are objects themselves.
fn verify_farm_pool(store: &Store, report: &mut Report) -> u64 {
    let pool = store.layout().farm_pool();
    let finding = |name: String, detail: String| Finding {
        what: Subject::FarmCopy(pool.join(name)),
        detail,
        layers: vec![],
    };
    match check_farm_pool(&pool) {
        Ok((copies, findings)) => {
            for wrong in findings {
                let list = if wrong.checked { &mut report.damage } else { &mut report.unchecked };
                list.push(finding(wrong.name, wrong.detail));
            }
            copies
        }
        Err(error) => {
            report.unchecked.push(finding(String::new(), error.to_string()));
            0
        }
    }
}
