//! `env exec` and `env shell`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::termios::isatty;

use super::create::{create, find_built, mountable_again};
use super::{ExecArgs, Place, Surroundings, Which};
use crate::env::holder::Holder;
use crate::env::join;
use crate::env::launch::{LaunchPlan, RootFileSystem, Streams, launch};
use crate::env::plan::{Bind, Network, Run, runtime_spec};
use crate::env::state::{Environment, EnvironmentError, discarded_name};
use crate::env::{default_mapping, memory_files};
use crate::error::{CommandError, CommandResult, Kind};
use crate::session::Session;

/// infradev's own failure, so that it is never taken for the command's status.
const FAILED: u8 = 125;

pub(super) fn exec(session: &Session, arguments: &ExecArgs) -> CommandResult<u8> {
    run(session, &arguments.place, arguments.command.clone())
}

pub(super) fn shell(session: &Session, place: &Place) -> CommandResult<u8> {
    // The best shell there is: every base has sh.
    let command = ["sh", "-c", "command -v bash >/dev/null && exec bash -i; exec sh -i"].map(str::to_owned);
    run(session, place, command.to_vec())
}

/// Runs a command in a fresh environment of a built task; returns its status.
pub(crate) fn run_check(session: &Session, task: &str, command: Vec<String>) -> CommandResult<u8> {
    let which = Which { variant: None, require_fresh: false };
    in_fresh(session, task, None, &which, &Surroundings::default(), command)
}

fn run(session: &Session, place: &Place, command: Vec<String>) -> CommandResult<u8> {
    let Place { target, keep, which, surroundings } = place;
    let attempt = || -> CommandResult<u8> {
        let store = session.store()?;
        match Environment::open(store, target) {
            Ok(_) if keep.is_some() => {
                Err(CommandError::usage(format!("`{target}` is an environment, which is kept anyway"))
                    .hint("--keep is for a fresh one of a task"))
            }
            Ok(environment) => in_environment(session, &environment, surroundings, command),
            Err(EnvironmentError::Absent(_) | EnvironmentError::Name(_)) => {
                in_fresh(session, target, keep.as_deref(), which, surroundings, command)
            }
            Err(error) => Err(error.into()),
        }
    };
    attempt().map_err(|mut error| {
        error.code.get_or_insert(FAILED);
        error
    })
}

fn in_fresh(
    session: &Session,
    task: &str,
    keep: Option<&str>,
    which: &Which,
    surroundings: &Surroundings,
    command: Vec<String>,
) -> CommandResult<u8> {
    let store = session.store()?;
    let built = find_built(session, store, task, which)?;
    let lease = store.lease(&format!("exec {}", built.name()))?;
    let name = keep.map_or_else(|| discarded_name(&lease), str::to_owned);
    let (environment, mountable) = create(session, &lease, &built, &name, default_mapping(), keep.is_none())?;
    let lock = environment.lock()?;
    let run = describe(session, &environment, surroundings, command)?;
    let overlay = environment.overlay(store, mountable);
    let spec = runtime_spec(&run, &environment.merged()).expect("every required field is given");
    let plan =
        LaunchPlan { spec, root: RootFileSystem::Overlay(overlay), mapping: run.mapping, detached: false };
    let status = attend(&plan, input(surroundings)?);
    drop(lock);
    if keep.is_none() {
        environment.remove()?;
    }
    status
}

pub(super) fn in_environment(
    session: &Session,
    environment: &Environment,
    surroundings: &Surroundings,
    command: Vec<String>,
) -> CommandResult<u8> {
    let store = session.store()?;
    let run = describe(session, environment, surroundings, command)?;
    let entered = environment.enter()?;
    if let Some(holder) = Holder::of(environment) {
        if surroundings.network != Network::None || !surroundings.binds.is_empty() {
            let text = format!(
                "`{}` is held by a process, whose network and binds are those of its mount",
                environment.name
            );
            return Err(CommandError::usage(text)
                .hint("unmount it first: `env exec` then mounts it for the command alone"));
        }
        return join::join(&holder, &run, input(surroundings)?);
    }
    let spec = runtime_spec(&run, &environment.merged()).expect("every required field is given");
    let mut plan = LaunchPlan { spec, root: RootFileSystem::Mounted, mapping: run.mapping, detached: false };
    if environment.is_mounted() {
        return attend(&plan, input(surroundings)?);
    }
    drop(entered);
    let lease = store.lease(&format!("exec {}", environment.name))?;
    let _lock = environment.lock()?;
    super::mount::end_forgotten(environment)?;
    let mountable = mountable_again(store, environment, &lease)?;
    plan.root = RootFileSystem::Overlay(environment.overlay(store, mountable));
    attend(&plan, input(surroundings)?)
}

