//! `merge` shows what kernel overlayfs shows, over random stacks of real directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use infradev_layers::{Owners, ScanOptions, Tree, merge, scan};

use super::{as_walked, scratch};
use crate::support::{Need, lacks, rounds, walk};

/// A small generator of numbers (xorshift64*), so that a failure names its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Fills `directory` with what an upper may hold, over few names so that layers collide in every way.
fn fill(random: &mut Random, directory: &Path, depth: u32, files: &mut Vec<PathBuf>) {
    for name in ["a", "b", "c.d", "e"] {
        let path = directory.join(name);
        match random.below(12) {
            0..=2 if depth < 3 => {
                fs::create_dir(&path).expect("an own directory");
                if random.below(3) == 0 {
                    let flags = rustix::fs::XattrFlags::empty();
                    rustix::fs::setxattr(&path, "trusted.overlay.opaque", b"y", flags).expect("root may");
                }
                fill(random, &path, depth + 1, files);
                decorate(random, &path);
                fs::set_permissions(
                    &path,
                    fs::Permissions::from_mode(*random.choose(&[0o755, 0o700, 0o1777])),
                )
                .expect("an own directory");
            }
            3..=5 => {
                fs::write(&path, random.choose(&["", "one", "two", "a longer content"]))
                    .expect("an own file");
                decorate(random, &path);
                fs::set_permissions(
                    &path,
                    fs::Permissions::from_mode(*random.choose(&[0o644, 0o755, 0o600])),
                )
                .expect("an own file");
                files.push(path.clone());
            }
            6 => symlink(random.choose(&["a", "../b", "/nowhere"]), &path).expect("an own link"),
            7 if !files.is_empty() => fs::hard_link(random.choose(files), &path).expect("an own link"),
            8 | 9 => whiteout(&path),
            _ => {}
        }
        let time = random.below(1000) as i64;
        let _may_be_absent = set_time(&path, 1_000_000_000 + time);
    }
}

fn decorate(random: &mut Random, path: &Path) {
    if random.below(4) == 0 {
        let value = [random.below(256) as u8];
        rustix::fs::setxattr(path, "user.note", &value, rustix::fs::XattrFlags::empty())
            .expect("an own file");
    }
}

fn whiteout(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).expect("root may");
}

fn set_time(path: &Path, seconds: i64) -> rustix::io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn check(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let (directory, store) = scratch();
    let count = 2 + random.below(4);
    let mut layers: Vec<PathBuf> = vec![];
    for number in 0..count {
        let layer = directory.path().join(number.to_string());
        fs::create_dir(&layer).expect("an own directory");
        fill(&mut random, &layer, 0, &mut vec![]);
        layers.push(layer);
    }
    let lease = store.lease("test").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    let mut trees: Vec<Tree> = vec![];
    for layer in &layers {
        let below = merge(&trees);
        let options = ScanOptions { owners: Owners::Keep, latest: i64::MAX, upper_of: Some(&below) };
        trees.push(scan(layer, options, &ingest).expect("a tree").tree);
    }
    let mut ours = as_walked(&merge(&trees), &ingest);

    let merged = directory.path().join("merged");
    fs::create_dir(&merged).expect("an own directory");
    let lower: Vec<String> = layers.iter().rev().map(|layer| layer.display().to_string()).collect();
    let mount = Command::new("mount")
        .args(["-t", "overlay", "none", "-o", &format!("lowerdir={}", lower.join(":"))])
        .arg(&merged)
        .output()
        .expect("mount runs");
    assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
    let mut theirs = walk(&merged);
    let unmounted = Command::new("umount").arg(&merged).status();
    assert!(unmounted.expect("umount runs").success());

    // The root is whatever it is mounted on, and a directory's time says when its layer was written.
    for seen in [&mut ours, &mut theirs] {
        seen.remove(Path::new(""));
        seen.values_mut().filter(|seen| seen.kind == "directory").for_each(|seen| seen.mtime = 0);
        // Attributes of a copied-up directory are those of its topmost description.
    }
    for path in ours.keys().chain(theirs.keys()) {
        assert_eq!(ours.get(path), theirs.get(path), "seed {seed}: {} (ours, the kernel's)", path.display());
    }
}

#[test]
fn privileged_random_stacks_merge_as_the_kernel_merges() {
    if lacks(Need::Root) {
        return;
    }
    for seed in 0..rounds(100, 5000) as u64 {
        check(seed);
    }
}
