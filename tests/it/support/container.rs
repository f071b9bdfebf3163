//! Places like the containers of pipelines, made with util-linux alone.

use std::fs;
use std::process::Command;

use super::Place;

/// What the shell of [`in_own_root`] may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Powers {
    /// Everything that root may.
    All,
    /// It is root of a user namespace that may have no other below it, and has no capabilities.
    None,
}

/// The status of a shell that could not give up its powers.
pub(crate) const STILL_POWERFUL: i32 = 99;

/// Returns a command that runs `script` in a root directory of its own, in which `infradev` uses the place's store.
/// What it writes outside of the place is lost at its end. Needs root.
pub(crate) fn in_own_root(place: &Place, powers: Powers, script: &str) -> Command {
    let root = place.path("");
    let root = root.display();
    let inside =
        format!("set -eu; cd /; infradev() {{ \"{}\" \"$@\"; }}\n{script}\n", place.program().display());
    let file = place.path("script");
    fs::write(&file, inside).expect("an own directory");
    let file = file.display();
    let start = match powers {
        Powers::All => format!("exec chroot root sh {file}"),
        Powers::None => format!(
            "exec unshare --user --map-root-user chroot root sh -c 'echo 0 >/proc/sys/user/max_user_namespaces || \
             exit {STILL_POWERFUL}; exec setpriv --inh-caps=-all --bounding-set=-all -- sh {file}'"
        ),
    };
    let outside = format!(
        "set -eu; cd {root}; mkdir -p upper root; mount -t tmpfs none upper; mkdir upper/u upper/w; \
         mount -t overlay none -o lowerdir=/,upperdir=upper/u,workdir=upper/w root; \
         for d in var/tmp dev proc; do mount --rbind /$d root/$d; done; \
         rm -rf root/opt/env root/workspace; {start}"
    );
    let mut command = place.tool("unshare");
    command.args(["--mount", "sh", "-c", &outside]);
    command
}
