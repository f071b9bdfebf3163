//! `infradev du`: who uses what, and what sharing saved. docs/accounting.md defines every figure.

use std::collections::{BTreeMap, HashMap, HashSet};

use clap::{Args, ValueEnum};
use infradev_store::{LayerId, StepKey, Store};
use serde::Serialize;

use crate::build::root::{BuiltStep, BuiltTask};
use crate::env::image::read_layers;
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::{bytes, table};

/// Arguments of `du`.
#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    /// What a row stands for
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: Grain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Grain {
    /// A built task variant
    #[default]
    Task,
    /// All tasks of a project
    Project,
    /// A package or step, all its versions together
    Package,
    /// A layer
    Layer,
}

#[derive(Serialize)]
struct Row {
    name: String,
    /// Sizes of all files in bytes, hardlinks once in each layer.
    apparent: u64,
    /// Sizes of the distinct contents.
    unique: u64,
    /// Blocks of these on disk.
    on_disk: u64,
    /// What removing the row would free.
    marginal: u64,
    /// Seconds that building it alone takes.
    seconds: f64,
}

/// What the same tasks would take otherwise, in apparent bytes and build seconds.
#[derive(Serialize)]
struct Counterfactual {
    name: &'static str,
    bytes: u64,
    saved_percent: f64,
    seconds: f64,
    seconds_saved_percent: f64,
}

#[derive(Serialize)]
struct Accounts {
    by: Grain,
    rows: Vec<Row>,
    /// Blocks of every file of the store, images, records and caches too.
    store_on_disk: u64,
    /// The same of the shared stores below it.
    shared_on_disk: u64,
    /// Seconds that building everything took, each step once.
    seconds_spent: f64,
    counterfactuals: Vec<Counterfactual>,
}

pub(crate) fn run(session: &Session, arguments: &DuArgs) -> CommandResult<u8> {
    let store = session.store_for_reading()?;
    let tasks = BuiltTask::all(store)?;
    let sizes = Sizes::read(store, &tasks)?;
    let groups = groups(&tasks, arguments.by);
    let members: Vec<Vec<LayerId>> =
        groups.values().map(|group| group.layers.iter().copied().collect()).collect();
    let (usages, _) = store.usage(&members)?;
    let rows = groups.iter().zip(usages).map(|((name, group), usage)| Row {
        name: name.clone(),
        apparent: group.stacks.iter().flatten().map(|layer| sizes.apparent[layer]).sum(),
        unique: usage.unique,
        on_disk: usage.on_disk,
        marginal: usage.marginal,
        // The sum of nothing is -0.0.
        seconds: group.steps.values().sum::<f64>() + 0.0,
    });
    let mut rows: Vec<Row> = rows.collect();
    if matches!(arguments.by, Grain::Package | Grain::Layer) {
        rows.sort_by_key(|row| std::cmp::Reverse(row.on_disk));
    }
    let store_on_disk = store.disk_total()?;
    let mut shared_on_disk = 0;
    for shared in store.shared() {
        shared_on_disk += shared.disk_total()?;
    }
    let spent: HashMap<StepKey, f64> =
        tasks.iter().flat_map(|task| &task.steps).map(|step| (step.key, step.seconds)).collect();
    let seconds_spent: f64 = spent.values().sum();
    let counterfactuals = counterfactuals(&tasks, &sizes, store_on_disk + shared_on_disk, seconds_spent);
    let accounts =
        Accounts { by: arguments.by, rows, store_on_disk, shared_on_disk, seconds_spent, counterfactuals };
    session.ui.data(&accounts, || text(&accounts));
    Ok(0)
}

fn text(accounts: &Accounts) -> String {
    let cells = |row: &Row| {
        let sizes = [row.apparent, row.unique, row.on_disk, row.marginal].map(bytes);
        let mut cells = vec![row.name.clone()];
        cells.extend(sizes);
        cells.push(format!("{:.0} s", row.seconds));
        cells
    };
    let lines: Vec<Vec<String>> = accounts.rows.iter().map(cells).collect();
    let word = match accounts.by {
        Grain::Task => "TASK",
        Grain::Project => "PROJECT",
        Grain::Package => "PACKAGE",
        Grain::Layer => "LAYER",
    };
    let head = [word, "APPARENT", "UNIQUE", "ON DISK", "ITS OWN", "BUILD"];
    let mut text = table(&head, &[false, true, true, true, true, true], &lines);
    text.push_str(&format!(
        "\nthe whole store takes {} on disk{}, and {:.0} s to build\n",
        bytes(accounts.store_on_disk),
        match accounts.shared_on_disk {
            0 => String::new(),
            shared => format!(", the shared ones below it {}", bytes(shared)),
        },
        accounts.seconds_spent
    ));
    for other in &accounts.counterfactuals {
        text.push_str(&format!(
            "{}: {} and {:.0} s; saved {:.1} % of the bytes, {:.1} % of the time\n",
            other.name,
            bytes(other.bytes),
            other.seconds,
            other.saved_percent,
            other.seconds_saved_percent
        ));
    }
    text
}

