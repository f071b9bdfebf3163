//! Probes: hidden checks, each in a fresh environment, shown to it only now.

use std::fs;
use std::path::PathBuf;

use infradev_layers::Tree;
use infradev_recipes::Probe;
use serde::Deserialize;

use super::Evaluation;
use super::measure::Measured;
use super::run::Request;
use super::verdict::{ProbeResult, VerdictKind};
use crate::build::{BuildError, io};
use crate::env::plan::Bind;

/// Where the run sees the probe's files.
const PROBE: &str = "/probe";

/// The last line that a judge prints.
#[derive(Debug, Default, Deserialize)]
struct Judgement {
    pass: bool,
    reason: String,
    #[serde(default)]
    measured: serde_json::Value,
}

impl Evaluation<'_> {
    pub(super) fn run_probe(
        &self,
        probe: &Probe,
        submission: &Tree,
        seed: u64,
    ) -> Result<ProbeResult, BuildError> {
        let directory = self.workshop.lease.new_directory("probe")?;
        for (name, source) in &probe.files {
            let place = directory.join(name);
            let parent = place.parent().unwrap_or(&directory);
            fs::create_dir_all(parent).map_err(io("create", parent))?;
            fs::copy(source, &place).map_err(io("copy", source))?;
        }
        let mut variables = probe.env.clone();
        variables.insert("INFRADEV_SEED".to_owned(), seed.to_string());
        variables.insert("INFRADEV_WORKSPACE".to_owned(), self.built.workspace.clone());
        let (output, errors) =
            (self.log(&format!("probe-{}", probe.name))?, self.log(&format!("probe-{}-stderr", probe.name))?);
        let outcome = self.run(Request {
            over: &[submission],
            command: probe.command.clone(),
            directory: PathBuf::from(PROBE),
            variables,
            binds: vec![Bind::read_only(&directory, PROBE)],
            input: None,
            limit: probe.timeout,
            output: &output,
            errors: Some(&errors),
        })?;
        let text = fs::read_to_string(&output).unwrap_or_default();
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let judgement: Option<Judgement> = serde_json::from_str(last).ok();
        let (kind, reason) = decide(probe, outcome.status, judgement.as_ref(), &outcome.measured);
        Ok(ProbeResult {
            probe: probe.name.clone(),
            what: format!("{:?}", probe.kind).to_lowercase(),
            kind,
            reason,
            reported: judgement.unwrap_or_default().measured,
            measured: outcome.measured,
            log: output.display().to_string(),
        })
    }
}

fn decide(
    probe: &Probe,
    status: Option<i32>,
    judgement: Option<&Judgement>,
    measured: &Measured,
) -> (VerdictKind, String) {
    let Some(status) = status else {
        return (
            VerdictKind::ProbeRejected,
            format!("it did not end within {:.0} s", probe.timeout.as_secs_f64()),
        );
    };
    match (status, judgement) {
        (0, Some(judgement)) if judgement.pass => {}
        (1, Some(judgement)) if !judgement.pass => {
            return (VerdictKind::ProbeRejected, judgement.reason.clone());
        }
        (_, Some(judgement)) => {
            let text = format!("the judge ended with status {status} and said: {}", judgement.reason);
            return (VerdictKind::InfraError, text);
        }
        (_, None) => {
            return (
                VerdictKind::InfraError,
                format!("the judge ended with status {status} and no judgement"),
            );
        }
    }
    let limits = &probe.limits;
    let over = |name: &str, limit: Option<u64>, found: Option<u64>| -> Option<(VerdictKind, String)> {
        let limit = limit?;
        let Some(found) = found else {
            return Some((VerdictKind::InfraError, format!("{name} is limited but could not be measured")));
        };
        (found > limit)
            .then(|| (VerdictKind::ProbeRejected, format!("{name}: {found} bytes, at most {limit} allowed")))
    };
    over("peak memory", limits.peak_memory_bytes, measured.peak_memory_bytes)
        .or_else(|| over("loopback traffic", limits.loopback_bytes, measured.loopback_bytes))
        .or_else(|| {
            let limit = limits.wall?.as_secs_f64();
            (measured.wall_seconds > limit).then(|| {
                (
                    VerdictKind::ProbeRejected,
                    format!("it took {:.1} s, at most {limit:.1} s allowed", measured.wall_seconds),
                )
            })
        })
        .unwrap_or_else(|| {
            (VerdictKind::Resolved, judgement.map(|judgement| judgement.reason.clone()).unwrap_or_default())
        })
}
