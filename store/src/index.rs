//! The index: a SQLite mirror of `layers/` and `steps/`, for questions that would read many files.
//!
//! It holds nothing that the files do not say, so a lost or damaged index costs one scan. A layer's row is
//! written last and removed first: a row means that the layer and all its objects are complete and durable.
//! Garbage collection reads the files, never the index.

mod migrations;

use std::fs;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::action::ActionRecord;
use crate::error::{Context, Error, Result};
use crate::layout::Layout;
use crate::{LayerId, StepKey};

/// Marks an index that was filled from the files (PRAGMA application_id); "idev" in ASCII.
const FILLED: i32 = 0x6964_6576;

/// An open index.
#[derive(Debug)]
pub(crate) struct Index {
    connection: Connection,
    layout: Layout,
}

/// A layer that is about to be indexed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerRow {
    pub(crate) layer: LayerId,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Index {
    /// Opens the index for writing, making or rebuilding it where it is absent or damaged.
    pub(crate) fn open(layout: &Layout) -> Result<Self> {
        let path = layout.index();
        let opened = Connection::open(&path).and_then(|mut connection| {
            connection.busy_timeout(std::time::Duration::from_secs(30))?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "normal")?;
            migrations::apply(&mut connection)?;
            // Reads the schema and the first page: what is no database at all fails here.
            connection.query_row("SELECT count(*) FROM step WHERE key = x''", [], |_| Ok(()))?;
            Ok(connection)
        });
        let mut index = match opened {
            Ok(connection) => Self { connection, layout: layout.clone() },
            Err(error) if is_damage(&error) => {
                for suffix in ["", "-wal", "-shm"] {
                    let mut file = path.clone().into_os_string();
                    file.push(suffix);
                    crate::lease::remove_tree(file.as_ref())?;
                }
                return Self::open(layout);
            }
            Err(source) => return Err(failure(layout, source)),
        };
        if !index.is_filled()? {
            // Beside a collection, rows of layers that it removes could come back.
            let _commit = crate::lock::Lock::wait(&layout.commit_lock(), crate::lock::Mode::Shared)?;
            index.rebuild()?;
        }
        Ok(index)
    }

    /// Opens the index of a store that may not be written; falls back to a scan into memory.
    pub(crate) fn open_for_reading(layout: &Layout) -> Result<Self> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(layout.index(), flags).and_then(|connection| {
            connection.query_row("SELECT count(*) FROM step WHERE key = x''", [], |_| Ok(()))?;
            Ok(connection)
        });
        if let Ok(connection) = opened {
            return Ok(Self { connection, layout: layout.clone() });
        }
        let in_memory = || {
            let mut connection = Connection::open_in_memory()?;
            migrations::apply(&mut connection)?;
            Ok(connection)
        };
        let connection = in_memory().map_err(|source| Error::Index { path: layout.index(), source })?;
        let mut index = Self { connection, layout: layout.clone() };
        index.rebuild()?;
        Ok(index)
    }

    /// Whether the index was filled from the files since it was made; a process may have died in between.
    fn is_filled(&self) -> Result<bool> {
        let mark: i32 =
            self.ask(|connection| connection.pragma_query_value(None, "application_id", |row| row.get(0)))?;
        Ok(mark == FILLED)
    }

    /// Fills an empty index from the files.
    fn rebuild(&mut self) -> Result<()> {
        let layers = crate::lease::names(&self.layout.directory("layers"))?;
        let layers: Vec<LayerRow> = layers
            .iter()
            .filter_map(|name| name.parse().ok())
            .map(|layer| LayerRow { layer, objects: 0, bytes: 0 })
            .collect();
        let mut steps = vec![];
        for name in crate::lease::names(&self.layout.directory("steps"))? {
            let Ok(key) = name.parse::<StepKey>() else { continue };
            let path = self.layout.step(&key);
            let bytes = fs::read(&path).at("read", &path)?;
            if let Ok(record) = serde_json::from_slice::<ActionRecord>(&bytes) {
                steps.push(record);
            }
        }
        self.transaction(|transaction| {
            insert(transaction, &layers, &steps)?;
            transaction.pragma_update(None, "application_id", FILLED)
        })
    }

    /// Adds rows in one transaction.
    pub(crate) fn add(&mut self, layers: &[LayerRow], steps: &[ActionRecord]) -> Result<()> {
        self.transaction(|transaction| insert(transaction, layers, steps))
    }

    /// Removes layers, and the steps that made them, in one transaction; returns the removed steps.
    pub(crate) fn remove(&mut self, layers: &[LayerId]) -> Result<()> {
        self.transaction(|transaction| {
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
        self.transaction(|transaction| {
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
    pub(crate) fn step(&self, key: &StepKey) -> Result<Option<ActionRecord>> {
        const QUERY: &str = "SELECT record FROM step WHERE key = ?1 AND NOT EXISTS \
            (SELECT 1 FROM step_layer WHERE step = ?1 AND layer NOT IN (SELECT id FROM layer))";
        let text: Option<String> = self.ask(|connection| {
            connection.prepare_cached(QUERY)?.query_row([key.as_bytes()], |row| row.get(0)).optional()
        })?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Returns every record, newest first, of one kind and label where they are given.
    pub(crate) fn steps(&self, only: Option<(&str, &str)>) -> Result<Vec<ActionRecord>> {
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
        Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    /// Returns the ids of all rows of layers.
    pub(crate) fn layer_rows(&self) -> Result<Vec<LayerId>> {
        self.ask(|connection| {
            connection
                .prepare("SELECT id FROM layer")?
                .query_map([], |row| row.get::<_, [u8; 32]>(0).map(LayerId::from_bytes))?
                .collect()
        })
    }

    fn ask<T>(&self, question: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        question(&self.connection).map_err(|source| self.failed(source))
    }

    fn transaction(
        &mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<()> {
        // Immediate: a deferred transaction that reads first gets SQLITE_BUSY past the busy handler.
        let run = |connection: &mut Connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            work(&transaction)?;
            transaction.commit()
        };
        run(&mut self.connection).map_err(|source| self.failed(source))
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
    match source.sqlite_error_code() {
        Some(DiskFull) => Error::NoSpace { path },
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
    let mut layer_row = transaction.prepare_cached(
        "INSERT OR REPLACE INTO layer (id, tier, objects, bytes) VALUES (?1, 'hot', ?2, ?3)",
    )?;
    for row in layers {
        layer_row.execute(params![row.layer.as_bytes(), row.objects as i64, row.bytes as i64])?;
    }
    let mut step_row = transaction.prepare_cached(
        "INSERT OR REPLACE INTO step (key, kind, label, built, record) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let mut step_layer =
        transaction.prepare_cached("INSERT OR IGNORE INTO step_layer (step, layer) VALUES (?1, ?2)")?;
    for step in steps {
        let record = serde_json::to_string(step).expect("plain data");
        step_row.execute(params![step.key.as_bytes(), step.kind, step.label, step.built, record])?;
        for layer in &step.layers {
            step_layer.execute(params![step.key.as_bytes(), layer.as_bytes()])?;
        }
    }
    Ok(())
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    // An unknown error at opening is a schema that is not ours, such as a missing table.
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase | rusqlite::ErrorCode::Unknown))
}
