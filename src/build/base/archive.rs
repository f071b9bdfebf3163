//! The archive of a Debian system, read into a tree that two runs of mmdebstrap agree on.

use std::io::{self, Read};

use infradev_layers::{Content, Kind, Metadata, Tree, TreeBuilder, TreePath};
use infradev_store::{Ingest, PutError};
use tar::{Archive, Entry, EntryType};

use super::BASE_MTIME;
use crate::build::BuildError;

/// Directories that stay, but whose content belongs to one machine or one run.
const EMPTIED: [&str; 12] = [
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "boot",
    "var/cache",
    "var/log",
    "var/tmp",
    "var/lib/apt/lists",
    "var/lib/systemd",
    "etc/apt/sources.list.d",
];

/// Files of one machine or one run; and such as are kept beside the files that replaced them.
const LEFT_OUT: [&str; 15] = [
    "etc/.pwd.lock",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/apt/sources.list",
    "etc/group-",
    "etc/gshadow-",
    "etc/machine-id",
    "etc/passwd-",
    "etc/shadow-",
    "etc/subgid-",
    "etc/subuid-",
    "var/lib/apt/extended_states",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/status-old",
];

/// Files that mmdebstrap copies from the machine, as every environment has them.
const WRITTEN: [(&str, &str); 3] = [
    ("etc/hostname", "infradev\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"),
    ("etc/resolv.conf", ""),
];

/// Directories that every environment has, with their modes.
const DIRECTORIES: [(&str, u32); 7] = [
    ("dev", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("workspace", 0o755),
];

/// Reads the archive; the files' bytes go to `ingest`.
///
/// The archive is of packages that Debian signed, but it is read no more trustingly than others: paths are
/// checked, nothing is followed, and devices stay out.
pub(super) fn base_tree(reader: &mut dyn Read, ingest: &Ingest<'_>) -> Result<Tree, BuildError> {
    let mut builder = TreeBuilder::new();
    let mut archive = Archive::new(reader);
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let Some(path) = place(&entry.path_bytes())? else { continue };
        let text = String::from_utf8_lossy(path.as_bytes()).into_owned();
        if is_left_out(&text) {
            continue;
        }
        if let Some(kind) = kind_of(&mut entry, ingest)? {
            builder.add(path, kind)?;
        }
    }
    for (path, text) in WRITTEN {
        let content = match text {
            "" => Content::Empty,
            text => Content::Object(ingest.put_bytes(text.as_bytes())?, text.len() as u64),
        };
        builder.add(plain(path), Kind::File { metadata: Metadata::new(0o644, BASE_MTIME), content })?;
    }
    for (path, mode) in DIRECTORIES {
        let metadata = Metadata::new(mode, BASE_MTIME);
        builder.add(plain(path), Kind::Directory { metadata, opaque: false })?;
    }
    Ok(builder.finish()?)
}

fn plain(path: &str) -> TreePath {
    path.parse().expect("a plain path")
}

fn unreadable(source: io::Error) -> BuildError {
    BuildError::Archive {
        file: "the archive of mmdebstrap".to_owned(),
        source: infradev_layers::TarError::Read(source),
    }
}

/// Returns where an entry goes; `None` for the root.
fn place(name: &[u8]) -> Result<Option<TreePath>, BuildError> {
    let name = name.strip_prefix(b"./").unwrap_or(name);
    let name = name.strip_suffix(b"/").unwrap_or(name);
    if matches!(name, b"" | b".") {
        return Ok(None);
    }
    let path = TreePath::new(name).map_err(|source| BuildError::Archive {
        file: "the archive of mmdebstrap".to_owned(),
        source: source.into(),
    })?;
    Ok(Some(path))
}

/// Whether what stands at `path` is of one machine or run, or is written here.
fn is_left_out(path: &str) -> bool {
    let below = |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    EMPTIED.iter().any(|directory| below(directory))
        || LEFT_OUT.contains(&path)
        || WRITTEN.iter().any(|(written, _)| *written == path)
        || DIRECTORIES.iter().any(|(directory, _)| *directory == path)
}

