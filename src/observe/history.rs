//! The recent events of a pool.

use crate::engine::{Engine, HistoryEntry, Pages};
use crate::id::{StreamId, StreamNames};
use std::collections::BTreeMap;
use std::fmt;

/// The recent events of a pool, oldest first: see [`Pool::history`](crate::Pool::history). Displayed as one line for
/// each event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct History {
    /// The events in the order in which they happened. Their times never go back.
    pub entries: Vec<HistoryEntry>,
    /// Number of earlier events that were dropped.
    pub forgotten: u64,
    /// The [names](crate::Stream::named) of the registered streams that have one.
    pub streams: BTreeMap<StreamId, String>,
}

impl History {
    pub(crate) fn of(engine: &Engine) -> Self {
        Self::new(engine.store.pages(), engine.streams.names())
    }

    pub(super) fn new(pages: Pages, streams: StreamNames) -> Self {
        let Pages { entries, forgotten } = pages;
        Self {
            entries,
            forgotten,
            streams,
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(f, "({} earlier events are no longer kept)", self.forgotten)?;
        }
        for entry in &self.entries {
            entry.write(f, &self.streams)?;
            writeln!(f)?;
        }
        Ok(())
    }
}
