//! What can be seen of a pool. Reads, never steers: asking neither seals nor reaps.
//!
//! | file | about |
//! |---|---|
//! | `statistics` | a pool's figures |
//! | `parts` | those of a stream, and of a tag |
//! | `hits` | grants by the source that gave them |
//! | `scope` | what happens between two moments |
//! | `snapshot` | all segments and blocks |
//! | `history` | what happened lately |
//! | `leaks` | blocks that are in use still |
//! | `export` | both as files that other tools read |
//! | `metrics` | the figures for a recorder of the `metrics` crate |

#[cfg(feature = "export")]
mod export;
mod history;
mod hits;
mod leaks;
#[cfg(feature = "metrics")]
mod metrics;
mod parts;
mod scope;
mod snapshot;
mod statistics;

pub use history::History;
pub use hits::Hits;
pub use leaks::LeakReport;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use parts::{StreamStatistics, TagStatistics};
pub use scope::{ScopeStatistics, StatisticsScope};
pub use snapshot::Snapshot;
pub use statistics::Statistics;
