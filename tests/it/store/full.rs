//! A full disk: exit code 3, a clean store, and the same command completes when there is room.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::support::{Need, Place, TASK, User, lacks};

fn system(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A small ext4 at the place's store.
fn small_store(place: &Place, inodes: u32) {
    let (image, store) = (place.path("disk"), place.store());
    fs::write(&image, "").expect("an own file");
    fs::OpenOptions::new().write(true).open(&image).and_then(|file| file.set_len(24 << 20)).expect("room");
    system(
        "mkfs.ext4",
        &["-q", "-m", "0", "-b", "4096", "-N", &inodes.to_string(), &image.display().to_string()],
    );
    fs::create_dir(&store).expect("an own directory");
    system("mount", &["-o", "loop", &image.display().to_string(), &store.display().to_string()]);
    fs::remove_dir(store.join("lost+found")).expect("an own directory");
}

fn check(place: &Place, room: &str) {
    let finished = place.run(&["build", TASK]);
    if finished.status != 0 {
        assert_eq!(finished.status, 3, "with {room}: {}", finished.stderr);
        assert!(finished.stderr.contains("o space left on "), "with {room}: {}", finished.stderr);
        assert!(finished.stderr.contains("hint: free some space"), "with {room}: {}", finished.stderr);
    }
    assert_eq!(place.listing("tmp"), Vec::<String>::new(), "with {room}");
    let verified = place.run(&["verify", "--read-data"]);
    assert_eq!(verified.status, 0, "with {room}: {}{}", verified.stdout, verified.stderr);
}

#[test]
fn privileged_no_bytes_left() {
    if lacks(Need::Root) || lacks(Need::Program("mkfs.ext4")) {
        return;
    }
    let place = Place::new(User::Caller);
    small_store(&place, 4096);
    // The store itself needs some room; then ever less of it is left for the build.
    place.ok(&["gc", "--dry-run"]);
    let ballast = place.store().join("caches/ballast");
    for kilobytes in [0, 8, 40, 72, 120, 200, 400] {
        write_until(&ballast, kilobytes << 10);
        check(&place, &format!("{kilobytes} kB"));
        fs::remove_file(&ballast).expect("an own file");
    }
    place.ok(&["build", TASK]);
    assert_eq!(place.sh("tool"), "tool ran\n");
    place.assert_whole();
}

#[test]
fn privileged_no_inodes_left() {
    if lacks(Need::Root) || lacks(Need::Program("mkfs.ext4")) {
        return;
    }
    let place = Place::new(User::Caller);
    small_store(&place, 700);
    place.ok(&["gc", "--dry-run"]);
    let ballast = place.store().join("caches/ballast");
    for inodes in [0, 3, 9, 20, 45] {
        fs::create_dir(&ballast).expect("an own directory");
        fill(&ballast, inodes);
        check(&place, &format!("{inodes} inodes"));
        fs::remove_dir_all(&ballast).expect("an own directory");
    }
    place.ok(&["build", TASK]);
    place.assert_whole();
}

/// Fills the disk until `left` bytes are free.
pub(super) fn write_until(path: &Path, left: u64) {
    let mut file = fs::File::create(path).expect("an own file");
    let free =
        || rustix::fs::statfs(path).map(|statfs| statfs.f_bavail * statfs.f_bsize as u64).expect("a disk");
    while free() > left {
        let step = (free() - left).min(1 << 20) as usize;
        if file.write_all(&vec![1; step]).and_then(|()| file.sync_all()).is_err() {
            return;
        }
    }
}

pub(super) fn fill(directory: &Path, left: u64) {
    for number in 0.. {
        let free = rustix::fs::statfs(directory).expect("a disk").f_ffree;
        if free <= left || fs::write(directory.join(number.to_string()), "").is_err() {
            return;
        }
    }
}
