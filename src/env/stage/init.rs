//! Process 1 of a run: makes the surroundings, gives up every privilege, starts the command, reaps orphans.

use std::os::unix::process::CommandExt;
use std::process::Command;

use oci_spec::runtime::{LinuxNamespaceType, PosixRlimitType, Process};
use rustix::process::{Pid, Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType};

use super::attend::Attendant;
use super::{Failure, Inherited, While, die_with_parent, namespaces, root};
use crate::env::launch::Notice;
use crate::env::plan::Mapping;
use crate::env::{namespace, network};

/// The status for a program that is not there, as shells give it.
pub(super) const NOT_FOUND: i32 = 127;
/// The status for a program that cannot be executed, as shells give it.
pub(super) const NOT_EXECUTABLE: i32 = 126;

pub(super) fn init(inherited: &Inherited) -> Result<i32, Failure> {
    die_with_parent(inherited)?;
    let plan = inherited.read_plan()?;
    let spec = &plan.spec;
    let process =
        spec.process().as_ref().ok_or_else(|| Failure::new("read the plan", "it has no process"))?;
    root::enter(&plan, inherited.user_namespace.as_ref())?;
    if let Some(name) = spec.hostname() {
        rustix::system::sethostname(name.as_bytes()).during("set the host name")?;
    }
    let own_network = namespaces(spec).contains(&LinuxNamespaceType::Network);
    if own_network {
        network::loopback_up().during("set the loopback device up")?;
    }
    limit(process)?;
    if let Mapping::Range(first) = plan.mapping {
        give_pipes(first);
    }
    become_user(inherited)?;
    drop_privileges()?;
    // Changing the user cleared it (prctl(2), PR_SET_PDEATHSIG).
    die_with_parent(inherited)?;
    namespace::close_on_exec().during("close descriptors")?;
    let attendant = Attendant::new(process.terminal().unwrap_or(false)).during("handle signals")?;
    let command = match start(process) {
        Ok(pid) => pid,
        Err((status, notice)) => {
            inherited.tell(&notice);
            return Ok(status);
        }
    };
    inherited.tell(&Notice::Started);
    let status = attendant.wait(command);
    let loopback = if own_network { std::fs::read_to_string("/proc/net/dev").ok() } else { None };
    inherited
        .tell(&Notice::Ended { status, loopback: loopback.as_deref().and_then(network::loopback_bytes) });
    Ok(status)
}

fn start(process: &Process) -> Result<Pid, (i32, Notice)> {
    let arguments = process.args().clone().unwrap_or_default();
    let program = arguments.first().cloned().unwrap_or_default();
    let directory = process.cwd();
    if let Err(error) = rustix::process::chdir(directory) {
        let action = format!("change to the directory {}", directory.display());
        return Err((super::FAILED, Notice::Failed { action, cause: error.to_string() }));
    }
    let mut command = Command::new(&program);
    command.args(arguments.iter().skip(1)).env_clear();
    for variable in process.env().iter().flatten() {
        if let Some((name, value)) = variable.split_once('=') {
            command.env(name, value);
        }
    }
    match command.arg0(&program).spawn() {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err((NOT_FOUND, Notice::NotFound { program }))
        }
        Err(error) => Err((NOT_EXECUTABLE, Notice::NotExecutable { program, cause: error.to_string() })),
    }
}

fn limit(process: &Process) -> Result<(), Failure> {
    for limit in process.rlimits().iter().flatten() {
        let resource = match limit.typ() {
            PosixRlimitType::RlimitCore => Resource::Core,
            PosixRlimitType::RlimitNofile => Resource::Nofile,
            PosixRlimitType::RlimitFsize => Resource::Fsize,
            PosixRlimitType::RlimitCpu => Resource::Cpu,
            other => return Err(Failure::new("set limits", format!("{other:?} is not supported"))),
        };
        let limits = Rlimit { current: Some(limit.soft()), maximum: Some(limit.hard()) };
        setrlimit(resource, limits).during("set limits")?;
    }
    Ok(())
}

/// Gives the standard streams that are pipes to the run's user: /dev/stdout and its like are opened anew.
fn give_pipes(user: u32) {
    use rustix::fs::{FileType, Gid, Uid, fchown, fstat};
    let give = |stream: std::os::fd::BorrowedFd<'_>| {
        if fstat(stream).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo) {
            let (owner, group) = (Uid::from_raw(user), Gid::from_raw(user));
            // Without it, everything but opening it by name works.
            let _best_effort = fchown(stream, Some(owner), Some(group));
        }
    };
    give(rustix::stdio::stdin());
    give(rustix::stdio::stdout());
    give(rustix::stdio::stderr());
}

/// Enters the mapped user namespace, if the run has one, as its root; leaves all groups where it may.
fn become_user(inherited: &Inherited) -> Result<(), Failure> {
    use rustix::process::{Gid, Uid};
    let Some(user_namespace) = &inherited.user_namespace else { return Ok(()) };
    rustix::thread::move_into_link_name_space(
        std::os::fd::AsFd::as_fd(user_namespace),
        Some(LinkNameSpaceType::User),
    )
    .during("enter the user namespace")?;
    let (user, group) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).during("leave all groups")?;
    rustix::thread::set_thread_res_gid(group, group, group).during("change the group")?;
    rustix::thread::set_thread_res_uid(user, user, user).during("change the user")
}

pub(super) fn drop_privileges() -> Result<(), Failure> {
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // A capability that this kernel does not know.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(Failure::new("drop capabilities", error)),
        }
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).during("drop capabilities")?;
    rustix::thread::set_no_new_privs(true).during("refuse new privileges")
}
