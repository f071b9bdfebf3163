//! One tree, one LayerId: from a directory, from an overlay upper, in any store, by anybody.

use std::path::Path;
use std::process::Command;

use infradev_layers::{Owners, ScanOptions, Tree, TreeBuilder, WheelTarget, scan, wheel_tree};
use infradev_store::{Ingest, LayerId};

use super::scratch;
use crate::support::{Need, host_python, lacks, wheel, work_directory};

/// Makes a tree with everything that a layer can hold.
const MAKE: &str = r#"
set -eu
umask 022
mkdir -p plain/deep empty-directory private
echo content >plain/file; : >plain/empty; echo other >plain/deep/other
chmod 0755 plain/file; chmod 0700 private; echo secret >private/secret; chmod 0600 private/secret
ln -s ../plain/file private/link; ln -s /nowhere dangling
ln plain/file plain/deep/same; ln plain/file zz-same
dd if=/dev/zero of=large bs=65536 count=40 2>/dev/null
printf 'odd name' >"$(printf 'odd \303\244 name\t')"
find . -exec touch --no-dereference --date=@1234567890 {} +
"#;

fn tree_id(directory: &Path, owners: Owners, upper: bool, ingest: &Ingest<'_>) -> LayerId {
    let nothing = TreeBuilder::new().finish().expect("an empty tree");
    let options = ScanOptions { owners, latest: 1_234_567_890, upper_of: upper.then_some(&nothing) };
    let scanned = scan(directory, options, ingest).expect("a tree");
    assert!(scanned.dropped.is_empty());
    LayerId::of(&scanned.tree.encode())
}

fn shell(line: &str, directory: &Path) {
    let output = Command::new("sh").args(["-c", line]).current_dir(directory).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn privileged_a_directory_and_an_upper_are_one_layer() {
    if lacks(Need::Root) || lacks(Need::UserNamespaces) {
        return;
    }
    let (_kept, store) = scratch();
    let lease = store.lease("test").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    let place = tempfile::tempdir_in(work_directory()).expect("a directory");
    shell("mkdir -m 0755 directory lower upper work merged user-upper user-work; chmod 0755 .", place.path());
    shell(MAKE, &place.path().join("directory"));
    let id = tree_id(&place.path().join("directory"), Owners::Keep, false, &ingest);
    // Written through a real overlay: the kernel makes the upper.
    shell(
        "unshare --mount sh -euc 'mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work merged; cp -a directory/. merged/'",
        place.path(),
    );
    assert_eq!(tree_id(&place.path().join("upper"), Owners::Keep, true, &ingest), id);
    // And as an ordinary user, whose overlay keeps its marks elsewhere.
    std::fs::write(place.path().join("make"), MAKE).expect("an own file");
    shell(
        "chown 65534:65534 user-upper user-work merged && setpriv --reuid 65534 --regid 65534 --clear-groups \
         unshare --user --map-root-user --mount sh -euc 'mount -t overlay none \
         -o userxattr,lowerdir=lower,upperdir=user-upper,workdir=user-work merged; cd merged; sh ../make'",
        place.path(),
    );
    assert_eq!(tree_id(&place.path().join("user-upper"), Owners::Root, true, &ingest), id);
}

fn wheel_id(bytes: &[u8], name: &str) -> LayerId {
    let (directory, store) = scratch();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).expect("an own file");
    let lease = store.lease("test").expect("a lease");
    let ingest = store.ingest(&lease).expect("a batch");
    let target = WheelTarget { prefix: "opt/env".parse().expect("a path"), python: host_python().to_owned() };
    let tree: Tree = wheel_tree(&path, &target, &ingest).expect("a wheel");
    let layer = ingest.put_layer(&tree.encode()).expect("a layer");
    ingest.commit().expect("a commit");
    assert_eq!(Tree::decode(&store.layer(&layer).expect("it is there")).expect("a tree"), tree);
    layer
}

#[test]
fn one_wheel_is_one_layer_in_any_store() {
    let package =
        wheel("some", "1.0", &[("some/__init__.py", "x = 1\n"), ("some-1.0.data/scripts/run", "#!python\n")]);
    let first = wheel_id(&package.bytes, &package.file);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(wheel_id(&package.bytes, &package.file), first, "no time, place or order goes into it");
    let changed =
        wheel("some", "1.0", &[("some/__init__.py", "x = 2\n"), ("some-1.0.data/scripts/run", "#!python\n")]);
    assert_ne!(wheel_id(&changed.bytes, &changed.file), first);
}
