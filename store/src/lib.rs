//! A content-addressed store: bytes under a digest, and which bytes must stay.
//!
//! [`Layout`] shows where things lie; each verb has its file. The store knows no tar, no recipes, no mounts and
//! no network, prints nothing and reads no environment variable.
#![forbid(unsafe_code)]

mod action;
mod digest;
mod disk;
mod error;
mod gc;
mod give;
mod index;
mod ingest;
mod layer;
mod layout;
mod lease;
mod lock;
mod open;
mod pack;
pub mod references;
mod repair;
mod roots;
mod seal;
mod shared;
mod trash;
mod usage;
mod verify;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use action::ActionRecord;
pub use digest::{LayerId, ObjectId, PackId, ParseIdError, StackId, StepKey};
pub use disk::{Change, Disk, DiskFile, Faults, remove_tree};
pub use error::{Error, Result};
pub use gc::{GcDone, GcPlan};
pub use give::GivenUp;
pub use ingest::{Committed, Ingest, PutError};
pub use layout::{Layout, object_name};
pub use lease::{Lease, LeaseHeader, LiveLease};
pub use lock::{Lock, Mode};
pub use open::{Access, FileSystem, Store};
pub use pack::{CompressDone, CompressPlan, InUse, PACK_MINIMUM, Promoted};
pub use roots::{RootKind, Stack, read_json};
pub use usage::Usage;
pub use verify::{Depth, Finding, Progress, Report, Subject};

impl Store {
    fn index(&self) -> Result<MutexGuard<'_, index::Index>> {
        let index = match self.index.get() {
            Some(index) => index,
            None => {
                let opened = match self.access() {
                    Access::Write => index::Index::open(self.layout(), self.disk())?,
                    Access::Read => index::Index::open_for_reading(self.layout())?,
                };
                self.index.get_or_init(|| Mutex::new(opened))
            }
        };
        // A panic while the index was held rolled its transaction back.
        Ok(index.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
