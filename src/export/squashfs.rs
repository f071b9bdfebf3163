//! The whole tree as one squashfs, by the system's own tool: it reads an archive that is written into its input, so
//! there is no copy of the tree on the way.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use infradev_layers::{BlobError, Compression, Tree, write_plain_archive};
use infradev_store::ObjectId;

use super::Place;
use crate::build::BUILD_MTIME;
use crate::error::{CommandError, CommandResult, Kind};
use crate::share::ShareError;

/// Fast, and within a few percent of the highest level: measured in `docs/decisions/0030`.
const ZSTD_LEVEL: &str = "6";

/// Makes sure that the tool is there.
pub(super) fn check() -> CommandResult {
    match Command::new("mksquashfs").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(CommandError::new(Kind::Infrastructure, format!("mksquashfs does not run: {error}"))
                .hint("install squashfs-tools 4.5 or newer, or choose another --format"))
        }
    }
}

/// Writes `tree` as a squashfs.
pub(super) fn write(
    tree: &Tree,
    compression: Compression,
    open: &dyn Fn(&ObjectId) -> io::Result<File>,
    place: &Place,
    progress: &dyn Fn(u64),
) -> CommandResult {
    let (out, log) = (place.new_content(), place.log());
    let failed = |path: &Path, error: io::Error| CommandError::file("write", path, &error);
    let talk = File::create(&log).map_err(|error| failed(&log, error))?;
    let also = talk.try_clone().map_err(|error| failed(&log, error))?;
    let mut tool = Command::new("mksquashfs");
    // Not by its name `sqfstar`, which in version 4.5 takes no level of compression.
    tool.arg("-").arg(&out).args(["-tar", "-quiet", "-no-progress", "-exit-on-error", "-reproducible"]);
    let time = BUILD_MTIME.to_string();
    // An archive says nothing of the root.
    tool.args(["-mkfs-time", &time, "-root-time", &time, "-root-mode", "0755"]);
    tool.args(["-root-uid", "0", "-root-gid", "0", "-comp", compression.word()]);
    if compression == Compression::Zstd {
        tool.args(["-Xcompression-level", ZSTD_LEVEL]);
    }
    tool.stdin(Stdio::piped()).stdout(talk).stderr(also);
    let mut child =
        tool.spawn().map_err(|error| CommandError::file("run", Path::new("mksquashfs"), &error))?;
    let input = child.stdin.take().expect("it was asked for");
    let mut input = super::write::Counted { out: io::BufWriter::with_capacity(1 << 20, input), progress };
    let written = write_plain_archive(tree, open, &mut input);
    drop(input);
    let status = child.wait().map_err(|error| CommandError::file("run", Path::new("mksquashfs"), &error))?;
    match written {
        // It ended early, and says why.
        Ok(_) | Err(BlobError::Write(_)) if !status.success() => {
            let said = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).trim().to_owned();
            Err(CommandError::new(Kind::Infrastructure, format!("mksquashfs failed ({status}): {said}")))
        }
        Err(error) => Err(ShareError::from(error).into()),
        Ok(_) => Ok(()),
    }
}
