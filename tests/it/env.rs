//! Environments: commands in sandboxes, mounts that last, and what is left behind (nothing).

mod conformance;
mod crowd;
mod exec;
mod named;
mod reflinks;
mod sandbox;
mod shared;
mod source;

use crate::support::{Need, Place, TASK, User, lacks};

/// Runs a check over a built task, as the caller and as an ordinary user.
fn for_each_user(check: impl Fn(&Place)) {
    for user in [User::Caller, User::Ordinary] {
        let need = if user == User::Caller { Need::Sandbox } else { Need::UserNamespaces };
        if lacks(need) {
            continue;
        }
        let place = Place::new(user);
        place.ok(&["build", TASK]);
        check(&place);
    }
}
