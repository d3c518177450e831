//! The lane of a registered stream of weirpool, its per-stream cache: allocations and frees that do not involve the rest of the pool.
//!
//! A stream can reuse memory it freed immediately, because its own order protects it. Its lane keeps such blocks in a
//! [cache](StreamCache), which is the hot path: one lock, the lane's own, and no shared cache line written.
//!
//! A lane also numbers the points of its stream. Each freed block joins the *open* ticket; closing that ticket opens
//! the next. To *seal* is to close it and to record its event, in this order: close under the lane's lock, unlock, record,
//! publish. Recording first and closing afterwards would be wrong: a free in between would be covered by an event older
//! than the block's last use (order). A ticket that is closed but not yet published counts as pending.
//!
//! Two kinds of streams are special:
//!
//! - The **host** has finished its use of a block when it frees it. All its tickets are complete from the start, and none is
//!   ever sealed.
//! - The owner of an **external** stream may destroy it whenever no call that names it is running. So every free closes and
//!   records, and the pool neither records on it nor makes it wait on behalf of other streams.
//!
//! | file | contents |
//! |---|---|
//! | `lane` | a registered stream: all of these |
//! | `stream_cache` | allocation and free through the lane; flushing it; its counters |
//! | `state` | the state that the lane's lock guards: the cache, and the open ticket; the lock, which outlives its lane |
//! | `active` | which streams may hold memory that others need |
//! | `block` | blocks as the lane receives, keeps and returns them |
//! | `capture` | a stream that is captured into a graph |
//! | `spares` | what the cache keeps where blocks are passed through to a source of segments |
//! | `cache` | a stack of blocks for each size, and the references to the stream that freed blocks leave for later ones |
//! | `large_cache` | the few large blocks |
//! | `kept` | blocks that reservations keep for the streams that freed them |
//! | `shards` | more caches, for threads that share a stream |
//! | `count` | counters of blocks, by their source, and of bytes |
//! | `spacing` | how many bytes are freed between two events |
//! | `marker` | pooled events |
//! | `watch`, `watched_transfer` | watches on markers; on copies |
//! | `neighbour` | another device of the host, if the stream is one of it |
//! | `neighbours` | the other devices, and which of them have access to the pool's memory |
//! | `lanes`, `retired` | all registered streams; the counts of those that are gone |
//! | `own_calls` | the pool's own calls on the stream, which a capture refuses |
//! | `timeline` | the completed points of the stream, and the queries to the device |
//! | `host_tasks` | the host tasks that hold the stream |
//! | `pace` | when a point is expected to be complete |
//!
//! The lane knows its stream and the device. It does not know how the heap searches, nor which requests wait.
#![deny(unsafe_code)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the documentation is read beside the source"
)]

mod active;
mod block;
mod cache;
mod capture;
mod count;
mod host_tasks;
mod kept;
mod lane;
mod lanes;
mod large_cache;
mod marker;
mod neighbour;
mod neighbours;
mod own_calls;
mod pace;
mod retired;
mod shards;
mod spacing;
mod spares;
mod state;
mod stream_cache;
mod timeline;
mod watch;
mod watched_transfer;

pub use active::ActiveStreams;
pub use block::{CachedBlock, Closed, Fit, Freed, Use};
pub use cache::{CacheBounds, CacheOwner, Flush, RefCache};
pub use count::{BlockEvent, LaneFigures};
pub use host_tasks::{Holder, HostTaskEnding, HostTasks};
pub use kept::{KeepingReservations, Kept, ReservationState};
pub use lane::Lane;
pub use lanes::{Lanes, Registry};
pub use marker::{Events, Marker};
pub use neighbour::Neighbour;
pub use neighbours::{
    AccessBusy, AccessScope, AccessStage, CompleteCopies, Copying, Neighbours, NoAccess,
    WantedAccess,
};
pub use own_calls::refused;
pub use retired::Retired;
pub use stream_cache::{Gate, StreamCache};
pub use timeline::Timeline;
pub use watch::Watch;
pub use watched_transfer::WatchedTransfer;

use weirpool_device as device;
use weirpool_heap::{self as heap, id};
use weirpool_measure as measure;
use weirpool_sync as sync;
