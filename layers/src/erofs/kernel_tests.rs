//! What the kernel makes of an image. The mounts are attached nowhere, so nothing is left behind.
#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use infradev_store::ObjectId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::tests::{awkward, contents, image};
use super::walk::{assert_same, expected, walk};
use crate::tree::Tree;

/// Returns an attached-nowhere overlay of an image of `tree` and of the objects, or says why there is none.
fn mount(tree: &Tree, directory: &Path) -> Option<(OwnedFd, OwnedFd)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mounting an EROFS image needs root");
        return None;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|digit: char| !digit.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(15)) {
        eprintln!("skipped: detached lower mounts need Linux 6.15, this is {release}");
        return None;
    }
    let at = directory.join("image.erofs");
    fs::write(&at, image(tree)).unwrap();
    write_objects(&directory.join("objects"));
    match erofs(&at) {
        Err(Errno::NODEV) => {
            eprintln!("skipped: this kernel has no EROFS");
            None
        }
        mounted => {
            let lower = mounted.expect("the image is mounted");
            let overlay = overlay(&lower, &directory.join("objects")).expect("the overlay is mounted");
            Some((lower, overlay))
        }
    }
}

fn erofs(image: &Path) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(context.as_fd(), "ro")?;
    fsconfig_set_string(context.as_fd(), "source", image)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn overlay(lower: &OwnedFd, objects: &Path) -> rustix::io::Result<OwnedFd> {
    let objects = rustix::fs::open(objects, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "metacopy", "on")?;
    fsconfig_set_string(context.as_fd(), "redirect_dir", "on")?;
    fsconfig_set_fd(context.as_fd(), "lowerdir+", lower.as_fd())?;
    fsconfig_set_fd(context.as_fd(), "datadir+", objects.as_fd())?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Lays the contents of the test trees out as a store does.
pub(crate) fn write_objects(objects: &Path) {
    for content in contents() {
        let digits = ObjectId::of(content).to_hex();
        let at = objects.join(&digits[..2]).join(&digits[2..]);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, content).unwrap();
    }
}

/// A directory on a file system that can hold an image and an upper: not below /tmp, which may be a tmpfs.
pub(crate) fn real_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(if Path::new("/var/tmp").is_dir() { "/var/tmp" } else { "." }).unwrap()
}

fn through(mount: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/.", mount.as_raw_fd()))
}

#[test]
fn privileged_the_overlay_shows_the_tree() {
    let (tree, directory) = (awkward(), real_directory());
    let Some((_lower, overlay)) = mount(&tree, directory.path()) else { return };
    let expected = expected(&tree, None);
    assert_same(&walk(&through(&overlay)), &expected);
    assert_same(&walk(&through(&overlay)), &expected);
}

#[test]
fn privileged_the_image_alone_shows_sizes_and_zeros() {
    let directory = real_directory();
    let Some((lower, _overlay)) = mount(&awkward(), directory.path()) else { return };
    assert_eq!(fs::read(through(&lower).join("plain")).unwrap(), [0; 13]);
    assert_eq!(fs::symlink_metadata(through(&lower).join("linked/a")).unwrap().len(), 6);
    let links = std::os::unix::fs::MetadataExt::nlink(&fs::metadata(through(&lower).join("z")).unwrap());
    assert_eq!(links, 3);
}

#[test]
fn privileged_every_name_of_a_large_directory_is_found() {
    let names = |n: usize| format!("d/{}{n}", "y".repeat(n % 241));
    let tree =
        super::tests::described((0..20_000).map(|n| (names(n).into_bytes(), crate::testing::file(b"many"))));
    let directory = real_directory();
    let Some((_lower, overlay)) = mount(&tree, directory.path()) else { return };
    assert_same(&walk(&through(&overlay)), &expected(&tree, None));
    for n in 0..20_000 {
        assert!(!through(&overlay).join(format!("{}x", names(n))).exists());
    }
}
