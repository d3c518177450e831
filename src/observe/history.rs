//! What happened lately.

use crate::driver::{Driver, HistoryEntry, Pages};
use std::fmt;

/// The last things that happened in a pool, the oldest first: see [`Pool::history`](crate::Pool::history).
///
/// As text it is a line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct History {
    /// In the order in which they happened. Their times never go back.
    pub entries: Vec<HistoryEntry>,
    /// How many happened before these, and are forgotten.
    pub forgotten: u64,
}

impl History {
    pub(crate) fn of(driver: &Driver) -> Self {
        driver.pages().into()
    }
}

impl From<Pages> for History {
    fn from(pages: Pages) -> Self {
        let Pages { entries, forgotten } = pages;
        Self { entries, forgotten }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(f, "({} entries before these are forgotten)", self.forgotten)?;
        }
        self.entries
            .iter()
            .try_for_each(|entry| writeln!(f, "{entry}"))
    }
}
