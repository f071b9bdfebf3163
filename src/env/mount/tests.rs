//! The ways of older kernels, on whatever kernel this is.

use infradev_layers::{Content, Kind, Metadata, TreeBuilder, merge};
use infradev_store::{Access, ObjectId, Store, object_name, remove_tree};

use super::*;
use crate::env::image::{Sources, write_metadata};

/// A mount that ends with the test.
struct Attached<'a>(&'a Path);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let _best_effort = unmount(self.0, UnmountFlags::DETACH);
    }
}

fn ground(back_end: BackEnd) -> (tempfile::TempDir, Overlay, PathBuf) {
    // A real disk: an overlay cannot have its upper on every tmpfs.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let [objects, stub_pool, farm_pool, metadata, upper, work, place] =
        ["objects", "stubs", "farm", "metadata", "upper", "work", "place"]
            .map(|name| directory.path().join(name));
    let object = objects.join(object_name(&ObjectId::of(b"content")));
    for path in [object.parent().unwrap(), &upper, &work, &place] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(&object, "content").unwrap();
    let mut builder = TreeBuilder::new();
    let content = Content::Object(ObjectId::of(b"content"), 7);
    let file = Kind::File { metadata: Metadata::new(0o640, 9), content };
    builder.add("directory/file".parse().unwrap(), file).unwrap();
    let tree = merge([&builder.finish().unwrap()]);
    write_metadata(
        &tree,
        back_end,
        &Sources {
            objects: vec![objects.clone()],
            stub_pool,
            farm_pool,
            disk: infradev_store::Disk::default(),
        },
        &metadata,
    )
    .unwrap();
    let overlay = Overlay {
        back_end,
        metadata,
        objects: vec![objects],
        packs: vec![],
        upper: Upper::on_disk(upper, work),
    };
    (directory, overlay, place)
}

fn skip() -> bool {
    let skip = !rustix::process::geteuid().is_root();
    if skip {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: mounts outside a namespace need root");
        }
    }
    skip
}

/// Reads and changes what is mounted at `place`.
fn assert_usable(place: &Path) {
    let file = place.join("directory/file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    fs::write(&file, "changed").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "changed");
}

#[test]
fn privileged_an_image_on_a_loop_device_attached_and_by_name() {
    if skip() {
        return;
    }
    let (_directory, overlay, place) = ground(BackEnd::Erofs);
    let Ok((device, kept)) = namespace::loop_device(&overlay.metadata) else {
        return;
    };
    let image = erofs_from(&device, &overlay.metadata).unwrap();
    drop(kept);
    attach(&image, &place).unwrap();
    let data = vec![open_path(&overlay.objects[0]).unwrap()];
    let (upper, work) = (open_path(&overlay.upper.upper).unwrap(), open_path(&overlay.upper.work).unwrap());
    let layers = Layers { lower: image.as_fd(), data, upper, work };
    let mounted = layers.mount_by_name(FOLLOWING);
    unmount(&place, UnmountFlags::DETACH).unwrap();
    attach(&mounted.unwrap(), &place).unwrap();
    let _attached = Attached(&place);
    assert_usable(&place);
    drop(layers);
    drop(image);
    // The device goes with the mount.
    let _attached = unmount(&place, UnmountFlags::DETACH);
}

#[test]
fn privileged_a_farm_by_name_with_either_kind_of_marks() {
    if skip() {
        return;
    }
    for options in [USER_ATTRIBUTES, SELF_CONTAINED] {
        let (directory, overlay, place) = ground(BackEnd::Farm);
        let lower = open_path(&overlay.metadata).unwrap();
        let (upper, work) =
            (open_path(&overlay.upper.upper).unwrap(), open_path(&overlay.upper.work).unwrap());
        let layers = Layers { lower: lower.as_fd(), data: vec![], upper, work };
        attach(&layers.mount_by_name(options).unwrap(), &place).unwrap();
        let attached = Attached(&place);
        assert_usable(&place);
        assert_eq!(fs::read_to_string(overlay.metadata.join("directory/file")).unwrap(), "content");
        drop(attached);
        remove_tree(&directory.path().join("work")).unwrap();
    }
}

#[test]
fn privileged_a_fault_in_a_pack_reads_one_block() {
    if skip() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = Store::open(&directory.path().join("store"), Access::Write).unwrap();
    let lease = store.lease("mount").unwrap();
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    mount_pack(&store.sample_pack(&lease).unwrap(), &place).unwrap();
    let _attached = Attached(&place);
    let device = rustix::fs::stat(&place).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/queue/read_ahead_kb")).unwrap();
    assert_eq!(setting.trim(), pack::READ_AROUND_KIB);
}
