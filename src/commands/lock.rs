//! `infradev lock`: decide what environments install.

use clap::Args;

use crate::error::CommandResult;
use crate::lock::{Finding, LockOptions, LockReport, Outcome, check, lock};
use crate::session::Session;
use crate::ui::{bytes, table};

/// Which locks to make, and how.
#[derive(Debug, Args)]
pub(crate) struct LockArguments {
    /// Tasks: a project, a task, a glob or `all`
    #[arg(required = true, value_name = "SELECTOR")]
    selectors: Vec<String>,
    /// Only this variant
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Resolve the selected locks anew, aligned with each other and with all others
    #[arg(long)]
    realign: bool,
    /// Choose the Debian packages of the bases, and ask what images and archives are, anew
    #[arg(long)]
    refresh_base: bool,
    /// Compare the locks with the recipes and the indexes; exit with 1 if anything is off
    #[arg(long, conflicts_with_all = ["realign", "refresh_base", "dry_run"])]
    check: bool,
    /// Show what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(session: &Session, arguments: LockArguments) -> CommandResult<u8> {
    let tasks = session.tasks(&arguments.selectors)?;
    let mut recipes = vec![];
    for recipe in session.recipes(&tasks, None)? {
        if arguments.variant.as_ref().is_none_or(|variant| *variant == recipe.variant) {
            recipes.push(recipe);
        }
    }
    if let (true, Some(variant), [first, ..]) = (recipes.is_empty(), &arguments.variant, tasks.as_slice()) {
        // Says which variants there are.
        session.catalog()?.recipe(first, variant)?;
    }
    if arguments.check {
        let findings = check(session, &recipes)?;
        show_findings(session, &findings);
        return Ok(u8::from(!findings.is_empty()));
    }
    let LockArguments { realign, refresh_base, dry_run, .. } = arguments;
    let reports = lock(session, &recipes, LockOptions { realign, refresh_base, dry_run })?;
    show_reports(session, &reports, dry_run);
    Ok(0)
}

fn show_reports(session: &Session, reports: &[LockReport], dry_run: bool) {
    #[derive(serde::Serialize)]
    struct Data<'a> {
        dry_run: bool,
        locks: &'a [LockReport],
    }
    session.ui.data(&Data { dry_run, locks: reports }, || {
        let rows: Vec<Vec<String>> = reports.iter().map(row).collect();
        table(
            &["lock", "", "packages", "shared", "download", "of that new", "saved"],
            &[false, false, true, true, true, true, true],
            &rows,
        )
    });
    if reports.iter().any(|report| report.sharing.is_some_and(|sharing| sharing.saved_bytes.is_some())) {
        session.ui.note(
            "saved: downloads that alignment avoided, against a resolution of the same requirements without it",
        );
    }
    if dry_run {
        session.ui.note("nothing was written");
    }
}

fn row(report: &LockReport) -> Vec<String> {
    let outcome = match report.outcome {
        Outcome::New => "new",
        Outcome::Changed => "changed",
        Outcome::Same => "as before",
        Outcome::Kept => "kept",
    };
    let sharing = |show: &dyn Fn(&crate::lock::Sharing) -> String| {
        report.sharing.as_ref().map(show).unwrap_or_default()
    };
    vec![
        report.lock.clone(),
        outcome.to_owned(),
        report.packages.to_string(),
        sharing(&|sharing| sharing.shared.to_string()),
        sharing(&|sharing| bytes(sharing.bytes)),
        sharing(&|sharing| bytes(sharing.added_bytes)),
        sharing(&|sharing| sharing.saved_bytes.map(bytes).unwrap_or_default()),
    ]
}

fn show_findings(session: &Session, findings: &[Finding]) {
    #[derive(serde::Serialize)]
    struct Data<'a> {
        findings: &'a [Finding],
    }
    session.ui.data(&Data { findings }, || {
        let line = |finding: &Finding| match &finding.package {
            Some(package) => format!("{}: {package}: {}\n", finding.lock, finding.problem),
            None => format!("{} {}\n", finding.lock, finding.problem),
        };
        findings.iter().map(line).collect()
    });
    if findings.is_empty() {
        session.ui.note("all locks agree with their recipes and with the indexes");
    }
}
