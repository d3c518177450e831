//! The observable state of a pool. Reads, never steers: asking neither seals nor reaps.
//!
//! | file | about |
//! |---|---|
//! | `parts` | those of a stream, and of a tag |
//! | `scope` | what happens between two moments |
//! | `snapshot` | all segments and blocks |

mod parts;
mod scope;
mod snapshot;

pub use parts::{StreamStatistics, TagStatistics};
pub use scope::StatisticsScope;
pub use snapshot::Snapshot;
