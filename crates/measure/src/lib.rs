//! Kinds of figures of `weirpool`. The pool decides what they count. No stable API.
//!
//! | file | contents |
//! |---|---|
//! | `account` | the bytes that each tenant holds of one pool |
//! | `histogram` | distributions of times |
//! | `waits` | how requests waited |
//! | `source` | where a grant came from |
//! | `statistics`, `stream_statistics`, `tag_statistics` | the figures of a pool, of a stream and of a tag |
//! | `snapshot`, `blocks`, `origin`, `site` | all blocks at one moment, and where they come from |
//! | `trimmed` | how far a release of memory got |
//! | `heuristic` | when to coalesce, decided from the figures |
#![deny(unsafe_code)]

mod account;
mod blocks;
mod heuristic;
mod histogram;
mod origin;
mod site;
mod snapshot;
mod source;
mod statistics;
mod stream_statistics;
mod tag_statistics;
mod trimmed;
mod waits;

pub use account::{Account, Accounts, LimitReached};
pub use blocks::{BlockInfo, BlockState, ReservationInfo, SegmentInfo};
pub use heuristic::CoalesceHeuristic;
pub use histogram::{Bucket, Histogram, Recorder};
pub use origin::{BlockOrigin, ReservationOrigin};
pub use site::Site;
pub use snapshot::Snapshot;
pub use source::Source;
pub use statistics::{Hits, Statistics};
pub use stream_statistics::StreamStatistics;
pub use tag_statistics::TagStatistics;
pub use trimmed::Trimmed;
pub use waits::{WaitOutcome, WaitStatistics, Waits};
