//! What a pool of `weirpool` reports: figures, facts and errors. The pool decides what they tell of. No stable API.
//!
//! | file | contents |
//! |---|---|
//! | `account` | the bytes that each tenant holds of one pool |
//! | `histogram` | distributions of times |
//! | `waits` | how requests waited |
//! | `source` | where a grant came from |
//! | `statistics`, `stream_statistics`, `tag_statistics` | the figures of a pool, of a stream and of a tag |
//! | `snapshot`, `blocks`, `origin`, `site` | all blocks at one moment, and where they come from |
//! | `shortfall` | the state of a pool when a request could not be served |
//! | `waiting_request` | a request that waits |
//! | `pool_info` | the description and the health of a pool |
//! | `device_counters` | counts of device calls |
//! | `soft_cap` | a mark on the reserved bytes |
//! | `trimmed` | how far a release of memory got |
//! | `heuristic` | when to coalesce, decided from the figures |
//! | `observer`, `announcer` | the facts that observers are told; the one place from which they are told |
//! | `error` | the errors of calls |
#![deny(unsafe_code)]

mod account;
pub mod announcer;
mod blocks;
mod device_counters;
mod error;
mod heuristic;
mod histogram;
mod observer;
mod origin;
mod pool_info;
mod shortfall;
mod site;
mod snapshot;
mod soft_cap;
mod source;
mod statistics;
mod stream_statistics;
mod tag_statistics;
mod trimmed;
mod waiting_request;
mod waits;

pub use account::{Account, Accounts, LimitReached};
pub use blocks::{BlockInfo, BlockState, ReservationInfo, SegmentInfo};
pub use device_counters::DeviceCounters;
pub use error::{
    AccessError, AllocError, BuildError, CopyError, DrainError, EnqueueError, ErrorClass,
    SourceError, StreamError, SubmitError, TaskError,
};
pub use heuristic::CoalesceHeuristic;
pub use histogram::{Bucket, Histogram, Recorder};
pub use observer::{Event, Fact, Memory, Observer};
pub use origin::{BlockOrigin, ReservationOrigin};
pub use pool_info::{Health, PoolDescription};
pub use shortfall::{Shortfall, TagShortfall};
pub use site::Site;
pub use snapshot::Snapshot;
pub use soft_cap::SoftCap;
pub use source::Source;
pub use statistics::{Hits, Statistics};
pub use stream_statistics::StreamStatistics;
pub use tag_statistics::TagStatistics;
pub use trimmed::Trimmed;
pub use waiting_request::WaitingRequest;
pub use waits::{WaitOutcome, WaitStatistics, Waits};