/// Sizes of layers.
struct Sizes {
    /// Sizes of all files, each path counted, in bytes.
    apparent: HashMap<LayerId, u64>,
}

impl Sizes {
    fn read(store: &Store, tasks: &[BuiltTask]) -> CommandResult<Self> {
        let distinct: HashSet<LayerId> = tasks.iter().flat_map(|task| &task.layers).copied().collect();
        let distinct: Vec<LayerId> = distinct.into_iter().collect();
        let trees = read_layers(store, &distinct)?;
        let apparent =
            distinct.into_iter().zip(trees.iter().map(infradev_layers::Tree::apparent_bytes)).collect();
        Ok(Self { apparent })
    }

    fn sum(&self, layers: impl Iterator<Item = LayerId>) -> u64 {
        layers.map(|layer| self.apparent.get(&layer).copied().unwrap_or(0)).sum()
    }
}

#[derive(Default)]
struct Group {
    layers: HashSet<LayerId>,
    /// The stacks that are counted as often as they occur.
    stacks: Vec<Vec<LayerId>>,
    steps: HashMap<StepKey, f64>,
}

fn groups(tasks: &[BuiltTask], by: Grain) -> BTreeMap<String, Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for task in tasks {
        let steps =
            |group: &mut Group| group.steps.extend(task.steps.iter().map(|step| (step.key, step.seconds)));
        match by {
            Grain::Task | Grain::Project => {
                let project = task.task.split('/').next().unwrap_or_default();
                let name = if by == Grain::Task { task.name() } else { project.to_owned() };
                let group = groups.entry(name).or_default();
                group.layers.extend(&task.layers);
                group.stacks.push(task.layers.clone());
                steps(group);
            }
            Grain::Package | Grain::Layer => {
                for step in task.steps.iter().filter(|step| task.layers.contains(&step.layer)) {
                    let name = if by == Grain::Layer { layer_name(step) } else { package_name(step) };
                    let group = groups.entry(name).or_default();
                    if group.layers.insert(step.layer) {
                        group.stacks.push(vec![step.layer]);
                    }
                    group.steps.insert(step.key, step.seconds);
                }
            }
        }
    }
    groups
}

fn layer_name(step: &BuiltStep) -> String {
    format!("{} {}", step.layer.short(), step.label)
}

/// `wheel torch 2.8.0` belongs to `torch`; other steps go by their label.
fn package_name(step: &BuiltStep) -> String {
    let mut words = step.label.split(' ');
    match (words.next(), words.next()) {
        (Some("wheel"), Some(name)) => name.to_owned(),
        _ => step.label.clone(),
    }
}

fn counterfactuals(tasks: &[BuiltTask], sizes: &Sizes, disk: u64, seconds: f64) -> Vec<Counterfactual> {
    let all_steps: f64 = tasks.iter().flat_map(|task| &task.steps).map(|step| step.seconds).sum();
    let naive = tasks.iter().map(|task| sizes.sum(task.layers.iter().copied())).sum();
    // One layer for each distinct base and torch stack, shared; everything else of a task in one layer of its own.
    let mut shared: HashMap<Vec<LayerId>, u64> = HashMap::new();
    let mut shared_steps: HashMap<StepKey, f64> = HashMap::new();
    let (mut own, mut own_seconds) = (0, 0.0);
    for task in tasks {
        for kind in [is_base as fn(&BuiltStep) -> bool, is_torch] {
            let stack: Vec<LayerId> =
                task.steps.iter().filter(|step| kind(step)).map(|step| step.layer).collect();
            let bytes = sizes.sum(stack.iter().copied());
            shared.insert(stack, bytes);
        }
        for step in &task.steps {
            if is_base(step) || is_torch(step) {
                shared_steps.insert(step.key, step.seconds);
            } else {
                own_seconds += step.seconds;
                own += sizes.apparent.get(&step.layer).copied().unwrap_or(0);
            }
        }
    }
    let torch_bytes = own + shared.values().sum::<u64>();
    let torch_seconds = own_seconds + shared_steps.values().sum::<f64>();
    let make = |name, bytes: u64, other: f64| Counterfactual {
        name,
        bytes,
        saved_percent: percent(disk as f64, bytes as f64),
        seconds: other,
        seconds_saved_percent: percent(seconds, other),
    };
    let mut all = vec![make("one image per task", naive, all_steps)];
    // Without a base or torch to share, the second is the first.
    if torch_bytes != naive {
        all.push(make("shared base and torch layers, the rest per task", torch_bytes, torch_seconds));
    }
    all
}

fn percent(now: f64, otherwise: f64) -> f64 {
    if otherwise > 0.0 { 100.0 * (1.0 - now / otherwise) } else { 0.0 }
}

fn is_base(step: &BuiltStep) -> bool {
    step.kind == "base"
}

/// torch, what it links to, and triton: what an image builder would put into a layer of its own.
fn is_torch(step: &BuiltStep) -> bool {
    let name = step.label.strip_prefix("wheel ").and_then(|label| label.split(' ').next());
    name.is_some_and(|name| name == "torch" || name == "triton" || name.starts_with("nvidia-"))
}
