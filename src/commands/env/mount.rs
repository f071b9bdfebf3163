//! `env mount` and `env umount`.

use serde::Serialize;

use super::MountArgs;
use super::create::{create, find_built, mountable_again};
use crate::env::default_mapping;
use crate::env::holder::Holder;
use crate::env::image::Mountable;
use crate::env::launch::{LaunchPlan, RootFileSystem, Streams, launch};
use crate::env::mount::mount as mount_overlay;
use crate::env::plan::{Mapping, Network, Run, runtime_spec};
use crate::env::state::{Environment, EnvironmentError};
use crate::error::{CommandError, CommandResult, Kind};
use crate::session::Session;

#[derive(Serialize)]
struct Mounted {
    name: String,
    path: String,
    back_end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<i32>,
}

pub(super) fn mount(session: &Session, arguments: &MountArgs) -> CommandResult<u8> {
    let store = session.store()?;
    let root = rustix::process::geteuid().is_root();
    let lease = store.lease(&format!("mount {}", arguments.task))?;
    let again = |environment: Environment| -> CommandResult<_> {
        let mountable = mountable_again(store, &environment, &lease)?;
        Ok((environment, mountable))
    };
    let (environment, mountable) = match Environment::open(store, &arguments.task) {
        Ok(environment) => again(environment)?,
        Err(EnvironmentError::Absent(_) | EnvironmentError::Name(_)) => {
            let built = find_built(session, store, &arguments.task, &arguments.which)?;
            let named = arguments.name.as_ref().and_then(|name| Environment::open(store, name).ok());
            let same = |environment: &Environment| {
                environment.state.task == built.name() && environment.state.layers == built.layers
            };
            // A mount that was killed, typed again.
            if let Some(environment) = named.filter(same) {
                session
                    .ui
                    .note(format!("`{}` is there already, with what was written in it", environment.name));
                return attach_or_show(session, again(environment)?);
            }
            let name = match &arguments.name {
                Some(name) => name.clone(),
                None => free_name(store, &built.task)?,
            };
            let mapping = if root { Mapping::Host } else { default_mapping() };
            create(session, &lease, &built, &name, mapping, false)?
        }
        Err(error) => return Err(error.into()),
    };
    attach_or_show(session, (environment, mountable))
}

/// Mounts an environment unless it is mounted already, and says where it is.
fn attach_or_show(
    session: &Session,
    (environment, mountable): (Environment, Mountable),
) -> CommandResult<u8> {
    let name = &environment.name;
    let lock = environment.lock()?;
    end_forgotten(&environment)?;
    let holder = Holder::of(&environment);
    let already = environment.is_mounted() || holder.is_some();
    let for_host = environment.state.mapping == Mapping::Host;
    let holder = match (already, for_host) {
        (true, _) => holder,
        (false, true) => {
            let described = environment.overlay(session.store()?, mountable);
            let failed = |error: crate::env::mount::MountError| {
                CommandError::caused(Kind::Infrastructure, &error)
                    .hint("`infradev doctor` says what this machine allows")
            };
            mount_overlay(&described, None, &environment.merged()).map_err(failed)?;
            None
        }
        (false, false) => Some(hold(session, &environment, mountable)?),
    };
    drop(lock);
    let path = holder.map_or_else(|| environment.merged(), |holder| holder.root());
    let mounted = Mounted {
        name: name.clone(),
        path: path.display().to_string(),
        back_end: environment.state.back_end.word(),
        holder: holder.map(|holder| holder.init),
    };
    session.ui.data(&mounted, || format!("{}\n", mounted.path));
    let verb = if already { "was mounted already" } else { "is mounted" };
    let how = match mounted.holder {
        Some(pid) => format!("held by process {pid}; enter with: infradev env exec {name} -- COMMAND"),
        None => format!("{}; end with: infradev env rm {name}", mounted.back_end),
    };
    session.ui.note(format!("`{name}` {verb} ({how})"));
    Ok(0)
}

/// Ends a holder that nobody may count on, before the environment is mounted anew or removed.
pub(super) fn end_forgotten(environment: &Environment) -> CommandResult {
    Holder::end_forgotten(environment).map_err(|error| {
        let text = format!("cannot end the holder of `{}`: {error}", environment.name);
        CommandError::new(Kind::Infrastructure, text)
    })
}

