//! The lane of a registered stream, its per-stream cache: allocations and frees that do not involve the rest of the pool.
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
//! | `stream_cache` | allocation and free through the lane; flushing it; its counters |
//! | `state` | the state that the lane's lock guards: the cache, and the open ticket |
//! | `slot` | the lock, which outlives its lane |
//! | `active` | which streams may hold memory that others need |
//! | `block` | blocks as the lane receives, keeps and returns them |
//! | `capture` | a stream that is captured into a graph |
//! | `spares` | what the cache keeps where blocks are passed through to a source of segments |
//! | `cache` | a stack of blocks for each size, and the references to the stream that freed blocks leave for later ones |
//! | `large_cache` | the few large blocks |
//! | `shards` | more caches, for threads that share a stream |
//! | `count` | counters of blocks, by their source, and of bytes |
//! | `spacing` | how many bytes are freed between two events |
//! | `marker` | pooled events |
//! | `neighbour` | another device of the host, if the stream is one of it |
//! | `own_calls` | the pool's own calls on the stream, which a capture refuses |
//! | `timeline` | the completed points of the stream, and the queries to the device |
//! | `host_tasks` | the host tasks that hold the stream |
//! | `pace` | when a point is expected to be complete |
//!
//! The lane knows its stream and the device. It does not know how the heap searches, nor which requests wait.

mod active;
mod block;
mod cache;
mod capture;
mod count;
mod host_tasks;
mod large_cache;
mod marker;
mod neighbour;
mod own_calls;
mod pace;
mod shards;
mod slot;
mod spacing;
mod spares;
mod state;
mod stream_cache;
mod timeline;

pub(crate) use active::ActiveStreams;
pub(crate) use block::{CachedBlock, Closed, Fit, Freed, Use};
pub(crate) use cache::{CacheBounds, CacheOwner, Flush, RefCache};
pub(crate) use count::{BlockEvent, LaneFigures};
pub(crate) use host_tasks::{Holder, HostTaskEnding, HostTasks};
pub(crate) use marker::{Events, Marker};
pub(crate) use neighbour::Neighbour;
pub(crate) use own_calls::refused;
pub(crate) use stream_cache::{Gate, StreamCache};
pub(crate) use timeline::Timeline;

use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceId, DeviceStream, RawStream};
use crate::heap::{Clock, Fence};
use crate::id::{StreamId, StreamLabel, Ticket};
use crate::measure::{Mark, Waits};
use crate::sync::plain::AtomicBool;
use crate::sync::{Arc, Foreign, Ordering, SharedFlag, plain};
use active::Activity;
use marker::Recorded;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::task::Waker;
use std::time::Duration;

/// A registered stream; see the [module](self). It has its own cache lines, because the hot path reads it.
#[repr(align(128))]
pub(crate) struct Lane {
    pub(crate) id: StreamId,
    pub(crate) raw: RawStream,
    /// Whether a device-side wait can be enqueued on the stream.
    pub(crate) takes_waits: bool,
    /// The stream belongs to another library, and is used only inside calls that name it: each free seals, and the pool
    /// does not seal it for other streams.
    pub(crate) is_external: bool,
    pub(crate) cache: StreamCache,
    pub(crate) timeline: Timeline,
    /// The stream's name, once it has one.
    pub(crate) name: plain::OnceLock<plain::Arc<str>>,
    /// The waiting times of requests for the stream.
    pub(crate) waits: Waits,
    pub(crate) host_tasks: HostTasks,
    /// The stream's device, if that is not the pool's.
    neighbour: Option<Arc<Neighbour>>,
    /// Only copies are noted on it, which the device makes; so far.
    is_for_copies: SharedFlag,
    /// Owns the device's stream: its handle is not recycled while the lane exists (stable-ids).
    keep_alive: Option<Foreign<plain::Arc<dyn Any + Send + Sync>>>,
}

/// The label of the stream: futures and handles own lanes, and print no more of them.
impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({})", self.label())
    }
}

impl Lane {
    pub(crate) fn new(
        id: StreamId,
        stream: &dyn DeviceStream,
        mut bounds: CacheBounds,
        gate: Gate,
        active: &Arc<ActiveStreams>,
    ) -> Self {
        let raw = stream.raw();
        let is_external = stream.external_id().is_some();
        let is_host = raw == RawStream::HOST;
        if is_external {
            bounds.unsealed = 0;
        } else if is_host {
            // The host never seals, however many bytes are freed.
            bounds.unsealed = u64::MAX;
        }
        Self {
            id,
            raw,
            takes_waits: stream.takes_waits(),
            is_external,
            cache: StreamCache::new(
                bounds,
                gate,
                Activity::new(active.clone(), id),
                is_host,
                is_external,
            ),
            timeline: Timeline::new(if is_host { Ticket::LAST } else { Ticket::ZERO }),
            name: stream.name().map_or_else(Default::default, Into::into),
            waits: Waits::default(),
            host_tasks: HostTasks::new(),
            neighbour: None,
            keep_alive: Some(Foreign::new(stream.keep_alive())),
            is_for_copies: SharedFlag::new(false),
        }
    }

