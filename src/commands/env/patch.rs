//! `env patch`: a patch applied inside a named environment.

use std::path::Path;

use super::Surroundings;
use super::exec;
use crate::error::{CommandError, CommandResult};
use crate::session::Session;

/// Applies the patch on standard input, strictly first, then with its own context, then with some fuzz.
///
/// The tools are the environment's. git is not asked to be clever about white space: a patch is applied as it is.
pub(crate) const APPLY: &str = "
cat >/tmp/infradev.patch || exit 1
if command -v git >/dev/null; then
    git apply --whitespace=nowarn /tmp/infradev.patch && exit 0
    git apply --whitespace=nowarn --3way /tmp/infradev.patch && exit 0
fi
if command -v patch >/dev/null; then
    exec patch --batch --forward --fuzz=5 -p1 -i /tmp/infradev.patch
fi
exit 1
";

pub(super) fn patch(session: &Session, name: &str, file: &Path) -> CommandResult<u8> {
    let shown = file.display();
    if !file.is_file() {
        return Err(CommandError::usage(format!("there is no patch file {shown}")));
    }
    let input = std::fs::File::open(file)
        .map_err(|error| CommandError::usage(format!("cannot read the patch file {shown}: {error}")))?;
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
