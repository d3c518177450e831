//! The lane: a stream's front, through which it frees and takes again without asking anybody.
//!
//! What a stream freed it may reuse at once, since its own order protects it. A lane keeps such
//! blocks, up to a bound of bytes and a largest size: larger ones go to the heap, where neighbours
//! merge, but for a few on its [large-block cache]. A request that finds none of its size may have one that is a
//! little larger. On this path one lock is taken, the lane's own, and no shared cache line is written.
//!
//! A freed block [leaves](ref_cache) its count of the stream's owners there as well, for the next one. So the front lies in a
//! [slot] that is recycled, and never given back to the allocator.
//!
//! A lane also numbers the stream's points. Everything freed joins the *open* ticket; closing it
//! opens the next. The order is always: close under the lane's lock, unlock, record, publish. To
//! record first and close after would be wrong: a free in between would be covered by an event older
//! than its last use. In between the ticket is closed and unpublished, and counts as pending.
//!
//! The host's lane is one of work that is over when it is freed: every ticket of it is complete from the
//! start, and nothing of it is ever sealed.
//!
//! An external stream's owner may destroy it whenever none of its calls is under way. So every free closes
//! and records, and nobody records on it, or has it wait, on another's behalf.
//!
//! The lane knows its stream and the device; nothing of the heap's search or of who waits.

mod cache;
mod count;
mod hot_path;
mod large_cache;
mod marker;
mod pace;
mod reap;
mod ref_cache;
mod shards;
mod slot;
mod spacing;
mod state;
mod timeline;

pub(crate) use cache::CachedBlock;
pub(crate) use count::LaneFigures;
pub(crate) use hot_path::{Entered, Freed, Miss, Use, Wanted};
pub(crate) use marker::{Events, Marker};
pub(crate) use ref_cache::RefCache;
pub(crate) use slot::{Guarded, Leased, Slot, Slots};
pub(crate) use state::Closed;
pub(crate) use timeline::Timeline;

use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceStream, RawStream};
use crate::heap::{BlockId, Fence};
use crate::id::{StreamId, Ticket};
use crate::measure::Waits;
use crate::sync::{Arc, Ordering, SharedState, plain};
use shards::Shards;
use spacing::Spacing;
use state::StreamState;
use std::any::Any;
use std::time::Duration;

/// Bounds of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes kept at most.
    pub(crate) bytes: u64,
    /// Largest block kept.
    pub(crate) largest: u64,
    /// Bytes of larger blocks kept at most.
    pub(crate) large_cache: u64,
    /// Unsealed bytes above which a free seals.
    pub(crate) unsealed: u64,
    /// It may be more where frees come close to each other.
    pub(crate) may_widen: bool,
    /// Threads have caches of their own from the start, and not only once they have met.
    pub(crate) is_sharded: bool,
}

impl Bounds {
    /// Whether there may be caches beside the front's. What the host freed is complete as it is.
    fn has_shards(self, is_host: bool) -> bool {
        self.bytes > 0 && !is_host
    }
}

/// A registered stream; see the [module](self). On cache lines of its own: the hot path reads it, and what lies beside it may
/// be another stream's.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Lane {
    pub(crate) id: StreamId,
    pub(crate) raw: RawStream,
    /// Whether a wait may be inserted into the stream.
    pub(crate) takes_waits: bool,
    /// The stream is somebody else's, and used only in calls that are made with it: each free seals, and nobody
    /// seals it for others.
    pub(crate) is_external: bool,
    bounds: Bounds,
    spacing: Spacing,
    state: Leased,
    shards: Shards,
    pub(crate) timeline: Timeline,
    /// How requests for the stream waited.
    pub(crate) waits: Waits,
    /// The stream's owner: while the lane lives, its handle is not recycled.
    keep_alive: plain::Arc<dyn Any + Send + Sync>,
}

/// A grant for a lane's stream is on its way.
#[derive(Debug)]
pub(crate) struct Visit<'a>(&'a Lane);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.state.lock().visitors -= 1;
    }
}

impl Lane {
    pub(crate) fn new(
        id: StreamId,
        stream: &dyn DeviceStream,
        mut bounds: Bounds,
        slot: Leased,
    ) -> Self {
        let raw = stream.raw();
        let is_external = stream.external_id().is_some();
        let is_host = raw == RawStream::HOST;
        if is_external {
            bounds.unsealed = 0;
        } else if is_host {
            // There is nothing to be sealed, however much is freed.
            bounds.unsealed = u64::MAX;
        }
        let state = StreamState::new(bounds.largest, is_host);
        let shards = Shards::new();
        if bounds.is_sharded && bounds.has_shards(is_host) {
            shards.make_shards(bounds, state.open);
        }
        slot.lock().state = state;
        Self {
            id,
            raw,
            takes_waits: stream.takes_waits(),
            is_external,
            bounds,
            spacing: Spacing::new(bounds.unsealed, bounds.may_widen),
            state: slot,
            shards,
            timeline: Timeline::new(if is_host { Ticket::LAST } else { Ticket::ZERO }),
            waits: Waits::default(),
            keep_alive: stream.keep_alive(),
        }
    }

