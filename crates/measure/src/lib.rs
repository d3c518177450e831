//! Kinds of figures of `weirpool`. The pool decides what they count. No stable API.
//!
//! | file | contents |
//! |---|---|
//! | `account` | the bytes that each tenant holds of one pool |
//! | `histogram` | distributions of times |
//! | `waits` | how requests waited |
//! | `source` | where a grant came from |
//! | `statistics` | the figures of a pool |
//! | `trimmed` | how far a release of memory got |
//! | `heuristic` | when to coalesce, decided from the figures |
#![deny(unsafe_code)]

mod account;
mod heuristic;
mod histogram;
mod source;
mod statistics;
mod trimmed;
mod waits;

pub use account::{Account, Accounts, LimitReached};
pub use heuristic::CoalesceHeuristic;
pub use histogram::{Bucket, Histogram, Recorder};
pub use source::Source;
pub use statistics::{Hits, Statistics};
pub use trimmed::Trimmed;
pub use waits::{WaitOutcome, WaitStatistics, Waits};