/// Returns what an entry becomes; `None` for devices and the like, which no layer holds.
fn kind_of(entry: &mut Entry<'_, impl Read>, ingest: &Ingest<'_>) -> Result<Option<Kind>, BuildError> {
    let header = entry.header();
    let owner = |id: io::Result<u64>| id.ok().and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
    let metadata = Metadata {
        uid: owner(header.uid()),
        gid: owner(header.gid()),
        ..Metadata::new(header.mode().map_err(unreadable)?, BASE_MTIME)
    };
    let target = |entry: &Entry<'_, _>| {
        let missing = || unreadable(io::Error::other("a link without a target"));
        entry.link_name_bytes().map(|target| target.into_owned()).ok_or_else(missing)
    };
    Ok(match header.entry_type() {
        EntryType::Directory => Some(Kind::Directory { metadata, opaque: false }),
        EntryType::Regular | EntryType::Continuous => {
            let (object, size) = ingest.put(entry).map_err(|error| match error {
                PutError::Read(source) => unreadable(source),
                PutError::Store(error) => error.into(),
            })?;
            let content = if size == 0 { Content::Empty } else { Content::Object(object, size) };
            Some(Kind::File { metadata, content })
        }
        EntryType::Symlink => {
            let target = target(entry)?.into();
            Some(Kind::Symlink { metadata: Metadata { mode: 0o777, ..metadata }, target })
        }
        EntryType::Link => match place(&target(entry)?)? {
            Some(first) => Some(Kind::Hardlink { first }),
            None => return Err(unreadable(io::Error::other("a hardlink to the root"))),
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_and_runs_leave_no_trace() {
        for path in [
            "dev/null",
            "var/cache/ldconfig/aux-cache",
            "var/log/apt",
            "etc/machine-id",
            "etc/resolv.conf",
            "tmp",
            "run/lock",
            "proc",
        ] {
            assert!(is_left_out(path), "{path}");
        }
        for path in [
            "var/cache",
            "var/log",
            "etc/passwd",
            "usr/lib/python3.11/__pycache__/os.pyc",
            "devices",
            "runner",
        ] {
            assert!(!is_left_out(path), "{path}");
        }
    }

    #[test]
    fn an_archive_becomes_a_tree() {
        let directory = tempfile::tempdir().unwrap();
        let store = infradev_store::Store::open(directory.path(), infradev_store::Access::Write).unwrap();
        let lease = store.lease("test").unwrap();
        let ingest = store.ingest(&lease).unwrap();
        let mut tar = tar::Builder::new(vec![]);
        let mut add = |path: &str, kind: EntryType, link: &str, content: &[u8], gid: u64| {
            let mut header = tar::Header::new_gnu();
            header.set_path(path).unwrap();
            header.set_entry_type(kind);
            header.set_mode(0o2755);
            header.set_uid(0);
            header.set_gid(gid);
            header.set_mtime(1_900_000_000);
            header.set_size(content.len() as u64);
            if !link.is_empty() {
                header.set_link_name(link).unwrap();
            }
            header.set_cksum();
            tar.append(&header, content).unwrap();
        };
        add("./", EntryType::Directory, "", b"", 0);
        add("./usr/bin/perl", EntryType::Regular, "", b"program", 42);
        add("./usr/bin/perl5", EntryType::Link, "./usr/bin/perl", b"", 0);
        add("./bin", EntryType::Symlink, "usr/bin", b"", 0);
        add("./dev/null", EntryType::Char, "", b"", 0);
        add("./etc/hostname", EntryType::Regular, "", b"me", 0);
        let bytes = tar.into_inner().unwrap();
        let tree = base_tree(&mut bytes.as_slice(), &ingest).unwrap();
        let Some(Kind::File { metadata, content }) = tree.get(&plain("usr/bin/perl")) else { panic!() };
        assert_eq!((metadata.mode, metadata.gid, metadata.mtime), (0o755, 42, BASE_MTIME));
        assert_eq!(content.size(), 7);
        assert!(matches!(tree.get(&plain("usr/bin/perl5")), Some(Kind::Hardlink { .. })));
        assert_eq!(tree.get(&plain("dev/null")), None);
        for (path, _) in DIRECTORIES {
            assert!(tree.get(&plain(path)).is_some_and(Kind::is_directory), "{path}");
        }
        let Some(Kind::File { content, .. }) = tree.get(&plain("etc/hostname")) else { panic!() };
        assert_eq!(content.size(), "infradev\n".len() as u64);
    }
}
