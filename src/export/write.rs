//! Carrying an export out.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use infradev_layers::{Compression, farm_owners, write_copy};
use infradev_store::{Lease, Store};
use serde::Serialize;

use super::{ExportPlan, Exported, Format, Place, Room, bundle, opener, place, room, squashfs};
use crate::env::back_end::BackEnd;
use crate::env::image::StackError;
use crate::env::packs::{self, Needs};
use crate::error::{CommandError, CommandResult};
use crate::share::dir::DirRemote;
use crate::share::docker::DockerArchive;
use crate::share::push::{PushOptions, push};
use crate::share::tag_of;
use crate::ui::{Ui, bytes};

/// What an export did, or would do.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ExportDone {
    #[serde(flatten)]
    pub(crate) plan: ExportPlan,
    /// Where it is.
    pub(crate) to: String,
    /// Bytes of disk that the target's file system needs at most.
    pub(crate) peak_disk: u64,
    /// Whether nothing was written.
    pub(crate) dry_run: bool,
    /// Bytes on disk that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// How to use it.
    pub(crate) hint: String,
}

/// How an export is written.
#[derive(Debug, Clone)]
pub(crate) struct Options<'a> {
    pub(crate) format: Format,
    pub(crate) compression: Compression,
    /// What a bundle runs.
    pub(crate) command: &'a [String],
    pub(crate) force: bool,
    pub(crate) dry_run: bool,
}

/// Writes `exported` to `to`, or says what that would do.
pub(crate) fn write(
    store: &Store,
    lease: &Lease,
    exported: &Exported,
    to: &Path,
    options: &Options<'_>,
    ui: &Ui,
) -> CommandResult<ExportDone> {
    let (parent, name) = place::parts(to)?;
    let to = parent.join(name);
    place::check(&to, options.format, options.force)?;
    if options.format == Format::Squashfs {
        squashfs::check()?;
    }
    let reflinks = matches!(options.format, Format::Rootfs | Format::Bundle)
        && room::shares_blocks(store, &exported.merged, &parent);
    let plan = exported.plan(store, options.format, reflinks)?;
    let room = Room::look(store, &parent, plan.written, plan.store)?;
    ui.note(plan.sentence(&to, &room));
    room.ensure(&parent)?;
    let mut done = ExportDone {
        plan,
        to: to.display().to_string(),
        peak_disk: room.needed,
        dry_run: options.dry_run,
        bytes: None,
        hint: hint(options.format, &to, &tag_of(&exported.built.task, &exported.built.variant)),
    };
    if options.dry_run {
        return Ok(done);
    }
    let place = Place::prepare(&to)?;
    let label = format!("export {}", exported.built.name());
    ui.started(&label);
    let written = write_content(store, lease, exported, &place, options, ui)
        .and_then(|remark| place.publish(options.force).map(|()| remark));
    let size = written.as_ref().map_or(0, |_| disk_bytes(&to));
    ui.finished(&label, if written.is_ok() { "written" } else { "failed" }, &bytes(size));
    if let Some(remark) = written? {
        done.hint = remark;
    }
    done.bytes = Some(size);
    Ok(done)
}

/// Writes the new content of `place`; returns a better hint than the format's, if there is one.
fn write_content(
    store: &Store,
    lease: &Lease,
    exported: &Exported,
    place: &Place,
    options: &Options<'_>,
    ui: &Ui,
) -> CommandResult<Option<String>> {
    let new = place.new_content();
    let open = opener(store, lease);
    let total = Cell::new(0);
    let progress = |count: u64| {
        total.set(total.get() + count);
        ui.moving("export", || format!("{} read", bytes(total.get())));
    };
    match options.format {
        Format::Oci => {
            let tag = tag_of(&exported.built.task, &exported.built.variant);
            // One image, so that tools which are given no tag take it.
            let how = PushOptions { compression: options.compression, records: false };
            push(store, lease, &exported.built, &DirRemote::new(&new), &tag, how, ui)?;
            // Of the layout's own making, and of no use to its readers.
            for lock in ["index.lock", "writers.lock"] {
                let _there_may_be_none = fs::remove_file(new.join(lock));
            }
            Ok(None)
        }
        Format::DockerArchive => {
            let file = File::create(&new).map_err(|error| CommandError::file("write", &new, &error))?;
            let mut out = Counted { out: io::BufWriter::with_capacity(1 << 20, file), progress: &progress };
            let done = DockerArchive::new(&exported.built, &exported.trees)?.write(&open, &mut out)?;
            Ok(Some(format!("`podman load -i FILE` calls it {}; its id is {}", done.name, done.image_id)))
        }
        Format::Rootfs => copy(store, lease, exported, &new).map(|()| None),
        Format::Bundle => {
            fs::create_dir(&new).map_err(|error| CommandError::file("create", &new, &error))?;
            copy(store, lease, exported, &new.join("rootfs"))?;
            bundle::write_config(&new, &exported.built, options.command).map(|()| None)
        }
        Format::Squashfs => {
            squashfs::write(&exported.merged, options.compression, &open, place, &progress).map(|()| None)
        }
    }
}

fn copy(store: &Store, lease: &Lease, exported: &Exported, out: &Path) -> CommandResult {
    packs::ready(store, BackEnd::Copy, Needs::Objects(&exported.merged.references()), lease)?;
    write_copy(&exported.merged, &store.object_directories(), farm_owners(), out)
        .map_err(|error| StackError::from(error).into())
        .map(drop)
}

fn hint(format: Format, to: &Path, tag: &str) -> String {
    let to = to.display();
    match format {
        Format::Oci => {
            format!(
                "`skopeo inspect oci:{to}:{tag}`, `umoci unpack --image {to}:{tag} DIR`, `podman pull oci:{to}`"
            )
        }
        Format::DockerArchive => format!("`podman load -i {to}`, `skopeo copy docker-archive:{to} …`"),
        Format::Rootfs => format!("`chroot {to} /opt/env/bin/python`"),
        Format::Squashfs => {
            format!("`enroot create {to}`, `apptainer exec {to} …`, `mount -t squashfs {to} …`")
        }
        Format::Bundle => format!("`crun run --bundle {to} NAME`"),
    }
}

/// Bytes on disk of a file or directory, files with several names once.
fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = fs::symlink_metadata(path) else { return 0 };
    let below = if found.is_dir() { fs::read_dir(path).ok() } else { None };
    let names = if found.is_dir() { 1 } else { found.nlink().max(1) };
    let inner: u64 = below.into_iter().flatten().flatten().map(|entry| disk_bytes(&entry.path())).sum();
    found.blocks() * 512 / names + inner
}

/// Counts what is written.
pub(super) struct Counted<'a, W> {
    pub(super) out: W,
    pub(super) progress: &'a dyn Fn(u64),
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        (self.progress)(count as u64);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
