//! The lane: a stream's front, through which it frees and takes again without asking anybody.
//!
//! What a stream freed it may reuse at once, since its own order protects it. A lane keeps such
//! blocks, up to a bound of bytes and a largest size: larger ones go to the ledger, where neighbours
//! merge, but for a few on its [shelf]. On this path one lock is taken, the lane's own, and no shared cache line is
//! written.
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
//! The lane knows its stream and the device; nothing of the ledger's search or of who waits.

mod cache;
mod count;
mod crowd;
mod marker;
mod pace;
mod shelf;
mod timeline;

pub(crate) use cache::Kept;
pub(crate) use count::Counts;
pub(crate) use marker::{Events, Marker};
pub(crate) use timeline::Timeline;

use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceStream, RawStream};
use crate::id::{StreamId, Ticket};
use crate::ledger::{BlockId, Fence};
use crate::measure::Waits;
use crate::sync::{Arc, Guard, Guards, Mutex, Ordering, SharedState, plain};
use cache::Cache;
use count::Book;
use crossbeam_utils::CachePadded;
use crowd::Crowd;
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
    pub(crate) shelf: u64,
    /// Unsealed bytes above which a free seals.
    pub(crate) unsealed: u64,
    /// Threads have caches of their own from the start, and not only once they have met.
    pub(crate) is_crowded: bool,
}

impl Bounds {
    /// Whether there may be caches beside the front's. What the host freed is complete as it is.
    fn has_sides(self, is_host: bool) -> bool {
        self.bytes > 0 && !is_host
    }
}

/// A registered stream; see the [module](self).
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: StreamId,
    pub(crate) raw: RawStream,
    /// Whether a wait may be inserted into the stream.
    pub(crate) takes_waits: bool,
    /// The stream is somebody else's, and used only in calls that are made with it: each free seals, and nobody
    /// seals it for others.
    pub(crate) is_external: bool,
    bounds: Bounds,
    front: CachePadded<Mutex<Front>>,
    crowd: Crowd,
    pub(crate) timeline: Timeline,
    /// How requests for the stream waited.
    pub(crate) waits: Waits,
    /// The stream's owner: while the lane lives, its handle is not recycled.
    keep_alive: plain::Arc<dyn Any + Send + Sync>,
}

#[derive(Debug)]
struct Front {
    cache: Cache,
    is_host: bool,
    open: Ticket,
    /// Bytes freed under the open ticket and not taken again by the lane.
    unsealed: u64,
    /// Something was freed under the open ticket, or its last record failed.
    is_dirty: bool,
    /// The stream's last handle is gone: nothing is kept any more.
    is_retired: bool,
    /// Who has a grant for the stream on its way.
    visitors: u32,
    book: Book,
    /// The hits and the open ticket of the last look at whether the lane is idle.
    last_look: (u64, Ticket),
}

/// A block that is freed, as the lane and the engine need to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// What was not asked for of the bytes.
    pub(crate) rounding: u32,
}

/// What became of a free.
#[derive(Debug)]
#[must_use = "a block that is not kept goes to the ledger, and a closed ticket is recorded"]
pub(crate) struct Freed {
    pub(crate) ticket: Ticket,
    pub(crate) is_kept: bool,
    /// The ticket that this free closed: its event must be recorded now.
    pub(crate) closed: Option<Closed>,
}

/// A ticket under which nothing is freed any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) ticket: Ticket,
    /// Whether anything was.
    covers_frees: bool,
}

/// A grant for a lane's stream is on its way.
#[derive(Debug)]
pub(crate) struct Visit<'a>(&'a Lane);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.front.lock().visitors -= 1;
    }
}

impl Front {
    /// What is kept of that size, unless somebody waits for memory.
    #[inline]
    fn pop(&mut self, bytes: u64, gate: &SharedState) -> Option<Kept> {
        if gate.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let kept = self.cache.pop(bytes)?;
        if kept.ticket == self.open {
            self.unsealed -= kept.bytes;
        }
        Some(kept)
    }