    /// The slot that its front is in, of who does not know what is left there.
    pub(crate) fn slot(&self) -> &Slot {
        &self.state
    }

    /// Whether the stream is the host: what it did is over when it goes on.
    pub(crate) fn is_host(&self) -> bool {
        self.raw == RawStream::HOST
    }

    /// Whether nobody else holds the stream.
    pub(crate) fn is_abandoned(&self, device: &dyn Device) -> bool {
        device.is_abandoned(&self.keep_alive)
    }

    pub(crate) fn fence(&self, ticket: Ticket) -> Fence {
        Fence {
            stream: self.id,
            ticket,
        }
    }

    /// Whether more was freed than may be left without an event.
    pub(crate) fn owes_seal(&self) -> bool {
        self.state.lock().unsealed > self.spacing.bound()
    }

    /// Notes the last use of a block on this stream that is freed through the heap.
    pub(crate) fn note_use(&self, bytes: u64, gate: &SharedState) -> Freed {
        let mut state = self.state.lock();
        let ticket = state.note_use(bytes);
        let seals = gate.load(Ordering::Relaxed) != 0 || state.unsealed > self.spacing.bound();
        Freed {
            ticket,
            is_kept: false,
            closed: state.close_if(seals, &self.shards),
        }
    }

    /// Memory waits for a ticket under which nothing may have been freed: if it is open, it must be
    /// sealed for that.
    pub(crate) fn expect_seal(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        state.is_dirty |= ticket >= state.open && !state.is_host;
    }

    /// Whether a free that seals should [ask](Timeline::is_sharded) how far the stream is.
    pub(crate) fn is_sharded(&self) -> bool {
        self.timeline.is_sharded(self.spacing.is_close())
    }

    /// A free has sealed.
    pub(crate) fn note_sealed(&self, at: Duration) {
        self.spacing.note_sealed(at);
    }

    /// Somebody else wants what was freed: the next frees are sealed soon.
    pub(crate) fn note_wanted(&self) {
        self.spacing.reset();
    }

    /// The open ticket: work submitted up to now is proven by it, or by a later one.
    pub(crate) fn open_ticket(&self) -> Ticket {
        self.state.lock().open
    }

    /// Whether anything is in the cache.
    pub(crate) fn is_keeping(&self) -> bool {
        let is_in_front = || self.state.lock().cache.bytes() > 0;
        let mut shards = self.shards.all();
        is_in_front() || shards.any(|shard| shard.lock().cache().bytes() > 0)
    }

    /// Takes everything out of the caches.
    pub(crate) fn drain(&self) -> Vec<CachedBlock> {
        let cached = self.state.lock().cache.drain();
        self.with_shards(cached)
    }

    /// The same, but for what is on the large-block cache for less than `age`.
    pub(crate) fn flush_older(&self, now: Duration, age: Duration) -> Vec<CachedBlock> {
        let cached = self.state.lock().cache.flush_older(now, age);
        self.with_shards(cached)
    }

    /// Takes what is on the large-block cache.
    pub(crate) fn flush_large_cache(&self) -> Vec<CachedBlock> {
        self.state.lock().cache.flush_large_cache()
    }

    /// With everything that the sides keep.
    fn with_shards(&self, mut cached: Vec<CachedBlock>) -> Vec<CachedBlock> {
        for shard in self.shards.all() {
            cached.append(&mut shard.lock().drain());
        }
        cached
    }

    /// Takes everything out of the cache of a stream that neither took from it nor closed a ticket since
    /// the last time that this was asked.
    pub(crate) fn flush_if_idle(&self) -> Vec<CachedBlock> {
        let mut shards = self.shards.all();
        let hits_aside = shards
            .by_ref()
            .map(|shard| shard.lock().counts.hits)
            .sum::<u64>();
        let mut state = self.state.lock();
        let look = (state.book.hits() + hits_aside, state.open);
        let is_idle = std::mem::replace(&mut state.last_look, look) == look;
        if !is_idle {
            return Vec::new();
        }
        let cached = state.cache.drain();
        drop(state);
        self.with_shards(cached)
    }

    /// The ticket under which a block is kept; none, if it is not.
    pub(crate) fn ticket_of(&self, id: BlockId) -> Option<Ticket> {
        let mut all = self.cached().into_iter();
        all.find(|(cached, _)| *cached == id)
            .map(|(_, ticket)| ticket)
    }

