//! The Debian base: exactly the packages of a lock, unpacked and configured without the network.

pub(crate) mod apt;

use std::path::Path;

use super::BuildError;

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::Io { action, path, source }
}