    /// The freeing stream's part, before anything is decided.
    fn note_use(&mut self, bytes: u64) -> Ticket {
        self.unsealed = self.unsealed.saturating_add(bytes);
        self.is_dirty = !self.is_host;
        self.open
    }

    fn close(&mut self, crowd: &Crowd) -> Closed {
        let (ticket, was_dirty) = (self.open, self.is_dirty);
        self.open = ticket.next();
        self.unsealed = 0;
        self.is_dirty = false;
        let covers_frees = crowd.note_closed(self.open) || was_dirty;
        Closed {
            ticket,
            covers_frees,
        }
    }

    #[inline]
    fn close_if(&mut self, condition: bool, crowd: &Crowd) -> Option<Closed> {
        if condition {
            self.close_unless_host(crowd)
        } else {
            None
        }
    }

    #[cold]
    #[inline(never)]
    fn close_unless_host(&mut self, crowd: &Crowd) -> Option<Closed> {
        (!self.is_host).then(|| self.close(crowd))
    }
}

impl Lane {
    pub(crate) fn new(id: StreamId, stream: &dyn DeviceStream, mut bounds: Bounds) -> Self {
        let raw = stream.raw();
        let is_external = stream.external_id().is_some();
        if is_external {
            bounds.unsealed = 0;
        }
        let is_host = raw == RawStream::HOST;
        let front = Front {
            cache: Cache::new(bounds.largest),
            is_host,
            open: Ticket::ZERO.next(),
            unsealed: 0,
            is_dirty: false,
            is_retired: false,
            visitors: 0,
            book: Book::default(),
            last_look: (0, Ticket::ZERO),
        };
        let crowd = Crowd::new();
        if bounds.is_crowded && bounds.has_sides(is_host) {
            crowd.make_sides(bounds, front.open);
        }
        Self {
            id,
            raw,
            takes_waits: stream.takes_waits(),
            is_external,
            bounds,
            front: CachePadded::new(Mutex::new(Guards::Lane, front)),
            crowd,
            timeline: Timeline::new(if is_host { Ticket::LAST } else { Ticket::ZERO }),
            waits: Waits::default(),
            keep_alive: stream.keep_alive(),
        }
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

    /// Rung 1: what this stream freed, at once. Nothing while the gate is not open: the waiters'
    /// claim on memory comes before a warm cache. `rounding` is what was not asked for of the bytes.
    #[inline(always)]
    pub(crate) fn take(&self, bytes: u64, rounding: u32, gate: &SharedState) -> Option<Kept> {
        if bytes > self.bounds.largest && bytes > self.bounds.shelf {
            // Never kept: there is nothing to lock for.
            return None;
        }
        if self.crowd.are_made() {
            return self.take_aside(bytes, rounding, gate);
        }
        let mut front = self.enter();
        let kept = front.pop(bytes, gate)?;
        front.book.note_hit(bytes, rounding);
        Some(kept)
    }

    /// The front, of who may meet another there.
    #[inline]
    fn enter(&self) -> Guard<'_, Front> {
        if cfg!(weirpool_loom) {
            // Models have sides from the start, or none.
            return self.front.lock();
        }
        match self.front.try_lock() {
            Some(front) => front,
            None => self.enter_after_another(),
        }
    }

