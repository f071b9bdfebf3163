//! The inside of a run: the stage that enters new namespaces, and process 1 behind it.
//!
//! Both are this program, started anew, and stay single-threaded: new user namespaces are refused to processes
//! with threads. They speak only through the notice pipe.

mod attend;
mod bare;
mod enter;
mod init;
mod root;
mod trial;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

use attend::Attendant;
use oci_spec::runtime::{LinuxNamespaceType, Process, Spec};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::UnshareFlags;

use super::launch::{BARE, INIT, JOIN, LaunchPlan, Notice, STAGE, TRIAL};
use super::namespace;
use super::plan::Mapping;

/// A failed step, in the words of [`Notice::Failed`].
struct Failure {
    action: String,
    cause: String,
}

impl Failure {
    fn new(action: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self { action: action.into(), cause: cause.to_string() }
    }
}

/// Adds what was being done to an error.
trait While<T> {
    fn during(self, action: &str) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> While<T> for Result<T, E> {
    fn during(self, action: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(action, error))
    }
}

/// The status of a run whose surroundings failed; the command's own statuses pass through.
const FAILED: i32 = 125;

/// Runs as a stage if the command line says so; returns its exit status, `None` for an ordinary command line.
///
/// Must come first in `main`, before any thread.
pub fn run_if_asked(arguments: &[String]) -> Option<i32> {
    let (word, rest) = arguments.get(1..)?.split_first()?;
    match word.as_str() {
        STAGE => Some(with_pipe(rest, stage)),
        INIT => Some(with_pipe(rest, init::init)),
        JOIN => Some(enter::enter(rest)),
        BARE => Some(bare::run(rest)),
        TRIAL => Some(trial::run(rest)),
        _ => None,
    }
}

/// The descriptors that a stage gets from its parent.
struct Inherited {
    plan: File,
    notices: OwnedFd,
    /// The user namespace to enter at last; for runs by root.
    user_namespace: Option<OwnedFd>,
}

impl Inherited {
    fn read_plan(&self) -> Result<LaunchPlan, Failure> {
        let length = self.plan.metadata().during("read the plan")?.len();
        let mut text = vec![0; length as usize];
        self.plan.read_exact_at(&mut text, 0).during("read the plan")?;
        serde_json::from_slice(&text).during("read the plan")
    }

    fn tell(&self, notice: &Notice) {
        let mut line = serde_json::to_vec(notice).expect("plain data");
        line.push(b'\n');
        // Whoever listened is gone if this fails, and this process is about to be killed.
        let _nobody_listens = rustix::io::write(&self.notices, &line);
    }
}

fn with_pipe(numbers: &[String], run: fn(&Inherited) -> Result<i32, Failure>) -> i32 {
    let descriptor =
        |at: usize| numbers.get(at).and_then(|number| number.parse().ok()).map(namespace::inherited);
    let (Some(Ok(plan)), Some(Ok(notices))) = (descriptor(0), descriptor(1)) else { return FAILED };
    let user_namespace = descriptor(2).and_then(Result::ok);
    let inherited = Inherited { plan: plan.into(), notices, user_namespace };
    run(&inherited).unwrap_or_else(|Failure { action, cause }| {
        inherited.tell(&Notice::Failed { action, cause });
        FAILED
    })
}

