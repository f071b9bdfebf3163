//! The index's schema, as a list that only ever grows.

use rusqlite::{Connection, TransactionBehavior};

/// Entry N takes the schema from version N to N + 1. Never change or reorder an entry that was released.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE layer (
        id      BLOB PRIMARY KEY,
        tier    TEXT NOT NULL CHECK (tier IN ('hot', 'packed', 'mixed')),
        objects INTEGER NOT NULL,
        bytes   INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE step (
        key     BLOB PRIMARY KEY,
        kind    TEXT NOT NULL,
        label   TEXT NOT NULL,
        built   INTEGER NOT NULL,
        record  TEXT NOT NULL
    ) STRICT;
    CREATE INDEX step_by_label ON step (kind, label);
    CREATE TABLE step_layer (
        step    BLOB NOT NULL,
        layer   BLOB NOT NULL,
        PRIMARY KEY (step, layer)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX step_by_layer ON step_layer (layer);
"];

/// Brings the schema up to date. Two processes may call this at once.
pub(crate) fn apply(connection: &mut Connection) -> rusqlite::Result<()> {
    let version =
        |connection: &Connection| connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let current: u32 = version(connection)?;
    if current as usize >= MIGRATIONS.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let current: u32 = version(&transaction)?;
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(current as usize) {
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", number as u32 + 1)?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applies_once_however_often_it_is_called() {
        let mut connection = Connection::open_in_memory().unwrap();
        apply(&mut connection).unwrap();
        apply(&mut connection).unwrap();
        let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(version as usize, MIGRATIONS.len());
    }
}