    /// Makes this the lane of a stream of another device.
    pub(crate) fn on(mut self, neighbour: Option<Arc<Neighbour>>) -> Self {
        self.neighbour = neighbour;
        self
    }

    /// Notes whether only copies are noted on the lane.
    pub(crate) fn set_for_copies(&self, is_for_copies: bool) {
        self.is_for_copies.store(is_for_copies, Ordering::Release);
    }

    /// Returns whether the stream is one of that other device, and only copies are noted on it.
    pub(crate) fn is_for_copies_of(&self, device: DeviceId) -> bool {
        let neighbour = self.neighbour.as_ref();
        neighbour.is_some_and(|neighbour| neighbour.device.id() == device) && self.is_for_copies()
    }

    /// Returns whether only copies are noted on the stream, which is of another pool.
    pub(crate) fn is_for_copies(&self) -> bool {
        self.is_for_copies.load(Ordering::Acquire)
    }

    /// Returns whether the stream is one of another device than the pool's.
    pub(crate) fn is_foreign(&self) -> bool {
        self.neighbour.is_some()
    }

    /// Returns the stream's device, given that of the pool.
    pub(crate) fn device<'a>(
        &'a self,
        own: &'a plain::Arc<dyn Device>,
    ) -> &'a plain::Arc<dyn Device> {
        let neighbour = self.neighbour.as_ref();
        neighbour.map_or(own, |neighbour| &neighbour.device)
    }

    /// Returns an owner that keeps the device's stream usable.
    pub(crate) fn owner(&self) -> &plain::Arc<dyn Any + Send + Sync> {
        self.keep_alive
            .as_ref()
            .expect("present until the lane is dropped")
    }

    /// Returns the stream's name, if it has one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.get().map(|name| &**name)
    }

    /// Returns the name of the stream in texts.
    pub(crate) fn label(&self) -> StreamLabel<'_> {
        StreamLabel {
            id: self.id,
            name: self.name(),
        }
    }

    /// Returns whether the stream is the host: its work is over when its call returns.
    pub(crate) fn is_host(&self) -> bool {
        self.raw == RawStream::HOST
    }

    /// Returns whether only the pool still owns the device's stream.
    pub(crate) fn is_abandoned(&self, device: &dyn Device) -> bool {
        device.is_abandoned(self.owner())
    }

    pub(crate) fn fence(&self, ticket: Ticket) -> Fence {
        Fence {
            stream: self.id,
            ticket,
        }
    }

    /// Returns whether the stream is gone and all its freed memory is complete: nothing is unsealed, and every ticket
    /// that was ever closed is complete. (That no marker is incomplete would not be enough: a closed ticket may not be
    /// published yet.)
    pub(crate) fn is_done(&self) -> bool {
        // Read first: a ticket closed after this is not taken for complete.
        let completed = self.timeline.completed();
        self.cache.is_done(completed)
    }

    /// Returns the counters and the cached bytes, with the high-water mark since `mark`.
    pub(crate) fn figures(&self, mark: Mark) -> LaneFigures {
        // Read first: a block freed under a ticket that completes later does not count as complete.
        let completed = self.timeline.completed();
        self.cache.figures(mark, completed)
    }

    /// Returns the number of cached blocks that may be incomplete, in constant time: none if all that was freed on the
    /// stream is known to be complete, or else all.
    pub(crate) fn pending_blocks(&self) -> usize {
        // Read first, as in `figures`.
        let completed = self.timeline.completed();
        self.cache.pending_blocks(completed)
    }

    /// Returns whether a free that seals should first [query](Timeline::should_query) how far the stream is.
    pub(crate) fn should_query(&self) -> bool {
        self.timeline.should_query(self.cache.spacing.is_close())
    }

    /// Returns the [markers to watch](Timeline::to_watch) for the stream's progress, and whether an event is to be
    /// recorded that no free and no user's call records: one has failed, and nothing else proves the memory. If there is
    /// no marker, `waker` is called when one is published that another thread records now.
    pub(crate) fn to_watch(&self, waker: &Waker) -> (SmallVec<[Arc<Marker>; 3]>, bool) {
        // At one moment: a ticket that is closed later covers nothing that no event covered then.
        let (closed, is_dirty) = self.cache.last_closed();
        let to_watch = self.timeline.to_watch(closed, waker);
        let is_unproven = is_dirty && to_watch.iter().all(|marker| marker.has_erred());
        let owes_record = is_unproven && !self.is_external && !self.cache.is_captured();
        (to_watch, owes_record)
    }

    /// Records an event for the blocks freed so far, unless an event covers them already.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the blocks stay pending, and the next seal tries again.
    pub(crate) fn seal(
        &self,
        device: &dyn Device,
        events: &Arc<Events>,
    ) -> Result<Option<Arc<Marker>>, DeviceError> {
        let closed = self.cache.close(true);
        closed
            .map(|closed| self.record(closed, device, events))
            .transpose()
    }

    /// Records an event whether or not anything was freed: a point for a caller to wait for.
    ///
    /// # Errors
    /// Returns an error if the device call fails, or the stream is being captured.
    pub(crate) fn mark(
        &self,
        device: &dyn Device,
        events: &Arc<Events>,
    ) -> Result<Arc<Marker>, DeviceError> {
        if self.is_host() {
            return Ok(self.host_marker(device));
        }
        let closed = self.cache.close(false).ok_or_else(|| refused("record"))?;
        self.record(closed, device, events)
    }

    /// Returns the host's present point. It has no event: work submitted later comes after it anyway.
    fn host_marker(&self, device: &dyn Device) -> Arc<Marker> {
        Arc::new(Marker {
            ticket: self.cache.open_ticket(),
            clock: self.timeline.clock(),
            sealed_at: device.now(),
            expected_at: Duration::ZERO,
            covers_frees: false,
            recorded: None,
            has_erred: AtomicBool::new(false),
        })
    }

    /// Returns whether another stream can be made to wait for the ticket. On an external stream, and on one that is being
    /// captured, that needs an event recorded already.
    pub(crate) fn can_be_awaited(&self, ticket: Ticket) -> bool {
        !(self.is_external || self.cache.is_captured())
            || self.timeline.covering(ticket).is_some()
            || self.timeline.completed() >= ticket
    }

    /// Returns the first marker whose completion proves `ticket`, recording one if there is none yet; `None` when the
    /// ticket is complete.
    ///
    /// # Errors
    /// Returns an error if the device cannot record; on an external stream, also if no event was recorded since the
    /// ticket.
    pub(crate) fn marker_for(
        &self,
        ticket: Ticket,
        device: &dyn Device,
        events: &Arc<Events>,
    ) -> Result<Option<Arc<Marker>>, DeviceError> {
        if let Some(marker) = self.timeline.covering(ticket) {
            return Ok(Some(marker));
        }
        if self.timeline.completed() >= ticket {
            return Ok(None);
        }
        if self.is_external {
            let reason = "no event is recorded yet on this external stream: free a block or call the pool with it first";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("record", kind, reason));
        }
        self.cache.spacing.reset();
        self.mark(device, events)?;
        // Not the marker just recorded: another thread may have published an earlier one meanwhile, and then have
        // submitted work that this record comes after.
        Ok(self.timeline.covering(ticket))
    }

    /// Records an event behind all work submitted to the stream so far.
    fn record_event(&self, events: &Arc<Events>) -> Result<Recorded, DeviceError> {
        let _submission = self.cache.calls.begin("record")?;
        let neighbour = self.neighbour.as_ref();
        let events = neighbour.map_or(events, |neighbour| &neighbour.events);
        // SAFETY: the lane keeps the stream's owner; an external stream is recorded only in calls made with it.
        #[allow(unsafe_code, reason = "device call on the lane's stream")]
        unsafe {
            Events::record(events, self.raw)
        }
    }

    /// Records and publishes a ticket that is closed already: the second half of sealing.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the ticket is then proven by the next event that is recorded.
    pub(crate) fn record(
        &self,
        closed: Closed,
        device: &dyn Device,
        events: &Arc<Events>,
    ) -> Result<Arc<Marker>, DeviceError> {
        // Before the record: every wait that has returned by now was enqueued before the event.
        let clock = self.clock_at(closed);
        match self.record_event(events) {
            Ok(recorded) => Ok(self.publish(closed, clock, recorded, device)),
            Err(error) => {
                self.cache.expect_seal(Ticket::LAST);
                self.timeline.mark_unrecorded(closed.ticket);
                Err(error)
            }
        }
    }

    /// Returns the clock of the stream at a closed ticket, which it includes.
    fn clock_at(&self, closed: Closed) -> Clock {
        let mut clock = self.timeline.clock_so_far();
        clock.join(self.fence(closed.ticket));
        clock
    }

    fn publish(
        &self,
        closed: Closed,
        clock: Clock,
        recorded: Recorded,
        device: &dyn Device,
    ) -> Arc<Marker> {
        let sealed_at = device.now();
        self.timeline.publish(Marker {
            ticket: closed.ticket,
            clock,
            sealed_at,
            expected_at: sealed_at,
            covers_frees: closed.covers_frees,
            recorded: Some(recorded),
            has_erred: AtomicBool::new(false),
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.keep_alive
            .take()
            .into_iter()
            .for_each(Foreign::release);
    }
}