/// Enters the namespaces that the plan asks for, starts process 1 in them, and waits for it.
fn stage(inherited: &Inherited) -> Result<i32, Failure> {
    let plan = inherited.read_plan()?;
    die_with_parent(inherited)?;
    if plan.detached {
        rustix::process::setsid().during("leave the session")?;
    }
    let user_namespace = match plan.mapping {
        Mapping::Range(first) => Some(borrow_user_namespace(first)?),
        Mapping::Host | Mapping::Caller { .. } => None,
    };
    let mut flags = UnshareFlags::empty();
    for kind in namespaces(&plan.spec) {
        flags |= match kind {
            LinuxNamespaceType::Mount => UnshareFlags::NEWNS,
            LinuxNamespaceType::Pid => UnshareFlags::NEWPID,
            LinuxNamespaceType::Ipc => UnshareFlags::NEWIPC,
            LinuxNamespaceType::Uts => UnshareFlags::NEWUTS,
            LinuxNamespaceType::Network => UnshareFlags::NEWNET,
            // With a range, process 1 enters it at last: it needs the host's privileges to mount.
            LinuxNamespaceType::User if user_namespace.is_none() => UnshareFlags::NEWUSER,
            _ => UnshareFlags::empty(),
        };
    }
    namespace::unshare(flags).during("create namespaces")?;
    map_caller(plan.mapping)?;
    let descriptors = [
        Some(inherited.plan.as_fd()),
        Some(inherited.notices.as_fd()),
        user_namespace.as_ref().map(AsFd::as_fd),
    ];
    let mut command = Command::new("/proc/self/exe");
    command.arg(INIT);
    for fd in descriptors.into_iter().flatten() {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).during("hand over descriptors")?;
        command.arg(fd.as_raw_fd().to_string());
    }
    let from_terminal = plan.spec.process().as_ref().and_then(Process::terminal).unwrap_or(false);
    let attendant = Attendant::new(from_terminal).during("handle signals")?;
    let child = command.spawn().during("start process 1")?;
    if plan.detached {
        wait_for_release(inherited)?;
    }
    Ok(attendant.wait(Pid::from_child(&child)))
}

/// Makes the caller root of the user namespace that this process just entered, if there is one.
fn map_caller(mapping: Mapping) -> Result<(), Failure> {
    let Mapping::Caller { uid, gid } = mapping else { return Ok(()) };
    fs::write("/proc/self/setgroups", "deny").during("map user ids")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1")).during("map user ids")?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1")).during("map user ids")
}

fn namespaces(spec: &Spec) -> Vec<LinuxNamespaceType> {
    let linux = spec.linux().as_ref();
    linux
        .and_then(|linux| linux.namespaces().as_ref())
        .into_iter()
        .flatten()
        .map(|namespace| namespace.typ())
        .collect()
}

/// Asks the kernel to kill this process when its parent dies; ends it if that happened before.
fn die_with_parent(inherited: &Inherited) -> Result<(), Failure> {
    const ACTION: &str = "follow the parent process";
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).during(ACTION)?;
    // The program at the top holds the only reading end of the notice pipe; its death takes that away.
    let mut poll = [PollFd::new(&inherited.notices, PollFlags::empty())];
    rustix::event::poll(&mut poll, Some(&Timespec::default())).during(ACTION)?;
    match poll[0].revents().contains(PollFlags::ERR) {
        true => Err(Failure::new(ACTION, "it has ended")),
        false => Ok(()),
    }
}

/// Waits until the parent says that this run may outlive it, and agrees.
fn wait_for_release(inherited: &Inherited) -> Result<(), Failure> {
    const ACTION: &str = "wait for the holder to be known";
    match io::stdin().read(&mut [0]).during(ACTION)? {
        0 => Err(Failure::new(ACTION, "the parent process gave up")),
        _ => {
            rustix::process::set_parent_process_death_signal(None).during(ACTION)?;
            inherited.tell(&Notice::Detached);
            Ok(())
        }
    }
}

/// Returns a user namespace in which 0 to 65535 are the ids from `first` on.
///
/// A namespace is made by a process that enters it, so a helper does, and is ended once it is mapped and open here.
fn borrow_user_namespace(first: u32) -> Result<OwnedFd, Failure> {
    const ACTION: &str = "create a user namespace";
    let helper = namespace::sleep_in_user_namespace()
        .map_err(|error| Failure::new(ACTION, format!("{error} (user.max_user_namespaces, AppArmor)")))?;
    let process = format!("/proc/{}", helper.as_raw_nonzero());
    let row = format!("0 {first} {}", Mapping::RANGE_LENGTH);
    fs::write(format!("{process}/uid_map"), &row).during("map user ids")?;
    fs::write(format!("{process}/gid_map"), &row).during("map group ids")?;
    let namespace = File::open(format!("{process}/ns/user")).during(ACTION)?;
    let _ends_with_this_process_at_the_latest = rustix::process::kill_process(helper, Signal::KILL);
    let _nothing_to_learn = rustix::process::waitpid(Some(helper), WaitOptions::empty());
    Ok(namespace.into())
}
