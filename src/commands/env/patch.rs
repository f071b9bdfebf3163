//! `env patch`: a patch applied inside a named environment.

use std::path::Path;

use super::Surroundings;
use super::exec;
use crate::error::{CommandError, CommandResult};
use crate::session::Session;

/// Applies the patch on standard input, strictly first, then with its own context, then with some fuzz, and then
/// only if all of it applies.
///
/// The tools are the environment's. git is not asked to be clever about white space: a patch is applied as it is.
pub(crate) const APPLY: &str = r#"
cat >/tmp/infradev.patch || exit 1
if command -v git >/dev/null; then
    git apply --whitespace=nowarn /tmp/infradev.patch && exit 0
    git apply --whitespace=nowarn --3way /tmp/infradev.patch && exit 0
    if [ -n "$(git ls-files --unmerged)" ]; then
        echo 'the conflicts are marked in the files' >&2
        exit 1
    fi
fi
if command -v patch >/dev/null; then
    set -- --batch --forward --fuzz=5 -p1 --no-backup-if-mismatch -i /tmp/infradev.patch
    patch "$@" --dry-run >/dev/null && exec patch "$@"
fi
exit 1
"#;

pub(super) fn patch(session: &Session, name: &str, file: &Path) -> CommandResult<u8> {
    let shown = file.display();
    if !file.is_file() {
        return Err(CommandError::usage(format!("there is no patch file {shown}")));
    }
    let input = std::fs::File::open(file)
        .map_err(|error| CommandError::usage(format!("cannot read the patch file {shown}: {error}")))?;
    if input.metadata().is_ok_and(|found| found.len() == 0) {
        return Err(CommandError::usage(format!("the patch {shown} is empty")));
    }
    let command = ["sh", "-c", APPLY].map(str::to_owned).to_vec();
    let environment = crate::env::state::Environment::open(session.store()?, name)?;
    let surroundings = Surroundings { input: Some(input), ..Surroundings::default() };
    let status = exec::in_environment(session, &environment, &surroundings, command)?;
    if status == 0 {
        session.ui.note(format!("applied {shown} in `{name}`"));
        return Ok(0);
    }
    Err(CommandError::new(
        crate::error::Kind::Failed,
        format!("the patch {shown} does not apply in `{name}`"),
    ))
}
