//! `infradev show`.

use clap::Args;
use infradev_recipes::{Base, Origin, ROOTFS};
use serde::Serialize;

use crate::build::root::BuiltTask;
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::counted;

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The task
    task: String,
    /// Only this variant
    #[arg(long)]
    variant: Option<String>,
    /// Also print the prompt
    #[arg(long)]
    prompt: bool,
}

#[derive(Serialize)]
struct Shown {
    recipes: Vec<serde_json::Value>,
    built: Vec<BuiltTask>,
    prompt: Option<String>,
}

pub(crate) fn run(session: &Session, arguments: &ShowArgs) -> CommandResult<u8> {
    let catalog = session.catalog()?;
    let tasks = session.tasks(std::slice::from_ref(&arguments.task))?;
    let recipes = session.recipes(&tasks, arguments.variant.as_deref())?;
    let store = session.store_if_any()?;
    let mut text = String::new();
    let mut built = vec![];
    let mut prompt = None;
    for recipe in &recipes {
        let task = recipe.task.to_string();
        let base = match &recipe.base {
            Base::Debian { suite, packages } => format!("Debian {suite} with {}", packages.join(", ")),
            Base::Host => "the host's directories, read-only".to_owned(),
            Base::Image { reference } => match reference.strip_prefix(ROOTFS) {
                Some(place) => format!("root file system {place}"),
                None => format!("image {reference}"),
            },
        };
        let source = match &recipe.source.origin {
            Origin::Commit(commit) => format!("{} at {commit}", recipe.git.as_deref().unwrap_or("?")),
            Origin::Sdist { name, .. } => format!("sdist {name} {}", recipe.source.version),
        };
        text.push_str(&format!("{task}@{}\n", recipe.variant));
        text.push_str(&format!(
            "  source    {source}\n  base      {base}\n  lock      {}\n",
            recipe.lock_file()
        ));
        text.push_str(&format!("  wants     {}\n", recipe.requirements.pins.join(", ")));
        for step in &recipe.build {
            text.push_str(&format!(
                "  build     {}: {}\n",
                step.name,
                step.command.first().map_or("", String::as_str)
            ));
        }
        if let Some(tests) = &recipe.tests {
            let (fail, pass) = (tests.fail_to_pass.len(), tests.pass_to_pass.len());
            text.push_str(&format!(
                "  tests     {fail} that must begin to pass, {pass} that must go on passing\n"
            ));
        }
        for probe in catalog.grading(&recipe.task)?.probes {
            let kind = format!("{:?}", probe.kind).to_lowercase();
            text.push_str(&format!("  probe     {} ({kind}): {}\n", probe.name, probe.title));
        }
        let found = store.map(|store| BuiltTask::read(store, &task, &recipe.variant)).transpose()?.flatten();
        match found {
            Some(found) => {
                text.push_str(&format!(
                    "  built     {}, stack {}\n",
                    counted(found.layers.len(), "layer"),
                    found.stack().id().short()
                ));
                built.push(found);
            }
            None => text.push_str("  built     no\n"),
        }
        if arguments.prompt {
            prompt = catalog.prompt(&recipe.task)?;
        }
    }
    if let Some(prompt) = &prompt {
        text.push_str(&format!("\n{prompt}"));
    }
    let recipes = recipes.iter().map(|recipe| serde_json::to_value(recipe).expect("plain data")).collect();
    session.ui.data(&Shown { recipes, built, prompt }, || text);
    Ok(0)
}
