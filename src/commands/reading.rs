//! Progress of commands that read the store's bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use infradev_store::Progress;

use crate::ui::{Ui, bytes};

/// Shows how much was read so far.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    ui: &'a Ui,
    /// What the command does meanwhile.
    what: &'static str,
    read: AtomicU64,
}

impl<'a> Reading<'a> {
    pub(super) fn new(ui: &'a Ui, what: &'static str) -> Self {
        Self { ui, what, read: AtomicU64::new(0) }
    }
}

impl Progress for Reading<'_> {
    fn advance(&self, count: u64) {
        let read = self.read.fetch_add(count, Ordering::Relaxed) + count;
        self.ui.moving(self.what, || format!("{} read", bytes(read)));
    }
}
