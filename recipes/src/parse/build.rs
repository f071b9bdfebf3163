//! `[[build]]`, of a project or a task.

use std::collections::BTreeSet;

use super::{Fields, Item};
use crate::order::find_cycle;
use crate::recipe::BuildStep;

/// Reads build steps; `variants` are the names that a step may be restricted to.
pub(super) fn read_steps(item: &Item<'_>, workspace: &str, variants: &[String]) -> Option<Vec<BuildStep>> {
    let steps = item.list(|item| item.table(|fields| read_step(fields, workspace, variants)))?;
    let mut names = BTreeSet::new();
    for step in &steps {
        if !names.insert(step.name.as_str()) {
            return item.fail("a name of its own for every build step", format!("`{}` twice", step.name));
        }
    }
    match find_cycle(&steps) {
        Some(cycle) => item.fail("needs without a cycle", cycle.join(" needs ")),
        None => Some(steps),
    }
}

fn read_step(fields: &mut Fields<'_>, workspace: &str, variants: &[String]) -> Option<BuildStep> {
    let name = fields.required("name", Item::plain_name);
    let command = fields.required("command", Item::command);
    let inputs = fields.required("inputs", |item| item.list(Item::relative_pattern));
    let outputs = fields.required("outputs", |item| {
        let outputs = item.list(|item| item.environment_pattern(workspace))?;
        if outputs.is_empty() { item.fail("at least one output", "none") } else { Some(outputs) }
    });
    let needs = fields.defaulted("needs", |item| item.distinct(Item::plain_name));
    let env = fields.defaulted("env", Item::environment);
    let env_ignored = fields.defaulted("env-ignored", |item| item.distinct(Item::variable_name));
    let cache = fields.optional("cache", Item::plain_name);
    let network = fields.defaulted("network", Item::boolean);
    let restricted = fields.defaulted("variants", |item| read_variant_names(item, variants));
    fields.close();
    let (env, env_ignored) = (env?, env_ignored?);
    if let Some(name) = env_ignored.iter().find(|name| env.contains_key(*name)) {
        return fields.fail("each variable in `env` or in `env-ignored`", format!("`{name}` in both"));
    }
    Some(BuildStep {
        name: name?,
        command: command?,
        inputs: inputs?,
        outputs: outputs?,
        needs: needs?,
        env,
        env_ignored,
        cache: cache?,
        network: network?,
        variants: restricted?,
    })
}

/// Reads names of variants, each of which must be one of `known`.
pub(super) fn read_variant_names(item: &Item<'_>, known: &[String]) -> Option<Vec<String>> {
    item.distinct(|item| {
        let name = item.string()?;
        if known.contains(&name) {
            return Some(name);
        }
        item.fail(&format!("a variant of the project ({})", known.join(", ")), format!("`{name}`"))
    })
}
