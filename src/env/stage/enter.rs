//! Entering the namespaces of a holder, and running a command there.

use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use super::attend::Attendant;
use super::init::{NOT_EXECUTABLE, NOT_FOUND, drop_privileges};
use super::{FAILED, Failure, While, namespace};

/// Arguments: the holder's process 1, the directory, the command. The environment is the command's already.
pub(super) fn enter(arguments: &[String]) -> i32 {
    match join(arguments) {
        Ok(status) => status,
        Err(Failure { action, cause }) => {
            // No pipe back here: the parent passes the status on, and a person reads this.
            let _nobody_reads =
                rustix::io::write(std::io::stderr(), format!("error: cannot {action}: {cause}\n").as_bytes());
            FAILED
        }
    }
}

fn join(arguments: &[String]) -> Result<i32, Failure> {
    let [pid, directory, program, rest @ ..] = arguments else {
        return Err(Failure::new("read the command line", "it is too short"));
    };
    let parent = rustix::process::getppid();
    let pid = pid
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| Failure::new("find the holder", "no process id"))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).during("find the holder")?;
    let mut kinds = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    let own = std::fs::read_link("/proc/self/ns/user").during("look at namespaces")?;
    let theirs =
        std::fs::read_link(format!("/proc/{}/ns/user", pid.as_raw_nonzero())).during("look at namespaces")?;
    if own != theirs {
        // Entering one's own user namespace is an error (setns(2), EINVAL).
        kinds |= ThreadNameSpaceType::USER;
    }
    move_into_thread_name_spaces(std::os::fd::AsFd::as_fd(&process), kinds).during("enter the namespaces")?;
    rustix::process::chdir(Path::new(directory)).during(&format!("change to the directory {directory}"))?;
    drop_privileges()?;
    const FOLLOW: &str = "follow the parent process";
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).during(FOLLOW)?;
    if rustix::process::getppid() != parent {
        return Err(Failure::new(FOLLOW, "it has ended"));
    }
    namespace::close_on_exec().during("close descriptors")?;
    let attendant = Attendant::new(rustix::termios::isatty(std::io::stdin())).during("handle signals")?;
    match Command::new(program).args(rest).spawn() {
        Ok(child) => Ok(attendant.wait(Pid::from_child(&child))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(NOT_FOUND),
        Err(_) => Ok(NOT_EXECUTABLE),
    }
}
