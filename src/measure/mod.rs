//! Kinds of figures. The layers above decide what they count.
//!
//! | file | contents |
//! |---|---|
//! | `account` | the bytes that each tenant holds of one pool |

mod account;

pub(crate) use account::{Account, Accounts, LimitReached};
pub use weirpool_heap::Level;
pub(crate) use weirpool_heap::debug_in_units;
pub(crate) use weirpool_heap::units::{Bytes, Counted, Milliseconds};
pub(crate) use weirpool_heap::{Highs, Mark, fragmentation};
pub(crate) use weirpool_measure::Waits;
pub use weirpool_measure::{
    Bucket, CoalesceHeuristic, Histogram, Hits, Recorder, Source, Statistics, Trimmed, WaitOutcome,
    WaitStatistics,
};
pub use weirpool_queue::Tag;
