//! Locks of Debian bases: apt decides in a directory of its own, and nothing is installed.

use std::path::Path;

use infradev_recipes::BaseLock;

use super::{LockError, target};
use crate::build::BuildError;
use crate::build::base::apt::Apt;
use crate::session::Session;

/// What every base holds besides the packages that a recipe asks for: Debian's minimal system. A new system has
/// `/bin` and the like in `/usr` from the start; without the second pattern apt would choose the tool that moves
/// them there, and its interpreter. Patterns may match nothing.
const MINIMAL: [&str; 2] = ["?or(?essential, ?priority(required))", "?exact-name(usr-is-merged)"];

/// Resolves Debian bases.
pub(super) struct BaseResolver<'a> {
    session: &'a Session,
    directory: &'a Path,
}

impl<'a> BaseResolver<'a> {
    /// Makes ready to resolve in `directory`, which is empty.
    pub(super) fn new(session: &'a Session, directory: &'a Path) -> Self {
        Self { session, directory }
    }

    /// Chooses every package of `suite` that `requested` needs.
    pub(super) fn resolve(&self, suite: &str, requested: &[String]) -> Result<BaseLock, LockError> {
        let architecture = target::architecture();
        let apt = Apt::update(self.session, self.directory, suite, architecture)?;
        let mut wanted: Vec<String> = MINIMAL.map(str::to_owned).to_vec();
        wanted.extend_from_slice(requested);
        let packages = apt.select(&wanted)?;
        if packages.is_empty() {
            let detail = format!("it chose no package for {suite}");
            return Err(BuildError::Tool { tool: "apt-get".to_owned(), detail, hint: None }.into());
        }
        Ok(BaseLock::new(suite, architecture, requested, packages))
    }
}
