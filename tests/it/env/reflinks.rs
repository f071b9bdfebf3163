//! A farm where files can share blocks: on xfs and btrfs, a copy in the pool costs none.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use super::conformance::{LIST, build_case};
use crate::support::{Need, Place, TASK, User, lacks};

/// Large enough for xfs, which wants 300 MB.
const DISK: u64 = 320 << 20;

#[test]
fn privileged_copies_of_a_farm_share_blocks_on_xfs() {
    check("xfs", "mkfs.xfs");
}

#[test]
fn privileged_copies_of_a_farm_share_blocks_on_btrfs() {
    check("btrfs", "mkfs.btrfs");
}

fn check(kind: &str, mkfs: &'static str) {
    if lacks(Need::Root) || lacks(Need::Program(mkfs)) || lacks(Need::Program("filefrag")) {
        return;
    }
    let place = Place::new(User::Caller);
    if !mount_disk(&place, kind, mkfs) {
        return;
    }
    build_case(&place);
    let listed =
        |back_end| place.ok(&["--back-end", back_end, "env", "exec", TASK, "--", "python", "-c", LIST]);
    // The first use of an object takes it; the second wants another mode, so its farm needs a copy.
    let farm = listed("farm");
    assert!(farm == listed("copy"), "a farm on {kind} shows something else than a copy");
    let pool = || files(&place.store().join("farm/pool"));
    let before = pool();
    place.edit("demo/project.toml", "'case/big', 'x' * (2 << 20))", "'case/big', 'x' * (2 << 20), 0o600)");
    place.ok(&["build", TASK]);
    assert!(farm != listed("farm"), "another mode");
    let big: Vec<_> =
        pool().into_iter().filter(|path| !before.contains(path) && size(path) == 2 << 20).collect();
    let [copy] = big.as_slice() else { panic!("{big:?} are new in the pool") };
    let extents = Command::new("filefrag").arg("-v").arg(copy).output().expect("filefrag runs");
    let extents = String::from_utf8_lossy(&extents.stdout).into_owned();
    assert!(extents.contains("shared"), "on {kind}: {extents}");
    place.assert_whole();
}

/// Mounts an empty file system at the place's store; says so if this kernel does not have it.
fn mount_disk(place: &Place, kind: &str, mkfs: &str) -> bool {
    let (image, store) = (place.path("disk"), place.store());
    fs::File::create(&image).and_then(|file| file.set_len(DISK)).expect("room");
    let made = Command::new(mkfs).arg("-q").arg(&image).output().expect("it starts");
    assert!(made.status.success(), "{mkfs}: {}", String::from_utf8_lossy(&made.stderr));
    fs::create_dir(&store).expect("an own directory");
    let mounted = Command::new("mount").args(["-t", kind, "-o", "loop"]).args([&image, &store]).output();
    let mounted = mounted.expect("it starts");
    if !mounted.status.success() {
        #[expect(clippy::print_stderr, reason = "what is not checked is said")]
        {
            eprintln!("skipped: {kind}: {}", String::from_utf8_lossy(&mounted.stderr).trim());
        }
    }
    mounted.status.success()
}

fn files(root: &Path) -> Vec<std::path::PathBuf> {
    crate::support::walk(root)
        .into_iter()
        .filter(|(_, seen)| seen.kind == "file")
        .map(|(path, _)| root.join(path))
        .collect()
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).expect("a file of the pool").size()
}
