//! The child process of a trial: mounts an environment of one file in namespaces of its own, and uses it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::UnshareFlags;

use super::root::refused;
use super::{FAILED, Failure, Mapping, While, borrow_user_namespace, map_caller, namespace};
use crate::env::mount;
use crate::env::trial::{CONTENT, Trial};

/// Argument: the trial. Says on standard output what failed.
pub(super) fn run(arguments: &[String]) -> i32 {
    let Some(trial) = arguments.first().and_then(|text| serde_json::from_str(text).ok()) else {
        return FAILED;
    };
    match attempt(&trial) {
        Ok(()) => 0,
        Err(Failure { action, cause }) => {
            let _the_status_says_enough =
                std::io::stdout().write_all(format!("cannot {action}: {cause}\n").as_bytes());
            FAILED
        }
    }
}

fn attempt(trial: &Trial) -> Result<(), Failure> {
    let user_namespace = match trial.mapping {
        Mapping::Range(first) => Some(borrow_user_namespace(first)?),
        Mapping::Host | Mapping::Caller { .. } => None,
    };
    let mut flags = UnshareFlags::NEWNS;
    if matches!(trial.mapping, Mapping::Caller { .. }) {
        flags |= UnshareFlags::NEWUSER;
    }
    namespace::unshare(flags).during("create namespaces")?;
    map_caller(trial.mapping)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).during("separate the mounts from the host's")?;
    let owners = user_namespace.as_ref().map(AsFd::as_fd);
    mount::mount(&trial.overlay, owners, &trial.place).map_err(refused)?;

    let directory = trial.place.join("directory");
    let file = directory.join("file");
    let read = || fs::read_to_string(&file).during("read a file below the upper");
    if read()? != CONTENT {
        return Err(Failure::new("read a file below the upper", "it has another content"));
    }
    let append = || OpenOptions::new().append(true).open(&file)?.write_all(b"more");
    append().during("change a file below the upper")?;
    if read()? != format!("{CONTENT}more") {
        return Err(Failure::new("change a file below the upper", "it has another content"));
    }
    // Needs marks on the upper, which not every file system can hold.
    fs::remove_dir_all(&directory).during("remove a directory below the upper")?;
    fs::create_dir(&directory).during("replace a directory below the upper")?;
    match fs::read_dir(&directory).during("list a directory")?.next() {
        None => Ok(()),
        Some(_) => Err(Failure::new("replace a directory below the upper", "what was removed is back")),
    }
}
