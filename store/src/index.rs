//! The index: a SQLite mirror of `layers/` and `steps/`, for questions that would read many files.
//!
//! It holds nothing that the files do not say, so a lost or damaged index costs one scan. A layer's row is
//! written last and removed first: a row means that the layer and all its objects are complete and durable.
//! Garbage collection reads the files, never the index.

mod migrations;

use std::fs;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::action::ActionRecord;
use crate::disk::{Change, Disk};
use crate::error::{Context, Error, Result};
use crate::layout::Layout;
use crate::pack::Tier;
use crate::seal::{sealed, unsealed};
use crate::{LayerId, StepKey};

/// Marks an index that was filled from the files (PRAGMA application_id); "idev" in ASCII.
const FILLED: i32 = 0x6964_6576;

/// An open index.
#[derive(Debug)]
pub(crate) struct Index {
    connection: Connection,
    layout: Layout,
    disk: Disk,
    /// Whether it is the file of a writable store.
    is_writable: bool,
}

/// A layer that is about to be indexed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerRow {
    pub(crate) layer: LayerId,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) tier: Tier,
}

impl Index {
    /// Opens the index for writing, making or rebuilding it where it is absent or damaged.
    pub(crate) fn open(layout: &Layout, disk: &Disk) -> Result<Self> {
        let mut index = Self::connect(layout, disk)?;
        index.fill()?;
        Ok(index)
    }

    fn connect(layout: &Layout, disk: &Disk) -> Result<Self> {
        let path = layout.index();
        let opened = Connection::open(&path).and_then(|mut connection| {
            connection.busy_timeout(std::time::Duration::from_secs(5))?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            // Full: a removed row must not come back after a power cut, when its layer has gone.
            connection.pragma_update(None, "synchronous", "full")?;
            migrations::apply(&mut connection)?;
            // Reads the schema and the first page: what is no database at all fails here.
            connection.query_row("SELECT count(*) FROM step WHERE key = x''", [], |_| Ok(()))?;
            Ok(connection)
        });
        match opened {
            Ok(connection) => {
                Ok(Self { connection, layout: layout.clone(), disk: disk.clone(), is_writable: true })
            }
            Err(error) if is_damage(&error) || is_busy(&error) || path.is_dir() => {
                Self::discard(layout, disk)?;
                Self::connect(layout, disk)
            }
            Err(source) => Err(failure(layout, source)),
        }
    }

    /// Deletes the files of the index. Processes that have them open go on with what they have.
    fn discard(layout: &Layout, disk: &Disk) -> Result<()> {
        for suffix in ["", "-wal", "-shm"] {
            let mut file = layout.index().into_os_string();
            file.push(suffix);
            disk.remove_tree(file.as_ref())?;
        }
        Ok(())
    }

    /// Fills the index from the files if that was not done since it was made.
    fn fill(&mut self) -> Result<()> {
        if !self.is_filled()? {
            // Beside a collection, rows of layers that it removes could come back.
            let _commit = crate::lock::Lock::wait(&self.layout.commit_lock(), crate::lock::Mode::Shared)?;
            return match self.rebuild() {
                // A process was stopped in the middle of a transaction: until the next opening, more is a miss.
                Err(Error::Index { source, .. }) if is_busy(&source) => Ok(()),
                other => other,
            };
        }
        Ok(())
    }

    /// Replaces a damaged index by an empty one, which the next opening fills.
    fn renew(&mut self) -> Result<()> {
        *self = match self.is_writable {
            true => {
                Self::discard(&self.layout, &self.disk)?;
                Self::connect(&self.layout, &self.disk)?
            }
            false => Self::in_memory(&self.layout)?,
        };
        Ok(())
    }

    /// Makes the index anew from the files.
    pub(crate) fn remake(&mut self) -> Result<()> {
        self.renew()?;
        self.fill()
    }

