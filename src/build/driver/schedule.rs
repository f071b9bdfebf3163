//! Which step is next.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use infradev_layers::Tree;
use infradev_recipes::{Action, KeyContext, NodeIndex, Plan, Progress};
use infradev_store::StepKey;

use super::super::host::Host;
use super::super::sdist::WHEEL_SHA256;
use super::super::{BuildError, Workshop, bytecode, step};
use super::execute::{self, Done};
use super::{BuildOptions, Prepared, versions};

/// A step of one of the plans.
type Job = (usize, NodeIndex);

/// The state of all plans.
pub(super) struct Schedule {
    pub(super) plans: Vec<PlanState>,
    ready: VecDeque<Job>,
    /// Keys that a worker is running, and the steps that wait for them.
    running: HashMap<StepKey, Vec<Job>>,
    /// What became of each key.
    pub(super) done: HashMap<StepKey, Done>,
    remaining: usize,
    stopped: bool,
}

/// The state of one plan.
pub(super) struct PlanState {
    pub(super) prepared: Arc<Prepared>,
    pub(super) context: KeyContext,
    pub(super) progress: Progress,
    pub(super) keys: BTreeMap<NodeIndex, StepKey>,
    /// Steps that failed, or need one that did.
    pub(super) failed: BTreeMap<NodeIndex, Failed>,
    /// How many needs each step waits for.
    waiting: BTreeMap<NodeIndex, usize>,
    users: BTreeMap<NodeIndex, Vec<NodeIndex>>,
}

/// Why a step has no layer.
pub(super) enum Failed {
    /// It failed itself.
    Itself(BuildError),
    /// It needs the step of this label, which failed.
    Needs(String),
}

impl PlanState {
    fn new(prepared: Prepared, host: &Host) -> Self {
        let plan = &prepared.plan;
        let context = KeyContext {
            host_fingerprint: Some(host.fingerprint.clone()),
            pyc_magic: bytecode::magic_number(plan.target.python),
            versions: versions(),
        };
        let mut waiting = BTreeMap::new();
        let mut users: BTreeMap<NodeIndex, Vec<NodeIndex>> = BTreeMap::new();
        for (index, node) in plan.nodes() {
            let needs: HashSet<NodeIndex> = node.needs.iter().copied().collect();
            waiting.insert(index, needs.len());
            for need in needs {
                users.entry(need).or_default().push(index);
            }
        }
        let (progress, keys, failed) = (Progress::default(), BTreeMap::new(), BTreeMap::new());
        Self { prepared: Arc::new(prepared), context, progress, keys, failed, waiting, users }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.prepared.plan
    }
}

impl Schedule {
    pub(super) fn new(prepared: Vec<Prepared>, host: &Host) -> Self {
        let plans: Vec<PlanState> =
            prepared.into_iter().map(|prepared| PlanState::new(prepared, host)).collect();
        let mut ready = VecDeque::new();
        for (number, state) in plans.iter().enumerate() {
            let first = state.waiting.iter().filter(|(_, waiting)| **waiting == 0);
            ready.extend(first.map(|(index, _)| (number, *index)));
        }
        let remaining = plans.iter().map(|state| state.waiting.len()).sum();
        Self { plans, ready, running: HashMap::new(), done: HashMap::new(), remaining, stopped: false }
    }

    /// Notes that a step has its layer, and readies those that waited for it.
    fn complete(&mut self, (number, index): Job, key: Option<StepKey>, done: Option<&Done>) {
        let state = &mut self.plans[number];
        if let Some(key) = key {
            state.keys.insert(index, key);
        }
        match done {
            Some(Done::Made { layer, outputs, .. }) => {
                state.progress.layers.insert(index, *layer);
                if let Some(sha256) = outputs.get(WHEEL_SHA256) {
                    state.progress.built_wheels.insert(index, sha256.clone());
                }
            }
            Some(Done::Failed { label }) => {
                let failed = Failed::Needs(label.clone());
                state.failed.entry(index).or_insert(failed);
            }
            None => {}
        }
        self.remaining -= 1;
        // Of those that can go on, the first in the document is in front.
        for user in state.users.remove(&index).unwrap_or_default().into_iter().rev() {
            let waiting = state.waiting.get_mut(&user).expect("every step has a count");
            *waiting -= 1;
            if *waiting == 0 {
                // First come, last served: a task is finished before the next is begun.
                self.ready.push_front((number, user));
            }
        }
    }
}

