//! What can be seen of a pool. Reads, never steers: asking neither seals nor harvests.
//!
//! | file | about |
//! |---|---|
//! | `statistics` | a pool's figures |
//! | `parts` | those of a stream, and of a tag |
//! | `hits` | grants by the rung that gave them |
//! | `scope` | what happens between two moments |
//! | `attribute` | the figures and settings that CUDA's and HIP's pools have, by their names |
//! | `metrics` | the figures for a recorder of the `metrics` crate |

mod attribute;
mod hits;
#[cfg(feature = "metrics")]
mod metrics;
mod parts;
mod scope;
mod statistics;

pub use attribute::{Attribute, AttributeError};
pub use hits::Hits;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use parts::{StreamStatistics, TagStatistics};
pub use scope::{ScopeStatistics, StatisticsScope};
pub use statistics::Statistics;
