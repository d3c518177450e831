//! What can be seen of a pool. Reads, never steers: asking neither seals nor reaps.
//!
//! | file | about |
//! |---|---|
//! | `statistics` | a pool's figures |
//! | `parts` | those of a stream, and of a tag |
//! | `hits` | grants by the source that gave them |
//! | `scope` | what happens between two moments |
//! | `attribute` | the figures and settings that CUDA's and HIP's pools have, by their names |
//! | `snapshot` | all segments and blocks |
//! | `history` | what happened lately |
//! | `leaks` | blocks that are in use still |
//! | `export` | both as files that other tools read |
//! | `units` | bytes and times as people read them |
//! | `metrics` | the figures for a recorder of the `metrics` crate |

mod attribute;
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
mod units;

pub use attribute::{Attribute, AttributeError};
pub use history::History;
pub use hits::Hits;
pub use leaks::LeakReport;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use parts::{StreamStatistics, TagStatistics};
pub use scope::{ScopeStatistics, StatisticsScope};
pub use snapshot::Snapshot;
pub use statistics::Statistics;