/// Starts the run, lets it have the terminal, and returns its status.
fn attend(plan: &LaunchPlan, input: Stdio) -> CommandResult<u8> {
    // The command decides about interruptions; this program has its leftovers to clear away after it.
    join::forward_nothing()?;
    let mut launched = launch(plan, Streams { input, ..Streams::inherited() })?;
    let stage = rustix::process::Pid::from_child(&launched.child);
    join::forward_to(stage);
    launched.wait_started()?;
    let ended = launched.wait_ended()?;
    Ok(u8::try_from(ended.status).unwrap_or(1))
}

fn input(surroundings: &Surroundings) -> CommandResult<Stdio> {
    match &surroundings.input {
        Some(file) => {
            Ok(file.try_clone().map_err(|error| CommandError::new(Kind::Infrastructure, error))?.into())
        }
        None => Ok(Stdio::inherit()),
    }
}

/// Describes the run of `command` in `environment`.
pub(crate) fn describe(
    session: &Session,
    environment: &Environment,
    surroundings: &Surroundings,
    command: Vec<String>,
) -> CommandResult<Run> {
    let state = &environment.state;
    let mut variables = state.variables.clone();
    let terminal = surroundings.input.is_none() && isatty(std::io::stdin());
    if let Some(term) = &session.config.term {
        variables.insert("TERM".to_owned(), term.clone());
    }
    add_variables(session, &surroundings.variables, &mut variables)?;
    let mut binds = if state.host_base { crate::build::host::Host::binds() } else { vec![] };
    if surroundings.network == Network::Host
        && std::path::Path::new("/etc/resolv.conf").exists()
        && !state.host_base
    {
        binds.push(Bind::read_only("/etc/resolv.conf", "/etc/resolv.conf"));
    }
    for bind in &surroundings.binds {
        binds.push(parse_bind(bind)?);
    }
    Ok(Run {
        command,
        directory: surroundings.workdir.clone().unwrap_or_else(|| state.directory.clone()),
        variables,
        terminal,
        network: surroundings.network,
        mapping: state.mapping,
        binds,
        memory_files: memory_files(),
        host_name: "infradev".to_owned(),
    })
}

fn add_variables(
    session: &Session,
    wanted: &[String],
    variables: &mut BTreeMap<String, String>,
) -> CommandResult {
    for variable in wanted {
        match variable.split_once('=') {
            Some((name, value)) => {
                variables.insert(name.to_owned(), value.to_owned());
            }
            None => variables.extend(session.config.passed_through(std::slice::from_ref(variable))),
        }
    }
    Ok(())
}

fn parse_bind(text: &str) -> CommandResult<Bind> {
    let wrong = || {
        CommandError::new(Kind::Usage, format!("`--bind {text}` is not of the form SOURCE:DESTINATION[:rw]"))
            .hint("both are absolute paths")
    };
    let (rest, writable) = match text.strip_suffix(":rw") {
        Some(rest) => (rest, true),
        None => (text.strip_suffix(":ro").unwrap_or(text), false),
    };
    let (source, destination) = rest.split_once(':').ok_or_else(wrong)?;
    let source = std::fs::canonicalize(source)
        .map_err(|error| CommandError::usage(format!("`--bind {text}`: {source}: {error}")))?;
    let destination = PathBuf::from(destination);
    if !destination.is_absolute() {
        return Err(wrong());
    }
    Ok(Bind { source, destination, writable })
}
