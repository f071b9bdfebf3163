//! What a run takes, measured from outside: its own word does not count.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

/// How often memory is sampled at most. A peak between two samples is missed.
const INTERVAL: Duration = Duration::from_millis(50);

/// A sample may take one part in so many of the time: the kernel walks every mapping for it, and must not slow
/// down what is measured.
const SHARE: u32 = 20;

/// What a run took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Seconds of wall time.
    pub wall_seconds: f64,
    /// The largest sampled sum of anonymous and shared memory of all processes, in bytes; `None` if unmeasured.
    pub peak_memory_bytes: Option<u64>,
    /// What the run's loopback device carried, in bytes; `None` if unmeasured.
    pub loopback_bytes: Option<u64>,
}

/// Samples the memory of the processes below one.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    peak: AtomicU64,
    samples: AtomicU64,
    stop: AtomicBool,
}

impl Sampler {
    /// Samples until [`Self::stop`], in the calling thread.
    pub(super) fn sample(&self, stage: u32) {
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            if let Some(bytes) = memory_below(stage) {
                self.peak.fetch_max(bytes, Ordering::Relaxed);
                self.samples.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(INTERVAL.max(began.elapsed() * SHARE).min(Duration::from_secs(1)));
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns the peak in bytes, if there was any sample.
    pub(super) fn peak(&self) -> Option<u64> {
        (self.samples.load(Ordering::Relaxed) > 0).then(|| self.peak.load(Ordering::Relaxed))
    }
}

/// Sums the memory of every process of a run, but for the stage and process 1, which are ours.
///
/// Pages that processes share are counted in proportion (`Pss`), so that forks do not count twice.
fn memory_below(stage: u32) -> Option<u64> {
    let init = children(stage).into_iter().next()?;
    let mut pending = children(init);
    let mut seen: HashSet<u32> = pending.iter().copied().collect();
    let mut total = None;
    while let Some(process) = pending.pop() {
        if let Some(bytes) = memory_of(process) {
            total = Some(total.unwrap_or(0) + bytes);
        }
        pending.extend(children(process).into_iter().filter(|child| seen.insert(*child)));
    }
    total
}

/// Lists the children of every thread of a process (proc_pid_task(5), `children`).
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// Anonymous and shared memory of a process in bytes (proc_pid_smaps(5)).
fn memory_of(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((field("Pss_Anon:")? + field("Pss_Shmem:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory() {
        assert!(memory_of(std::process::id()).is_some_and(|bytes| bytes > 10_000));
    }
}