    /// All blocks that are kept, with their tickets.
    pub(crate) fn cached(&self) -> Vec<(BlockId, Ticket)> {
        let named = |cached: CachedBlock| (cached.id, cached.ticket);
        let mut all: Vec<_> = self.state.lock().cache.all().map(named).collect();
        for shard in self.shards.all() {
            all.extend(shard.lock().cache().all().map(named));
        }
        all
    }

    /// Keeps nothing any more.
    pub(crate) fn retire(&self) -> Vec<CachedBlock> {
        let cached = {
            let mut state = self.state.lock();
            state.is_retired = true;
            state.cache.drain()
        };
        self.with_shards(cached)
    }

    /// Whether the stream is gone, with all that was freed on it: nothing unsealed, and every ticket that
    /// was ever closed complete. (That no marker is on its way would not do: a closed ticket may not be
    /// published yet.)
    pub(crate) fn is_done(&self) -> bool {
        let completed = self.timeline.completed();
        let state = self.state.lock();
        let is_dirty = state.is_dirty || self.shards.is_dirty();
        let is_quiet = !is_dirty && state.visitors == 0;
        state.is_retired && is_quiet && completed >= state.open.previous()
    }

    /// Whether the stream's last handle is gone.
    pub(crate) fn is_retired(&self) -> bool {
        self.state.lock().is_retired
    }

    /// Keeps the lane from being done, for as long as the answer is held.
    pub(crate) fn visit(&self) -> Visit<'_> {
        self.state.lock().visitors += 1;
        Visit(self)
    }

    /// Whether something was freed that no event covers.
    pub(crate) fn is_dirty(&self) -> bool {
        self.state.lock().is_dirty || self.shards.is_dirty()
    }

    /// Records an event for what was freed so far, if no event covers it yet.
    ///
    /// # Errors
    /// When the device cannot; what was freed stays pending, and the next seal tries again.
    pub(crate) fn seal(
        &self,
        device: &dyn Device,
        events: &Arc<Events>,
    ) -> Result<Option<Arc<Marker>>, DeviceError> {
        let closed = {
            let mut state = self.state.lock();
            let is_dirty = state.is_dirty || self.shards.is_dirty();
            state.close_if(is_dirty, &self.shards)
        };
        closed
            .map(|closed| self.record(closed, device, events))
            .transpose()
    }

    /// Records an event whatever was freed: a point that somebody wants to see passed.
    ///
    /// # Errors
    /// When the device cannot.
    pub(crate) fn mark(
        &self,
        device: &dyn Device,
        events: &Arc<Events>,
    ) -> Result<Arc<Marker>, DeviceError> {
        if self.is_host() {
            return Ok(self.host_marker(device));
        }
        let closed = self.state.lock().close(&self.shards);
        self.record(closed, device, events)
    }

    /// The host's present point. Nobody waits for it: what the device is given later comes after it.
    fn host_marker(&self, device: &dyn Device) -> Arc<Marker> {
        Arc::new(Marker {
            stream: self.id,
            ticket: self.open_ticket(),
            clock: self.timeline.clock(),
            sealed_at: device.now(),
            expected_at: Duration::ZERO,
            covers_frees: false,
            recorded: None,
        })
    }

    /// Whether another stream can be made to wait for the ticket: of an external stream, once it is sealed.
    pub(crate) fn can_be_awaited(&self, ticket: Ticket) -> bool {
        !self.is_external
            || self.timeline.covering(ticket).is_some()
            || self.timeline.completed() >= ticket
    }

    /// A marker whose completion proves `ticket`; a new one if none is on its way. `None` when the
    /// ticket is complete.
    ///
    /// # Errors
    /// When the device cannot record; of an external stream, when its owner's calls have not.
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
            // Whoever asks, the stream may be gone.
            let reason = "no event was recorded yet on a stream of somebody else's: call again when it was used";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("record", kind, reason));
        }
        self.note_wanted();
        self.mark(device, events).map(Some)
    }

    /// The second half of sealing: record and publish a ticket that is closed already.
    ///
    /// # Errors
    /// When the device cannot; the ticket is then proven by the next one that is recorded.
    pub(crate) fn record(
        &self,
        closed: Closed,
        device: &dyn Device,
        events: &Arc<Events>,
    ) -> Result<Arc<Marker>, DeviceError> {
        let Closed {
            ticket,
            covers_frees,
        } = closed;
        // Before the record: a wait that returned by now was submitted before the event.
        let mut clock = self.timeline.clock();
        clock.join(self.fence(ticket));
        match Events::record(events, self.raw) {
            Ok(recorded) => {
                let sealed_at = device.now();
                Ok(self.timeline.publish(Marker {
                    stream: self.id,
                    ticket,
                    clock,
                    sealed_at,
                    expected_at: sealed_at,
                    covers_frees,
                    recorded: Some(recorded),
                }))
            }
            Err(error) => {
                self.state.lock().is_dirty = true;
                Err(error)
            }
        }
    }
}