/// Starts a process that keeps the environment mounted in its namespaces.
fn hold(session: &Session, environment: &Environment, mountable: Mountable) -> CommandResult<Holder> {
    let store = session.store()?;
    let state = &environment.state;
    let run = Run {
        // Waits without using the processor; ends with the namespaces.
        command: ["/bin/sh", "-c", "while :; do sleep 2147483647; done"].map(str::to_owned).to_vec(),
        directory: "/".into(),
        variables: state.variables.clone(),
        terminal: false,
        network: Network::None,
        mapping: state.mapping,
        binds: if state.host_base { crate::build::host::Host::binds() } else { vec![] },
        memory_files: crate::env::memory_files(),
        host_name: environment.name.clone(),
    };
    let spec = runtime_spec(&run, &environment.merged()).expect("every required field is given");
    let root = RootFileSystem::Overlay(environment.overlay(store, mountable));
    let plan = LaunchPlan { spec, root, mapping: state.mapping, detached: true };
    let null = std::process::Stdio::null;
    let streams = Streams { input: std::process::Stdio::piped(), output: null(), error: null() };
    let mut launched = launch(&plan, streams)?;
    launched.wait_started()?;
    let stage = launched.child.id() as i32;
    let children =
        std::fs::read_to_string(format!("/proc/{stage}/task/{stage}/children")).unwrap_or_default();
    let init = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
    let holder = init.and_then(|init| Holder::observe(stage, init));
    let failed = |text: String| CommandError::new(Kind::Infrastructure, text);
    let mut holder =
        holder.ok_or_else(|| failed("the process that holds the environment ended at once".to_owned()))?;
    // Known first, released second, counted on third: killed anywhere here, nothing is forgotten.
    let unwritten = |error: std::io::Error| failed(format!("cannot write holder.json: {error}"));
    holder.save(environment).map_err(unwritten)?;
    launched.release()?;
    holder.released = true;
    holder.save(environment).map_err(unwritten)?;
    Ok(holder)
}

fn free_name(store: &infradev_store::Store, task: &str) -> CommandResult<String> {
    let stem = task.replace('/', "-");
    for number in 1.. {
        let name = if number == 1 { stem.clone() } else { format!("{stem}.{number}") };
        match Environment::open(store, &name) {
            Err(EnvironmentError::Absent(_)) => return Ok(name),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("there are more numbers than environments")
}

pub(super) fn unmount(session: &Session, name: &str) -> CommandResult<u8> {
    let store = session.store()?;
    let environment = Environment::open(store, name)?;
    if !detach(&environment)? {
        return Err(CommandError::usage(format!("the environment `{name}` is not mounted")));
    }
    session
        .ui
        .note(format!("unmounted `{name}`; what was written in it stays until `infradev env rm {name}`"));
    session.ui.data(&serde_json::json!({ "unmounted": name }), String::new);
    Ok(0)
}

/// Unmounts an environment; returns whether it was mounted.
pub(super) fn detach(environment: &Environment) -> CommandResult<bool> {
    let name = &environment.name;
    let _no_command = match Holder::of(environment).is_some() || environment.is_mounted() {
        true => Some(environment.keep_out()?),
        false => None,
    };
    if let Some(holder) = Holder::of(environment) {
        holder.end(environment).map_err(|error| {
            CommandError::new(Kind::Infrastructure, format!("cannot end the holder of `{name}`: {error}"))
        })?;
        return Ok(true);
    }
    if !environment.is_mounted() {
        return Ok(false);
    }
    // This program may itself have been started from inside the mount.
    let _stays_where_it_is = rustix::process::chdir("/");
    let merged = environment.merged();
    let unmount = || rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::empty());
    let mut tried = unmount();
    let mut users = vec![];
    // A user without a name is one that is just leaving, such as a child between fork and exec.
    for _ in 0..20 {
        if tried != Err(rustix::io::Errno::BUSY) {
            break;
        }
        users = users_of(&merged);
        if !users.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        tried = unmount();
    }
    match tried {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::BUSY) => {
            let hint = if users.is_empty() {
                "end the commands that use it, then try again".to_owned()
            } else {
                format!("used by {}; end them, then try again", users.join(", "))
            };
            let text = format!("the environment `{name}` is busy");
            Err(CommandError::new(Kind::Infrastructure, text).hint(hint))
        }
        Err(error) => {
            Err(CommandError::new(Kind::Infrastructure, format!("cannot unmount `{name}`: {error}")))
        }
    }
}

/// Names the processes that work in `path`, or have a file of it open or mapped.
fn users_of(path: &std::path::Path) -> Vec<String> {
    let mut users = vec![];
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let process = entry.path();
        let points_inside =
            |link: &std::path::Path| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path));
        let any_inside = |directory: &str| {
            let links = std::fs::read_dir(process.join(directory)).into_iter().flatten().flatten();
            links.into_iter().any(|link| points_inside(&link.path()))
        };
        let works_inside = ["cwd", "root", "exe"].iter().any(|link| points_inside(&process.join(link)));
        if works_inside || any_inside("fd") || any_inside("map_files") {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            users.push(format!("process {pid} ({})", name.trim()));
        }
    }
    users
}
