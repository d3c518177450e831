//! A registered stream, as the pool has it.

use crate::active::{ActiveStreams, Activity};
use crate::block::Closed;
use crate::cache::CacheBounds;
use crate::count::LaneFigures;
use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceId, RawStream, StreamProperties};
use crate::heap::Mark;
use crate::heap::{Clock, Fence};
use crate::host_tasks::HostTasks;
use crate::id::{StreamId, StreamLabel, Ticket};
use crate::marker::{Events, Marker, Recorded};
use crate::measure::Waits;
use crate::neighbour::Neighbour;
use crate::own_calls::refused;
use crate::stream_cache::{Gate, StreamCache};
use crate::sync::plain::AtomicBool;
use crate::sync::{Arc, Foreign, Ordering, SharedFlag, plain};
use crate::timeline::Timeline;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::task::Waker;
use std::time::Duration;

/// A registered stream; see the [crate](crate). It has its own cache lines, because the hot path reads it.
#[repr(align(128))]
pub struct Lane {
    /// The pool's name of the stream.
    pub id: StreamId,
    /// The device's name of it.
    pub raw: RawStream,
    /// Whether a device-side wait can be enqueued on the stream.
    pub takes_waits: bool,
    /// The stream belongs to another library, and is used only inside calls that name it: each free seals, and the pool
    /// does not seal it for other streams.
    pub is_external: bool,
    /// The number of such a stream, which no other one ever has.
    pub external_id: Option<u64>,
    /// The freed blocks that the stream can reuse.
    pub cache: StreamCache,
    /// The points that the stream has completed.
    pub timeline: Timeline,
    /// The stream's name, once it has one.
    pub name: plain::OnceLock<plain::Arc<str>>,
    /// The waiting times of requests for the stream.
    pub waits: Waits,
    /// The host tasks that hold the stream.
    pub host_tasks: HostTasks,
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
    /// Makes the lane of a stream, which `owner` keeps usable.
    pub fn new(
        id: StreamId,
        stream: StreamProperties,
        owner: plain::Arc<dyn Any + Send + Sync>,
        mut bounds: CacheBounds,
        gate: Gate,
        active: &Arc<ActiveStreams>,
    ) -> Self {
        let raw = stream.raw;
        let is_external = stream.external_id.is_some();
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
            takes_waits: stream.takes_waits,
            is_external,
            external_id: stream.external_id,
            cache: StreamCache::new(
                bounds,
                gate,
                Activity::new(active.clone(), id),
                is_host,
                is_external,
            ),
            timeline: Timeline::new(if is_host { Ticket::LAST } else { Ticket::ZERO }),
            name: plain::OnceLock::new(),
            waits: Waits::default(),
            host_tasks: HostTasks::new(),
            neighbour: None,
            keep_alive: Some(Foreign::new(owner)),
            is_for_copies: SharedFlag::new(false),
        }
    }

    /// Makes this the lane of a stream of another device.
    pub fn on(mut self, neighbour: Option<Arc<Neighbour>>) -> Self {
        self.neighbour = neighbour;
        self
    }

    /// Notes whether only copies are noted on the lane.
    pub fn set_for_copies(&self, is_for_copies: bool) {
        self.is_for_copies.store(is_for_copies, Ordering::Release);
    }

    /// Returns whether the stream is one of that other device, and only copies are noted on it.
    pub fn is_for_copies_of(&self, device: DeviceId) -> bool {
        let neighbour = self.neighbour.as_ref();
        neighbour.is_some_and(|neighbour| neighbour.device.id() == device) && self.is_for_copies()
    }

    /// Returns whether only copies are noted on the stream, which is of another pool.
    pub fn is_for_copies(&self) -> bool {
        self.is_for_copies.load(Ordering::Acquire)
    }

    /// Returns whether the stream is one of another device than the pool's.
    pub fn is_foreign(&self) -> bool {
        self.neighbour.is_some()
    }

    /// Returns the stream's device, given that of the pool.
    pub fn device<'a>(&'a self, own: &'a plain::Arc<dyn Device>) -> &'a plain::Arc<dyn Device> {
        let neighbour = self.neighbour.as_ref();
        neighbour.map_or(own, |neighbour| &neighbour.device)
    }

    /// Returns an owner that keeps the device's stream usable.
    pub fn owner(&self) -> &plain::Arc<dyn Any + Send + Sync> {
        self.keep_alive
            .as_ref()
            .expect("present until the lane is dropped")
    }

    /// Returns the stream's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.get().map(|name| &**name)
    }

    /// Returns the name of the stream in texts.
    pub fn label(&self) -> StreamLabel<'_> {
        StreamLabel {
            id: self.id,
            name: self.name(),
        }
    }

    /// Returns whether the stream is the host: its work is over when its call returns.
    pub fn is_host(&self) -> bool {
        self.raw == RawStream::HOST
    }

    /// Returns whether only the pool still owns the device's stream.
    pub fn is_abandoned(&self, device: &dyn Device) -> bool {
        device.is_abandoned(self.owner())
    }

    /// Returns what a block that was freed at this point waits for.
    pub fn fence(&self, ticket: Ticket) -> Fence {
        Fence {
            stream: self.id,
            ticket,
        }
    }

    /// Returns whether the stream is gone and all its freed memory is complete: nothing is unsealed, and every ticket
    /// that was ever closed is complete. (That no marker is incomplete would not be enough: a closed ticket may not be
    /// published yet.)
    pub fn is_done(&self) -> bool {
        // Read first: a ticket closed after this is not taken for complete.
        let completed = self.timeline.completed();
        self.cache.is_done(completed)
    }

    /// Returns the counters and the cached bytes, with the high-water mark since `mark`.
    pub fn figures(&self, mark: Mark) -> LaneFigures {
        // Read first: a block freed under a ticket that completes later does not count as complete.
        let completed = self.timeline.completed();
        self.cache.figures(mark, completed)
    }

    /// Returns the number of cached blocks that may be incomplete, in constant time: none if all that was freed on the
    /// stream is known to be complete, or else all.
    pub fn pending_blocks(&self) -> usize {
        // Read first, as in `figures`.
        let completed = self.timeline.completed();
        self.cache.pending_blocks(completed)
    }

    /// Returns whether a free that seals should first [query](Timeline::should_query) how far the stream is.
    pub fn should_query(&self) -> bool {
        self.timeline.should_query(self.cache.spacing.is_close())
    }

    /// Returns the [markers to watch](Timeline::to_watch) for the stream's progress, and whether an event is to be
    /// recorded that no free and no user's call records: one has failed, and nothing else proves the memory. If there is
    /// no marker, `waker` is called when one is published that another thread records now.
    pub fn to_watch(&self, waker: &Waker) -> (SmallVec<[Arc<Marker>; 3]>, bool) {
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
    pub fn seal(
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
    pub fn mark(
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
    pub fn can_be_awaited(&self, ticket: Ticket) -> bool {
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
    pub fn marker_for(
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
    pub fn record(
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
