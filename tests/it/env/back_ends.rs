//! The back ends show one tree: root mounts an EROFS image, an ordinary user a tree of stubs.

use crate::support::{Need, Place, TASK, User, lacks};

/// Lists every path with everything that must be identical, from inside: path, kind, mode, size, time,
/// attributes, link target, content, hardlink groups.
const LIST: &str = r#"
import hashlib, os, stat
rows, groups = {}, {}
for top in ('/opt/env', '/workspace'):
    for directory, names, files in os.walk(top):
        for path in [directory] + [os.path.join(directory, name) for name in names + files]:
            info = os.lstat(path)
            kind = stat.S_IFMT(info.st_mode)
            row = rows[path] = [oct(info.st_mode), info.st_size if kind != stat.S_IFDIR else 0, int(info.st_mtime)]
            if kind == stat.S_IFLNK:
                row.append(os.readlink(path))
            if kind == stat.S_IFREG:
                row.append(hashlib.sha256(open(path, 'rb').read()).hexdigest())
                row.append(sorted((x, os.getxattr(path, x)) for x in os.listxattr(path) if x.startswith('user.')))
                groups.setdefault((info.st_dev, info.st_ino), set()).add(path)
for group in groups.values():
    for path in group:
        rows[path].append(sorted(group))
for path in sorted(rows):
    print(path, rows[path])
"#;

#[test]
fn privileged_erofs_and_stubs_look_alike() {
    if lacks(Need::Root) || lacks(Need::UserNamespaces) {
        return;
    }
    let list = |user: User| {
        let place = Place::new(user);
        place.ok(&["build", TASK]);
        let image = if user == User::Caller { "images" } else { "stubs" };
        assert!(
            place.listing(image).len() > usize::from(user == User::Ordinary),
            "{image} is what is mounted"
        );
        let listed = place.ok(&["env", "exec", TASK, "--", "python", "-c", LIST]);
        let mut layers = place.listing("layers");
        layers.sort();
        (listed, layers)
    };
    let (by_root, root_layers) = list(User::Caller);
    let (by_user, user_layers) = list(User::Ordinary);
    assert!(by_root.lines().count() > 30, "{by_root}");
    let only = |left: &str, right: &str| -> Vec<String> {
        left.lines().filter(|line| !right.lines().any(|other| other == *line)).map(str::to_owned).collect()
    };
    assert_eq!((only(&by_root, &by_user), only(&by_user, &by_root)), (vec![], vec![]));
    // One wheel, one commit, one step: one LayerId, whoever builds it and wherever.
    assert_eq!(root_layers, user_layers);
}
