//! Whether the copies in a farm's pool are what their names say.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use infradev_store::ObjectId;
use rayon::prelude::*;
use rustix::fs::{Mode, OFlags};

use super::{metadata_of, tag};
use crate::scan::Owners;

/// A copy in the pool that is not what its name says, or that could not be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarmFinding {
    /// Its path below the pool.
    pub name: String,
    /// What is wrong with it.
    pub detail: String,
    /// Whether it could be checked.
    pub checked: bool,
}

/// Compares every copy in `pool` with its name: content, mode, owner, time and attributes.
///
/// Returns how many there are, and those that are wrong. An absent pool has none.
pub fn check_farm_pool(pool: &Path) -> io::Result<(u64, Vec<FarmFinding>)> {
    let mut names = vec![];
    let directories = match fs::read_dir(pool) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, vec![])),
        other => other?,
    };
    for directory in directories {
        let directory = directory?;
        if directory.file_type()?.is_dir() {
            for file in fs::read_dir(directory.path())? {
                let (directory, file) = (directory.file_name(), file?.file_name());
                names.push(format!("{}/{}", directory.to_string_lossy(), file.to_string_lossy()));
            }
        }
    }
    names.sort();
    // As it was written by whoever has it.
    let owners = if fs::metadata(pool)?.uid() == 0 { Owners::Keep } else { Owners::Root };
    let findings: Vec<FarmFinding> = names.par_iter().filter_map(|name| check(pool, owners, name)).collect();
    Ok((names.len() as u64, findings))
}

fn check(pool: &Path, owners: Owners, name: &str) -> Option<FarmFinding> {
    let finding = |detail: String, checked| Some(FarmFinding { name: name.to_owned(), detail, checked });
    let mut parts = name.split('.');
    let object = parts.next().and_then(|object| object.replacen('/', "", 1).parse::<ObjectId>().ok());
    let (Some(object), Some(named)) = (object, parts.next()) else {
        return finding("no name of a copy".to_owned(), true);
    };
    match look(&pool.join(name), owners) {
        Ok((found, _)) if found != object => finding(format!("its bytes hash to {found}"), true),
        Ok((_, tag)) if tag != named => {
            finding("its mode, owner, time or attributes are not those of its name".to_owned(), true)
        }
        Ok(_) => None,
        // Removed by a collection since it was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => finding(error.to_string(), false),
    }
}

fn look(path: &Path, owners: Owners) -> io::Result<(ObjectId, String)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    let tag = tag(owners, &metadata_of(file.as_fd(), &stat)?);
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::from(file))?;
    Ok((hasher.finalize().into(), tag))
}
