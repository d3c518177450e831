//! What can be seen of a pool. Reads, never steers: asking neither seals nor harvests.

mod statistics;

pub use statistics::{Hits, Statistics};