    /// Opens the index of a store that may not be written; falls back to a scan into memory.
    pub(crate) fn open_for_reading(layout: &Layout) -> Result<Self> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(layout.index(), flags).and_then(|connection| {
            connection.query_row("SELECT count(*) FROM step WHERE key = x''", [], |_| Ok(()))?;
            Ok(connection)
        });
        if let Ok(connection) = opened {
            let (layout, disk) = (layout.clone(), Disk::default());
            return Ok(Self { connection, layout, disk, is_writable: false });
        }
        Self::in_memory(layout)
    }

    /// Makes an index for this process alone.
    fn in_memory(layout: &Layout) -> Result<Self> {
        let in_memory = || {
            let mut connection = Connection::open_in_memory()?;
            migrations::apply(&mut connection)?;
            Ok(connection)
        };
        let connection = in_memory().map_err(|source| Error::Index { path: layout.index(), source })?;
        let (layout, disk) = (layout.clone(), Disk::default());
        let mut index = Self { connection, layout, disk, is_writable: false };
        index.rebuild()?;
        Ok(index)
    }

    /// Whether the index was filled from the files since it was made; a process may have died in between.
    fn is_filled(&self) -> Result<bool> {
        let mark: i32 = self
            .connection
            .pragma_query_value(None, "application_id", |row| row.get(0))
            .map_err(|source| self.failed(source))?;
        Ok(mark == FILLED)
    }

    /// Fills an empty index from the files.
    fn rebuild(&mut self) -> Result<()> {
        let layers = crate::lease::names(&self.layout.directory("layers"))?;
        // Where there are packs, a layer is looked at when it is needed.
        let packs = crate::lease::names(&self.layout.packs())?;
        let tier = if packs.is_empty() { Tier::Hot } else { Tier::Mixed };
        let layers: Vec<LayerRow> = layers
            .iter()
            .filter_map(|name| name.parse().ok())
            .map(|layer| LayerRow { layer, objects: 0, bytes: 0, tier })
            .collect();
        let mut steps = vec![];
        for name in crate::lease::names(&self.layout.directory("steps"))? {
            let Ok(key) = name.parse::<StepKey>() else { continue };
            // What cannot be read is no hit; a verification names it.
            let bytes = fs::read(self.layout.step(&key)).unwrap_or_default();
            steps.extend(unsealed::<ActionRecord>(&bytes).ok().filter(|record| record.key == key));
        }
        self.transaction(|transaction| {
            insert(transaction, &layers, &steps)?;
            transaction.pragma_update(None, "application_id", FILLED)
        })
    }

    /// Adds rows in one transaction.
    pub(crate) fn add(&mut self, layers: &[LayerRow], steps: &[ActionRecord]) -> Result<()> {
        let add = |transaction: &rusqlite::Transaction<'_>| insert(transaction, layers, steps);
        match self.transaction(add) {
            Err(Error::Index { source, .. }) if is_damage(&source) => {
                self.remake()?;
                self.transaction(add)
            }
            // A process was stopped in the middle of a transaction. The files are there; without their rows they
            // are found by the next one that makes them.
            Err(Error::Index { source, .. }) if is_busy(&source) => Ok(()),
            other => other,
        }
    }

    /// Removes layers, and the steps that made them, in one transaction.
    pub(crate) fn remove(&mut self, layers: &[LayerId]) -> Result<()> {
        self.removal(|transaction| {
            let mut steps = transaction.prepare_cached(
                "DELETE FROM step WHERE key IN (SELECT step FROM step_layer WHERE layer = ?1)",
            )?;
            let mut links = transaction.prepare_cached("DELETE FROM step_layer WHERE layer = ?1")?;
            let mut rows = transaction.prepare_cached("DELETE FROM layer WHERE id = ?1")?;
            for layer in layers {
                steps.execute([layer.as_bytes()])?;
                links.execute([layer.as_bytes()])?;
                rows.execute([layer.as_bytes()])?;
            }
            Ok(())
        })
    }

    /// Removes steps in one transaction.
    pub(crate) fn remove_steps(&mut self, steps: &[StepKey]) -> Result<()> {
        self.removal(|transaction| {
            let mut row = transaction.prepare_cached("DELETE FROM step WHERE key = ?1")?;
            let mut links = transaction.prepare_cached("DELETE FROM step_layer WHERE step = ?1")?;
            for step in steps {
                row.execute([step.as_bytes()])?;
                links.execute([step.as_bytes()])?;
            }
            Ok(())
        })
    }

    /// Returns the record of `key`, if the index has it and all its layers.
    pub(crate) fn step(&mut self, key: &StepKey) -> Result<Option<ActionRecord>> {
        const QUERY: &str = "SELECT record FROM step WHERE key = ?1 AND NOT EXISTS \
            (SELECT 1 FROM step_layer WHERE step = ?1 AND layer NOT IN (SELECT id FROM layer))";
        let text: Option<String> = self.ask(|connection| {
            connection.prepare_cached(QUERY)?.query_row([key.as_bytes()], |row| row.get(0)).optional()
        })?;
        let record = text.and_then(|text| unsealed::<ActionRecord>(text.as_bytes()).ok());
        Ok(record.filter(|record| record.key == *key))
    }

    /// Returns every record, newest first, of one kind and label where they are given.
    pub(crate) fn steps(&mut self, only: Option<(&str, &str)>) -> Result<Vec<ActionRecord>> {
        let texts: Vec<String> = self.ask(|connection| match only {
            Some((kind, label)) => connection
                .prepare_cached("SELECT record FROM step WHERE kind = ?1 AND label = ?2 ORDER BY built DESC")?
                .query_map([kind, label], |row| row.get(0))?
                .collect(),
            None => connection
                .prepare_cached("SELECT record FROM step ORDER BY built DESC")?
                .query_map([], |row| row.get(0))?
                .collect(),
        })?;
        Ok(texts.iter().filter_map(|text| unsealed(text.as_bytes()).ok()).collect())
    }

    /// Returns the keys of records that are not what was written.
    pub(crate) fn broken_rows(&mut self) -> Result<Vec<StepKey>> {
        let rows: Vec<([u8; 32], String)> = self.ask(|connection| {
            connection
                .prepare("SELECT key, record FROM step")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        let broken =
            rows.into_iter().map(|(key, text)| (StepKey::from_bytes(key), text)).filter(|(key, text)| {
                !unsealed::<ActionRecord>(text.as_bytes()).is_ok_and(|record| record.key == *key)
            });
        Ok(broken.map(|(key, _)| key).collect())
    }

    /// Returns the ids of all rows of layers.
    pub(crate) fn layer_rows(&mut self) -> Result<Vec<LayerId>> {
        self.ask(|connection| {
            connection
                .prepare("SELECT id FROM layer")?
                .query_map([], |row| row.get::<_, [u8; 32]>(0).map(LayerId::from_bytes))?
                .collect()
        })
    }

    /// Writes how the objects of layers are stored; of those that have a row.
    ///
    /// Fails where the index cannot be written: plain objects go only when their layers' rows say so.
    pub(crate) fn set_tiers(&mut self, tiers: &[(LayerId, Tier)]) -> Result<()> {
        if tiers.is_empty() {
            return Ok(());
        }
        let set = |transaction: &rusqlite::Transaction<'_>| {
            let mut row = transaction.prepare_cached("UPDATE layer SET tier = ?2 WHERE id = ?1")?;
            for (layer, tier) in tiers {
                row.execute(params![layer.as_bytes(), tier.word()])?;
            }
            Ok(())
        };
        match self.transaction(set) {
            Err(Error::Index { source, .. }) if is_damage(&source) => {
                // The caller holds the commit lock, so the next opening fills it: all rows say mixed then.
                self.renew()
            }
            other => other,
        }
    }

    /// Returns the layers all of whose objects are plain.
    pub(crate) fn hot_layers(&mut self) -> Result<std::collections::HashSet<LayerId>> {
        self.ask(|connection| {
            connection
                .prepare_cached("SELECT id FROM layer WHERE tier = 'hot'")?
                .query_map([], |row| row.get::<_, [u8; 32]>(0).map(LayerId::from_bytes))?
                .collect()
        })
    }

    /// Checks the database's own structure; returns what is wrong with it.
    pub(crate) fn check(&self) -> Option<String> {
        let check =
            self.connection.pragma_query_value(None, "integrity_check", |row| row.get::<_, String>(0));
        match check {
            Ok(answer) if answer == "ok" => None,
            Ok(answer) => Some(answer),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Asks, and if the index turns out to be damaged, makes it anew and asks again.
    fn ask<T>(&mut self, question: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        match question(&self.connection) {
            Err(error) if is_damage(&error) => {
                self.remake()?;
                question(&self.connection).map_err(|source| self.failed(source))
            }
            other => other.map_err(|source| self.failed(source)),
        }
    }

    /// Removes rows; an index that is damaged, or held by a stopped process, loses all of its rows instead. The
    /// caller holds the commit lock.
    fn removal(&mut self, work: impl Fn(&rusqlite::Transaction<'_>) -> rusqlite::Result<()>) -> Result<()> {
        match self.transaction(work) {
            Err(Error::Index { source, .. }) if is_damage(&source) || is_busy(&source) => self.renew(),
            other => other,
        }
    }

    fn transaction(
        &mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<()> {
        // Immediate: a deferred transaction that reads first gets SQLITE_BUSY past the busy handler.
        let path = self.layout.index();
        let announce = |disk: &Disk| disk.before(&Change::Index { path: &path }).at("write", &path);
        announce(&self.disk)?;
        let failed = |source| failure(&self.layout, source);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        work(&transaction).map_err(failed)?;
        announce(&self.disk)?;
        transaction.commit().map_err(failed)
    }

    fn failed(&self, source: rusqlite::Error) -> Error {
        failure(&self.layout, source)
    }
}

/// Tells a full or read-only disk from a failure of the index itself.
fn failure(layout: &Layout, source: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode::{CannotOpen, DiskFull, ReadOnly, SystemIoFailure};
    let path = layout.index();
    let is_full =
        || rustix::fs::statfs(layout.root()).is_ok_and(|statfs| statfs.f_bavail == 0 || statfs.f_ffree == 0);
    let code = source.sqlite_error().map(|error| error.extended_code);
    match source.sqlite_error_code() {
        Some(DiskFull) => Error::NoSpace { path },
        // The memory that SQLite shares between processes is a file, too.
        Some(SystemIoFailure) if code == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => Error::NoSpace { path },
        Some(ReadOnly) => Error::ReadOnly { path: layout.root().to_owned() },
        // SQLite's own files could not be made.
        Some(CannotOpen | SystemIoFailure) if is_full() => Error::NoSpace { path },
        _ => Error::Index { path, source },
    }
}

fn insert(
    transaction: &rusqlite::Transaction<'_>,
    layers: &[LayerRow],
    steps: &[ActionRecord],
) -> rusqlite::Result<()> {
    let mut layer_row = transaction
        .prepare_cached("INSERT OR REPLACE INTO layer (id, tier, objects, bytes) VALUES (?1, ?2, ?3, ?4)")?;
    for row in layers {
        let (objects, bytes) = (row.objects as i64, row.bytes as i64);
        layer_row.execute(params![row.layer.as_bytes(), row.tier.word(), objects, bytes])?;
    }
    let mut step_row = transaction.prepare_cached(
        "INSERT OR REPLACE INTO step (key, kind, label, built, record) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let mut step_layer =
        transaction.prepare_cached("INSERT OR IGNORE INTO step_layer (step, layer) VALUES (?1, ?2)")?;
    for step in steps {
        let record = String::from_utf8(sealed(step)).expect("JSON is UTF-8");
        step_row.execute(params![step.key.as_bytes(), step.kind, step.label, step.built, record])?;
        for layer in &step.layers {
            step_layer.execute(params![step.key.as_bytes(), layer.as_bytes()])?;
        }
    }
    Ok(())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

/// Whether the index is no sound database, or no longer the file of its name.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase, Unknown};
    use rusqlite::ffi::{SQLITE_IOERR_SHORT_READ, SQLITE_READONLY_DBMOVED};
    let code = error.sqlite_error().map(|error| error.extended_code);
    // Shorter than it says: a process that had a replaced index open deleted the log of the new one as it closed.
    matches!(code, Some(SQLITE_READONLY_DBMOVED | SQLITE_IOERR_SHORT_READ))
        // An unknown error is a schema that is not ours, such as a missing table.
        || matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase | Unknown))
}