/// What a worker does until nothing is left.
pub(super) fn work(
    workshop: &Workshop<'_>,
    schedule: &Mutex<Schedule>,
    wake: &Condvar,
    options: &BuildOptions,
) {
    let lock = || schedule.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    loop {
        let Some(job) = next(lock(), wake) else { return };
        let begun = begin(workshop, &lock, job);
        let mut guard = lock();
        match begun {
            Begun::Nothing => guard.complete(job, None, None),
            Begun::Failed(failed) => fail(&mut guard, job, None, failed, options),
            Begun::Step(mut ready) => {
                let key = ready.key;
                if let Some(done) = guard.done.get(&key).cloned() {
                    guard.complete(job, Some(key), Some(&done));
                } else if let Some(waiting) = guard.running.get_mut(&key) {
                    waiting.push(job);
                    continue;
                } else {
                    guard.running.insert(key, vec![]);
                    ready.layers.clone_from(&guard.plans[job.0].progress.layers);
                    drop(guard);
                    let result = execute::execute(workshop, *ready, options);
                    guard = lock();
                    settle(&mut guard, job, key, result, options);
                }
            }
        }
        wake.notify_all();
    }
}

fn next(mut guard: MutexGuard<'_, Schedule>, wake: &Condvar) -> Option<Job> {
    loop {
        if guard.stopped || guard.remaining == 0 {
            return None;
        }
        if let Some(job) = guard.ready.pop_front() {
            return Some(job);
        }
        guard = wake.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

/// Notes the result of a step that was run, for every step that has its key.
fn settle(
    guard: &mut MutexGuard<'_, Schedule>,
    job: Job,
    key: StepKey,
    result: Result<Done, BuildError>,
    options: &BuildOptions,
) {
    let waiting = guard.running.remove(&key).unwrap_or_default();
    let done = match result {
        Ok(done) => {
            guard.complete(job, Some(key), Some(&done));
            done
        }
        Err(error) => {
            let label = guard.plans[job.0].plan().node(job.1).label.clone();
            fail(guard, job, Some(key), Failed::Itself(error), options);
            Done::Failed { label }
        }
    };
    for job in waiting {
        guard.complete(job, Some(key), Some(&done));
    }
    guard.done.insert(key, done);
}

fn fail(
    guard: &mut MutexGuard<'_, Schedule>,
    job: Job,
    key: Option<StepKey>,
    failed: Failed,
    options: &BuildOptions,
) {
    let is_new = matches!(failed, Failed::Itself(_));
    guard.plans[job.0].failed.insert(job.1, failed);
    guard.complete(job, key, None);
    guard.stopped |= is_new && !options.keep_going;
}

/// What is known of a step before it is looked up.
enum Begun {
    /// A host base: there is nothing to make.
    Nothing,
    /// It cannot be made.
    Failed(Failed),
    /// It can be looked up, and run.
    Step(Box<execute::Ready>),
}

fn begin<'a>(
    workshop: &Workshop<'_>,
    lock: &dyn Fn() -> MutexGuard<'a, Schedule>,
    (number, index): Job,
) -> Begun {
    let (prepared, failed_need, source) = {
        let guard = lock();
        let state = &guard.plans[number];
        let node = state.plan().node(index);
        let failed = node.needs.iter().find(|need| state.failed.contains_key(need));
        let failed = failed.map(|need| state.plan().node(*need).label.clone());
        let source =
            node.needs.iter().find(|need| matches!(state.plan().node(**need).action, Action::Source));
        let source = source.and_then(|need| state.progress.layers.get(need)).copied();
        (Arc::clone(&state.prepared), failed, source)
    };
    if let Some(label) = failed_need {
        return Begun::Failed(Failed::Needs(label));
    }
    let mut inputs: Option<Tree> = None;
    if let (Action::Build(build), Some(source)) = (&prepared.plan.node(index).action, source) {
        let tree = workshop.trees(&[source]).map(|mut trees| trees.remove(0));
        match tree.and_then(|tree| step::inputs(&tree, &prepared.plan.recipe, build)) {
            Ok(tree) => inputs = Some(tree),
            Err(error) => return Begun::Failed(Failed::Itself(error)),
        }
    }
    let mut guard = lock();
    let state = &mut guard.plans[number];
    if let Some(inputs) = &inputs {
        state.progress.inputs.insert(index, *inputs.layer_id().as_bytes());
    }
    if matches!(prepared.plan.node(index).action, Action::HostBase) {
        return Begun::Nothing;
    }
    match prepared.plan.record(index, &state.context, &state.progress) {
        Ok(record) => {
            drop(guard);
            let (key, layers) = (record.key(), BTreeMap::new());
            Begun::Step(Box::new(execute::Ready { prepared, index, record, key, layers, inputs }))
        }
        Err(error) => Begun::Failed(Failed::Itself(error.into())),
    }
}
