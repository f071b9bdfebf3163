//! Environments: a merged stack, mounted with a writable upper, and commands run in it.

pub mod back_end;
pub mod capture;
pub mod holder;
pub mod image;
pub(crate) mod join;
pub mod launch;
pub mod mount;
mod namespace;
mod network;
pub(crate) mod packs;
pub mod plan;
pub mod stage;
pub mod state;
pub mod trial;

use std::sync::OnceLock;

use plan::Mapping;

/// Returns how runs of this process map user ids; looked up once.
pub fn default_mapping() -> Mapping {
    static MAPPING: OnceLock<Mapping> = OnceLock::new();
    *MAPPING.get_or_init(find_mapping)
}

fn find_mapping() -> Mapping {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // Root of a container may have no more ids than itself.
    if uid.is_root() && ["/proc/self/uid_map", "/proc/self/gid_map"].into_iter().all(has_range) {
        Mapping::Range(Mapping::RANGE)
    } else {
        Mapping::Caller { uid: uid.as_raw(), gid: gid.as_raw() }
    }
}

/// Whether the ids of [`Mapping::RANGE`] exist in this process's user namespace, by its `map` of ids
/// (user_namespaces(7): first id inside, first id outside, how many).
fn has_range(map: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(map) else { return true };
    text.lines().any(|row| {
        let mut numbers = row.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        let (wanted, length) = (u64::from(Mapping::RANGE), u64::from(Mapping::RANGE_LENGTH));
        first <= wanted && wanted + length <= first + count
    })
}

/// Half of the machine's memory, in bytes: how large /tmp and /dev/shm may grow.
pub(crate) fn memory_files() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion, reason = "the field's type differs between architectures")]
    let total = u64::try_from(info.totalram).unwrap_or(0) * u64::from(info.mem_unit);
    (total / 2).max(64 << 20)
}
