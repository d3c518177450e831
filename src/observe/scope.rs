//! What happens in a pool between two moments.

use crate::engine::{Statistics, figures};
use crate::handles::Presence;
use crate::measure::Mark;
use crate::sync::plain::Arc;
use std::fmt;

/// Reports what happened in a pool since the scope began, on all threads: made by
/// [`Inspect::statistics_scope`](crate::Inspect::statistics_scope), after RMM's statistics adaptor.
///
/// Scopes are independent: they may nest or overlap, and each has its own high-water marks. An allocation costs the
/// same with and without open scopes, except for [exact](crate::Inspect::exact_statistics_scope) ones. A scope is a handle of
/// the pool and keeps it alive.
#[must_use = "a scope reports something when it is read or ended"]
pub struct StatisticsScope {
    presence: Arc<Presence>,
    mark: Mark,
    before: Statistics,
    is_exact: bool,
}

impl StatisticsScope {
    pub(crate) fn new(presence: Arc<Presence>, is_exact: bool) -> Self {
        let engine = &presence.service.engine;
        if is_exact {
            figures::begin_exact(engine);
        }
        let mark = figures::begin(&engine.streams, &engine.store);
        let before = figures::statistics_since(engine, mark);
        Self {
            presence,
            mark,
            before,
            is_exact,
        }
    }

    /// Returns the current figures: levels with their high-water marks since the scope began, and counters since
    /// then.
    pub fn read(&self) -> Statistics {
        let now = figures::statistics_since(&self.presence.service.engine, self.mark);
        now.since(&self.before)
    }

    /// Ends the scope, as dropping it does, and returns its figures.
    pub fn end(self) -> Statistics {
        self.read()
    }
}

impl Drop for StatisticsScope {
    fn drop(&mut self) {
        let engine = &self.presence.service.engine;
        figures::end(&engine.streams, &engine.store, self.mark);
        if self.is_exact {
            figures::end_exact(&engine.shared);
        }
    }
}

impl fmt::Debug for StatisticsScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatisticsScope")
            .field(&self.read())
            .finish()
    }
}