    #[cold]
    fn enter_after_another(&self) -> Guard<'_, Front> {
        let front = self.front.lock();
        if self.crowd.note_meeting() && self.bounds.has_sides(front.is_host) {
            self.crowd.make_sides(self.bounds, front.open);
        }
        front
    }

    #[cold]
    #[inline(never)]
    fn take_aside(&self, bytes: u64, rounding: u32, gate: &SharedState) -> Option<Kept> {
        let side = self.crowd.own()?;
        {
            let mut side = side.lock();
            if gate.load(Ordering::Relaxed) != 0 {
                return None;
            }
            let kept = side.take(bytes, rounding);
            if kept.is_some() {
                return kept;
            }
        }
        let kept = self.front.lock().pop(bytes, gate)?;
        side.lock().counts.note_hit(bytes, rounding);
        Some(kept)
    }

    /// Frees a block that was used on this stream alone.
    ///
    /// The gate is read inside the critical section: who raises it drains the lane afterwards, so a
    /// block is either drained or not kept.
    ///
    /// A block too large for a stack may go on the shelf, if there is a `now` for it.
    #[inline]
    pub(crate) fn free(&self, block: &Use, now: Option<Duration>, gate: &SharedState) -> Freed {
        if self.crowd.are_made() {
            return self.free_aside(block, now, gate);
        }
        let mut front = self.enter();
        front.book.note_free(block.bytes, block.rounding);
        self.keep(front, block, now, gate)
    }

    /// Whether a block of so many bytes may be kept on the shelf.
    #[inline]
    pub(crate) fn shelves(&self, bytes: u64) -> bool {
        bytes > self.bounds.largest && bytes <= self.bounds.shelf
    }

    #[cold]
    #[inline(never)]
    fn free_aside(&self, block: &Use, now: Option<Duration>, gate: &SharedState) -> Freed {
        let side = self.crowd.own();
        let kept = side.and_then(|side| self.crowd.keep(side, block, self.bounds, gate));
        let Some(kept) = kept else {
            return self.keep(self.front.lock(), block, now, gate);
        };
        let seals = kept.unsealed > self.bounds.unsealed;
        let close = || self.front.lock().close_if(true, &self.crowd);
        Freed {
            ticket: kept.ticket,
            is_kept: true,
            closed: seals.then(close).flatten(),
        }
    }

    #[inline]
    fn keep(
        &self,
        mut front: Guard<'_, Front>,
        block: &Use,
        now: Option<Duration>,
        gate: &SharedState,
    ) -> Freed {
        let Use {
            id, address, bytes, ..
        } = *block;
        let ticket = front.note_use(bytes);
        let is_bypassed = gate.load(Ordering::Relaxed) != 0;
        let kept = Kept {
            id,
            address,
            bytes,
            ticket,
        };
        let is_stacked = !is_bypassed && front.cache.has_room(bytes, self.bounds.bytes);
        if is_stacked {
            front.cache.push(kept);
        }
        let is_shelved = !is_bypassed && now.is_some_and(|now| self.shelve(&mut front, kept, now));
        // What is on the shelf is sealed by the next call for the stream that does not take it from there; unless there
        // may be none.
        let is_put_off = is_shelved && !self.is_external;
        let is_due = front.unsealed > self.bounds.unsealed && !is_put_off;
        Freed {
            ticket,
            is_kept: is_stacked || is_shelved,
            closed: front.close_if(is_bypassed || is_due, &self.crowd),
        }
    }

    #[cold]
    fn shelve(&self, front: &mut Front, kept: Kept, now: Duration) -> bool {
        front.cache.shelve(kept, now, self.bounds.shelf)
    }

    /// Whether more was freed than may be left without an event.
    pub(crate) fn owes_seal(&self) -> bool {
        self.front.lock().unsealed > self.bounds.unsealed
    }

    /// Notes the last use of a block on this stream that is freed through the ledger.
    pub(crate) fn note_use(&self, bytes: u64, gate: &SharedState) -> Freed {
        let mut front = self.front.lock();
        let ticket = front.note_use(bytes);
        let seals = gate.load(Ordering::Relaxed) != 0 || front.unsealed > self.bounds.unsealed;
        Freed {
            ticket,
            is_kept: false,
            closed: front.close_if(seals, &self.crowd),
        }
    }

    /// Memory waits for a ticket under which nothing may have been freed: if it is open, it must be
    /// sealed for that.
    pub(crate) fn expect_seal(&self, ticket: Ticket) {
        let mut front = self.front.lock();
        front.is_dirty |= ticket >= front.open && !front.is_host;
    }

    /// The open ticket: work submitted up to now is proven by it, or by a later one.
    pub(crate) fn open_ticket(&self) -> Ticket {
        self.front.lock().open
    }

    /// Whether anything is in the cache.
    pub(crate) fn is_keeping(&self) -> bool {
        let is_in_front = || self.front.lock().cache.bytes() > 0;
        let mut sides = self.crowd.all();
        is_in_front() || sides.any(|side| side.lock().cache().bytes() > 0)
    }

    /// Takes everything out of the caches.
    pub(crate) fn drain(&self) -> Vec<Kept> {
        let kept = self.front.lock().cache.drain();
        self.with_sides(kept)
    }

    /// The same, but for what is on the shelf for less than `age`.
    pub(crate) fn drain_older(&self, now: Duration, age: Duration) -> Vec<Kept> {
        let kept = self.front.lock().cache.drain_older(now, age);
        self.with_sides(kept)
    }

    /// Takes what is on the shelf.
    pub(crate) fn drain_shelf(&self) -> Vec<Kept> {
        self.front.lock().cache.drain_shelf()
    }

    /// With everything that the sides keep.
    fn with_sides(&self, mut kept: Vec<Kept>) -> Vec<Kept> {
        for side in self.crowd.all() {
            kept.append(&mut side.lock().drain());
        }
        kept
    }

    /// Takes everything out of the cache of a stream that neither took from it nor closed a ticket since
    /// the last time that this was asked.
    pub(crate) fn drain_if_idle(&self) -> Vec<Kept> {
        let mut sides = self.crowd.all();
        let hits_aside = sides
            .by_ref()
            .map(|side| side.lock().counts.hits)
            .sum::<u64>();
        let mut front = self.front.lock();
        let look = (front.book.hits() + hits_aside, front.open);
        let is_idle = std::mem::replace(&mut front.last_look, look) == look;
        if !is_idle {
            return Vec::new();
        }
        let kept = front.cache.drain();
        drop(front);
        self.with_sides(kept)
    }

    /// The ticket under which a block is kept; none, if it is not.
    pub(crate) fn ticket_of(&self, id: BlockId) -> Option<Ticket> {
        let mut all = self.kept().into_iter();
        all.find(|(kept, _)| *kept == id).map(|(_, ticket)| ticket)
    }

    /// All blocks that are kept, with their tickets.
    pub(crate) fn kept(&self) -> Vec<(BlockId, Ticket)> {
        let named = |kept: Kept| (kept.id, kept.ticket);
        let mut all: Vec<_> = self.front.lock().cache.all().map(named).collect();
        for side in self.crowd.all() {
            all.extend(side.lock().cache().all().map(named));
        }
        all
    }

    /// Keeps nothing any more.
    pub(crate) fn retire(&self) -> Vec<Kept> {
        let kept = {
            let mut front = self.front.lock();
            front.is_retired = true;
            front.cache.drain()
        };
        self.with_sides(kept)
    }

    /// Whether the stream is gone, with all that was freed on it: nothing unsealed, and every ticket that
    /// was ever closed complete. (That no marker is on its way would not do: a closed ticket may not be
    /// published yet.)
    pub(crate) fn is_done(&self) -> bool {
        let completed = self.timeline.completed();
        let front = self.front.lock();
        let is_dirty = front.is_dirty || self.crowd.is_dirty();
        let is_quiet = !is_dirty && front.visitors == 0;
        front.is_retired && is_quiet && completed >= front.open.previous()
    }

    /// Whether the stream's last handle is gone.
    pub(crate) fn is_retired(&self) -> bool {
        self.front.lock().is_retired
    }

    /// Keeps the lane from being done, for as long as the answer is held.
    pub(crate) fn visit(&self) -> Visit<'_> {
        self.front.lock().visitors += 1;
        Visit(self)
    }

    /// Whether something was freed that no event covers.
    pub(crate) fn is_dirty(&self) -> bool {
        self.front.lock().is_dirty || self.crowd.is_dirty()
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
            let mut front = self.front.lock();
            let is_dirty = front.is_dirty || self.crowd.is_dirty();
            front.close_if(is_dirty, &self.crowd)
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
        let closed = self.front.lock().close(&self.crowd);
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
                self.front.lock().is_dirty = true;
                Err(error)
            }
        }
    }
}
