//! The observable state of a pool. Reads, never steers: asking neither seals nor reaps.
//!
//! | file | about |
//! |---|---|
//! | `parts` | the figures of a stream and of a tag, and all blocks |
//! | `scope` | what happens between two moments |

pub(crate) mod parts;
mod scope;

pub use scope::StatisticsScope;
