//! Kinds of figures. The layers above decide what they count.

pub use weirpool_heap::Level;
pub(crate) use weirpool_heap::Mark;
pub(crate) use weirpool_heap::debug_in_units;
pub(crate) use weirpool_heap::units::{Bytes, Milliseconds};
pub(crate) use weirpool_measure::{Account, Accounts, LimitReached, Waits};
pub use weirpool_measure::{
    BlockInfo, BlockOrigin, BlockState, Bucket, CoalesceHeuristic, Histogram, Hits, Recorder,
    ReservationInfo, ReservationOrigin, SegmentInfo, Site, Snapshot, Source, Statistics,
    StreamStatistics, TagStatistics, Trimmed, WaitOutcome, WaitStatistics,
};
pub use weirpool_queue::Tag;
