//! Build steps of recipes: a command over its declared inputs, whose declared outputs become a layer.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use infradev_layers::{Kind, Tree, TreePath, merge};
use infradev_recipes::{BuildStep, Recipe};
use infradev_store::LayerId;

use super::scratch::{StepCommand, tail, variables};
use super::{BUILD_MTIME, BuildError, Product, Workshop, io};
use crate::env::plan::{Bind, Network};

/// Returns the part of the source tree that `step` declares as its inputs, without times.
pub(crate) fn inputs(source: &Tree, recipe: &Recipe, step: &BuildStep) -> Result<Tree, BuildError> {
    let prefix = recipe.workspace.trim_start_matches('/').len() + 1;
    let mut matched = vec![false; step.inputs.len()];
    let mut wanted: HashSet<&TreePath> = HashSet::new();
    for entry in source.entries().iter().filter(|entry| !entry.kind.is_directory()) {
        let below = entry.path.as_bytes().get(prefix..).unwrap_or_default();
        if below.is_empty() {
            continue;
        }
        let below = String::from_utf8_lossy(below);
        for (pattern, matched) in step.inputs.iter().zip(&mut matched) {
            if pattern.matches(&below) {
                *matched = true;
                wanted.insert(&entry.path);
            }
        }
    }
    if let Some(position) = matched.iter().position(|matched| !matched) {
        let (pattern, step) = (step.inputs[position].to_string(), step.name.clone());
        return Err(BuildError::NoInput { pattern, step });
    }
    Ok(source.filter(|path| wanted.contains(path))?.with_mtime(BUILD_MTIME))
}

/// Runs `step` over the layers that it needs and its `inputs`.
pub(crate) fn build_step<'a>(
    workshop: &Workshop<'a>,
    recipe: &Recipe,
    step: &BuildStep,
    needs: &[LayerId],
    inputs: Tree,
    log: &Path,
) -> Result<Product<'a>, BuildError> {
    let mut product = workshop.product()?;
    let mut trees = workshop.trees(needs)?;
    trees.push(inputs);
    let below = merge(&trees);
    let mut environment = variables();
    environment.extend(step.env.clone());
    environment.extend(workshop.session.config.passed_through(&step.env_ignored));
    let mut binds = workshop.host_binds(&below);
    if let Some(cache) = &step.cache {
        let directory = workshop.store.layout().cache("compile").join(cache);
        std::fs::create_dir_all(&directory).map_err(io("create", &directory))?;
        let place = workshop.lend(&mut binds, &directory, "/tmp/cache", true)?;
        environment.insert("CCACHE_DIR".to_owned(), place);
    }
    let network = if step.network { Network::Host } else { Network::None };
    if step.network && Path::new("/etc/resolv.conf").exists() {
        binds.push(Bind::read_only("/etc/resolv.conf", "/etc/resolv.conf"));
    }
    let command = StepCommand {
        arguments: step.command.clone(),
        directory: PathBuf::from(&recipe.workspace),
        variables: environment,
        network,
        binds,
        log,
    };
    let scratch = workshop.run(&below, command)?;
    let written = workshop.changes(&scratch, &below, &product.ingest)?;
    product.tree = outputs(&written, step, log)?.with_mtime(BUILD_MTIME);
    Ok(product)
}

/// Returns the declared outputs of what was written; each pattern must have matched something.
fn outputs(written: &Tree, step: &BuildStep, log: &Path) -> Result<Tree, BuildError> {
    let text = |path: &TreePath| format!("/{}", String::from_utf8_lossy(path.as_bytes()));
    let is_output =
        |kind: &Kind| !matches!(kind, Kind::Whiteout | Kind::Directory { .. } | Kind::ImpliedDirectory);
    for pattern in &step.outputs {
        let mut files = written.entries().iter().filter(|entry| is_output(&entry.kind));
        if !files.any(|entry| pattern.matches(&text(&entry.path))) {
            return Err(BuildError::NoOutput {
                pattern: pattern.to_string(),
                step: step.name.clone(),
                log: log.to_owned(),
                tail: tail(log),
            });
        }
    }
    Ok(written.filter(|path| {
        written.get(path).is_some_and(is_output)
            && step.outputs.iter().any(|pattern| pattern.matches(&text(path)))
    })?)
}
