//! A block's beginning and end, and its growth in place in between.
//!
//! The plain cases are on the hot path: [`Block::of`] makes a block of what the stream's cache granted, and
//! [`Drop`](Block#impl-Drop-for-Block) gives it back. In every other case observers hear of the grant before its user
//! does, and of the free before any other request can be granted the memory.

use super::{Block, Extra};
use crate::device::DeviceError;
use crate::engine::{Allocation, Allocations, Home, Use, order, ordering, pass_through, release};
use crate::error::{AllocError, StreamError};
use crate::handles::CaptureClock;
use crate::handles::{Caller, Ending, Granted, Registration, Reserved, Route};
use crate::heap::{Fences, Placement};
use crate::id::{StreamId, Ticket};
use crate::lane::{BlockEvent, Lane, StreamCache};
use crate::measure::Tag;
use crate::queue::{Demand, Passages};
use crate::stream::Stream;
use crate::sync::{Arc, Guards, Mutex, Rare};
use smallvec::SmallVec;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The beginning.
impl Block {
    /// Makes a block, with nothing but what few blocks have. Its tag is charged already, and observers are told. Every block
    /// is made here.
    #[inline(always)]
    pub(crate) fn of(
        registration: Arc<Registration>,
        allocation: Allocation,
        rounding: u32,
        tag: Option<Tag>,
        extra: Rare<Extra>,
    ) -> Self {
        Self {
            registration: Some(registration),
            allocation: Some(allocation),
            charge: BlockCharge::new(rounding, tag),
            extra: Mutex::new(Guards::Block, extra),
        }
    }

    /// Makes a block of an allocation that its tag, if any, is charged for.
    ///
    /// # Errors
    /// Returns an error if the block cannot be filled as the caller or the pool asks; it is freed then.
    #[inline]
    pub(crate) fn new(
        registration: &Arc<Registration>,
        mut allocation: Allocation,
        demand: &Demand,
        caller: Caller,
    ) -> Result<Self, AllocError> {
        // Before the block is made: a call while it exists would cost every allocation some nanoseconds.
        if let Some(tag) = demand.tag {
            registration.count_granted(tag, allocation.bytes - demand.request.bytes);
        }
        if registration.observers.is_some() || caller.fill.is_some() {
            // With a copy, so that the allocation stays in registers without observers.
            let seen = allocation.seen();
            allocation.after = begin_charged(registration, &seen, demand, caller)?;
        }
        let (rounding, tag) = (demand.rounding_of(allocation.bytes), demand.tag);
        let registration = registration.clone();
        Ok(Self::of(
            registration,
            allocation,
            rounding,
            tag,
            Rare::NONE,
        ))
    }

    /// Makes a block of memory of a reservation, whose tag was charged for it when it was reserved. Memory that was
    /// allocated before `is_restored`: it is not filled.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub(crate) fn reserved(
        registration: &Arc<Registration>,
        mut allocation: Allocation,
        demand: &Demand,
        caller: Caller,
        reserved: &Arc<Reserved>,
        is_restored: bool,
    ) -> Result<Self, AllocError> {
        let (owner, begun) = (registration, &mut allocation);
        begin_reserved(owner, begun, demand, caller, reserved, is_restored)?;
        let extra = Extra {
            reserved: Some(reserved.clone()),
            ..Extra::default()
        };
        let (rounding, extra) = (demand.rounding_of(allocation.bytes), Rare::new(extra));
        let registration = registration.clone();
        Ok(Self::of(registration, allocation, rounding, None, extra))
    }

    /// Makes a block of one that the reservation keeps for the stream, if it has one of that size.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub(crate) fn kept(
        registration: &Arc<Registration>,
        demand: &Demand,
        caller: Caller,
        reserved: &Arc<Reserved>,
    ) -> Option<Result<Self, AllocError>> {
        let rounding = demand.rounding_of(demand.request.bytes);
        let (kept, owner) = reserved.take_kept(registration, demand.request, rounding)?;
        let mut allocation = Allocation::of_cache(kept.block);
        let begun = &mut allocation;
        if let Err(error) = begin_reserved(registration, begun, demand, caller, reserved, false) {
            return Some(Err(error));
        }
        let mut extra: Box<Extra> = kept.spare.downcast().unwrap_or_default();
        extra.reserved = Some(reserved.clone());
        let extra = Rare::of(extra);
        Some(Ok(Self::of(owner, allocation, rounding, None, extra)))
    }
}

/// Tells observers of a grant, and fills the memory, unless it `is_restored`, as the caller or the pool asks. Returns the point of the stream
/// that further streams must come after.
///
/// # Errors
/// Returns the errors of [`Block::new`].
#[cold]
#[inline(never)]
fn begin(
    registration: &Registration,
    allocation: &Allocation,
    demand: &Demand,
    caller: Caller,
    is_restored: bool,
) -> Result<Ticket, DeviceError> {
    let (engine, lane) = (&registration.service.engine, &registration.lane);
    let observers = registration.observers.as_deref();
    if let Some(observers) = observers {
        let granted = Granted {
            allocation,
            demand,
            lane,
            caller,
        };
        observers.granted(engine, granted);
    }
    if is_restored {
        return Ok(allocation.after);
    }
    let block = as_used(allocation, demand.rounding_of(allocation.bytes));
    let filled = registration.fill_granted(allocation.after, block, caller);
    if filled.is_err() {
        let lanes = std::slice::from_ref(lane);
        if let Some(observers) = observers {
            let ending = Ending {
                allocation,
                lanes,
                waits_for: lanes,
                location: None,
                tag: demand.tag,
            };
            observers.ending(engine, ending);
        }
        // Not through the cache: the memory may be a reservation's.
        release::free_many(engine, lane, lanes, None, &block);
    }
    filled
}

/// Calls [`begin`] for memory that the demand's tag was charged for, and uncharges the tag after an error. Returns the
/// error in the caller's type: if the caller converted it, the block would not stay in registers.
#[cold]
#[inline(never)]
fn begin_charged(
    registration: &Registration,
    allocation: &Allocation,
    demand: &Demand,
    caller: Caller,
) -> Result<Ticket, AllocError> {
    let begun = begin(registration, allocation, demand, caller, false);
    if let (Err(_), Some(tag)) = (&begun, demand.tag) {
        registration.service.count_freed(tag, allocation.bytes);
    }
    Ok(begun?)
}

/// Calls [`begin`] for memory that was drawn from a reservation. After an error, the memory is back in the reservation.
#[inline]
fn begin_reserved(
    registration: &Registration,
    allocation: &mut Allocation,
    demand: &Demand,
    caller: Caller,
    reserved: &Reserved,
    is_restored: bool,
) -> Result<(), AllocError> {
    if registration.observers.is_some() || caller.fill.is_some() {
        let demand = Demand {
            tag: reserved.tag(),
            ..*demand
        };
        allocation.after = begin(registration, allocation, &demand, caller, is_restored)
            .inspect_err(|_| reserved.publish_freed(allocation.bytes))?;
    }
    Ok(())
}

/// Growth in place.
impl Block {
    /// Notes that addresses above the block are kept for it. Its free bypasses the cache, so that they become
    /// available.
    pub(crate) fn give_room(&mut self) {
        self.extra.get_mut().get_or_insert_default().has_room = true;
    }

    pub(crate) fn has_room(&self) -> bool {
        self.extra(|extra| extra.has_room.then_some(())).is_some()
    }

    pub(crate) fn is_reserved(&self) -> bool {
        let reserved = self.extra(|extra| extra.reserved.as_ref().map(drop));
        reserved.is_some()
    }

    /// Returns where the memory goes if the block is freed now.
    pub(crate) fn home(&self) -> Home {
        if self.is_outside() {
            return Home::Outside;
        }
        let home = self.extra(|extra| Some(extra.reserved.as_ref()?.home()));
        home.unwrap_or(Home::Pool)
    }

    pub(crate) fn placement_above(&self) -> Placement {
        let allocation = self.allocation();
        Placement::Above(allocation.id, allocation.address + allocation.bytes)
    }

    /// Adds memory that was allocated right above the block.
    ///
    /// # Errors
    /// Returns an error if a further stream cannot be ordered after that grant, or the memory cannot be filled. The
    /// block is unchanged then.
    pub(crate) fn extend(
        &mut self,
        allocations: Allocations,
        demand: &Demand,
        caller: Caller,
    ) -> Result<(), AllocError> {
        let mut extension = allocations.into_iter().next().expect("one was asked for");
        let registration = self.registration().clone();
        let engine = &registration.service.engine;
        let observers = registration.observers.as_deref();
        if let Some(observers) = observers {
            observers.extension_granted(&extension, &registration.lane, caller);
        }
        if let Err(error) = order_after(self, &mut extension, caller) {
            let lanes = std::slice::from_ref(&registration.lane);
            if let Some(observers) = observers {
                observers.extension_freed(&extension, &lanes[0]);
            }
            release::free_uncounted(engine, lanes, None, &as_used(&extension, 0));
            if let Some(tag) = demand.tag {
                registration.service.uncharge(tag, extension.bytes);
            }
            return Err(error.into());
        }
        if let Some(observers) = observers {
            let (allocation, lane) = (self.allocation(), &*registration.lane);
            observers.grown(engine, allocation, extension.bytes, lane, caller);
        }
        engine.store.join_used(self.allocation(), &extension);
        // Only now: a growth that was refused is neither an allocation nor a free.
        let cache = &registration.lane.cache;
        cache.count(BlockEvent::Growth, extension.bytes, demand.rounding);
        if let Some(allocation) = &mut self.allocation {
            allocation.bytes += extension.bytes;
            allocation.after = allocation.after.max(extension.after);
        }
        self.charge.add_rounding(demand.rounding);
        if let Some(tag) = demand.tag {
            registration.count_growth(tag);
        }
        Ok(())
    }
}

/// Fills an extension as the caller or the pool asks, and orders the further streams after its grant.
fn order_after(
    block: &Block,
    extension: &mut Allocation,
    caller: Caller,
) -> Result<(), DeviceError> {
    let registration = block.registration();
    let (after, used) = (extension.after, as_used(extension, 0));
    extension.after = registration.fill_granted(after, used, caller)?;
    let Registration { service, lane, .. } = &**registration;
    let further = block.uses().lanes();
    let mut further = further.iter().filter(|further| further.id != lane.id);
    further.try_for_each(|further| {
        let engine = &service.engine;
        ordering::order_after_grant(engine, lane, extension.after, further)
    })
}

/// The end.
impl Block {
    /// Frees the block in the order of the streams that it was used on, as dropping it does. Returns a future that is
    /// ready when no device work can touch the memory any more. A block that a [graph](crate::CapturedGraph) uses passes
    /// to the graph instead: then the future is ready when its uses and the launches so far are complete.
    #[track_caller]
    pub fn deallocate(mut self) -> Deallocation {
        let passages = self.end(Some(Location::caller()));
        let passages = passages.expect("it has not ended yet");
        // Last: the block is freed even if this panics.
        if let Some(registration) = &self.registration
            && let Some(observers) = &registration.observers
        {
            observers.call_out(Location::caller());
        }
        Deallocation(passages)
    }

    /// Frees the block in the order of `stream`, and of all streams that it was used on, its own included.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::record_use`]. The error holds the block, which is still allocated.
    #[track_caller]
    pub fn deallocate_on(self, stream: &Stream) -> Result<Deallocation, DeallocateError> {
        let noted = match self.expect_awaitable(stream.registration()) {
            Ok(()) => self.argument(stream, super::Access::Always, 0..0).map(drop),
            Err(error) => Err(error),
        };
        match noted {
            Ok(()) => Ok(self.deallocate()),
            Err(reason) => Err(DeallocateError {
                block: self,
                reason,
            }),
        }
    }

    /// Ends the block. Every ending is this one, but for those of plain blocks in [`drop`](Self#impl-Drop-for-Block): a block
    /// that a graph keeps passes to the graph, a plain one of a reservation may stay with it for the stream, and any other is
    /// freed. Returns what a free that is awaited waits for: `awaited_at` is its place. Nothing happens to a block that has
    /// ended already.
    // In line, so that each of the two callers has what it needs of it.
    #[inline(always)]
    fn end(&mut self, awaited_at: Option<&'static Location<'static>>) -> Option<Passages> {
        let is_awaited = awaited_at.is_some();
        if let Some(graph) = self.keeper() {
            let passages = is_awaited.then(|| self.end_uses());
            self.leave_to(&graph);
            return passages;
        }
        self.tell_ending(awaited_at);
        if !is_awaited && self.end_kept() {
            return None;
        }
        let block = self.take()?;
        let lanes = is_awaited.then(|| {
            let extra = self.extra.get_mut().as_mut();
            match extra.map(|extra| extra.deallocated_at = awaited_at) {
                Some(()) => self.uses().lanes_with_launches(),
                None => self.uses().lanes(),
            }
        });
        let fences = self.free(block);
        let passages =
            lanes.map(|lanes| Passages::new(&self.registration().service, &lanes, &fences));
        self.uncharge_freed(block);
        passages
    }

    /// Returns whether the block's stream is being captured in the capture that the block was allocated in, if it was
    /// allocated in one.
    fn is_in(&self, capture: Option<StreamId>) -> bool {
        let order = || self.registration().lane.cache.capture_order();
        capture.is_some_and(|capture| order() == Some(capture))
    }

    /// Frees a block in its capture, which happens at each launch. Returns the point of its stream, which its user cannot
    /// await before the capture is over.
    fn free_captured(&self, clock: &CaptureClock, block: Use) -> Fences {
        let lanes = self.uses().lanes();
        let (inside, outside): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) =
            lanes.iter().partition(|lane| clock.contains(lane));
        let fences = inside
            .into_iter()
            .map(|lane: &Arc<Lane>| clock.fence(lane))
            .collect();
        let Registration { service, lane, .. } = &**self.registration();
        order::free(&service.engine, lane, (fences, &outside), &block);
        Fences::one(lane.id, lane.cache.open_ticket())
    }

    /// Frees a block that has ended. Returns the points that its memory waits for.
    fn free(&mut self, block: Use) -> Fences {
        // Without the lock: few blocks have anything extra.
        let capture = self.extra.get_mut().as_ref();
        let capture = capture.and_then(|extra| extra.capture());
        if let Some(route) = Route::of(self.registration()).filter(|_| self.is_in(capture)) {
            return self.free_captured(&route.clock, block);
        }
        if let Some(outside) = self
            .extra
            .get_mut()
            .as_mut()
            .and_then(|extra| extra.outside.take())
        {
            return self.free_outside(outside, block);
        }
        let extra = self.extra.get_mut();
        let is_plain = extra.is_none();
        let is_of_one_stream = extra
            .as_ref()
            .is_none_or(|extra| extra.is_of_one_stream() && extra.graphs.is_none());
        let Registration { service, lane, .. } = &**self.registration();
        if is_plain {
            return Fences::one(lane.id, release::free(&service.engine, lane, block));
        }
        if is_of_one_stream {
            let lanes = std::slice::from_ref(lane);
            return release::free_many(&service.engine, lane, lanes, None, &block);
        }
        let uses = self.uses();
        let (lanes, earlier) = (uses.lanes_with_launches(), uses.fence_left_behind());
        release::free_many(&service.engine, lane, &lanes, earlier, &block)
    }

    /// Takes the allocation of a block of whose end observers were told.
    fn take(&mut self) -> Option<Use> {
        // Field by field, which stays in registers.
        let Allocation {
            id, address, bytes, ..
        } = self.allocation.take()?;
        Some(Use {
            id,
            address,
            bytes,
            rounding: self.charge.rounding(),
        })
    }

    #[inline]
    fn tell_ending(&mut self, location: Option<&'static Location<'static>>) {
        let observers = self
            .registration
            .as_ref()
            .map(|registration| &registration.observers);
        if observers.is_some_and(Option::is_some) {
            self.tell_observers(location);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_observers(&mut self, location: Option<&'static Location<'static>>) {
        let (Some(registration), Some(allocation)) = (&self.registration, &self.allocation) else {
            return;
        };
        let Some(observers) = &registration.observers else {
            return;
        };
        if is_unchecked(self) {
            return;
        }
        let (uses, left_at) = (self.uses(), self.uses().left_at());
        let is_captured = self.is_in(self.extra(super::Extra::capture));
        let lanes = match is_captured {
            true => uses.lanes(),
            false => uses.lanes_with_launches(),
        };
        if self.is_outside() {
            return observers.outside_freed(allocation, &lanes, location);
        }
        let block = as_used(allocation, self.charge.rounding());
        let is_first_after_all =
            registration.fill_ending(observers, &lanes, left_at, block, is_captured, location);
        let mut waits_for = &lanes[..];
        if is_first_after_all && left_at.is_none() {
            // The fill brought the block's own stream after the others: the free follows that stream alone.
            waits_for = &lanes[..1];
            let extra = self.extra.get_mut();
            match &mut **extra {
                Some(extra)
                    if extra.reserved.is_some() || extra.has_room || extra.graphs.is_some() =>
                {
                    extra.streams.clear()
                }
                _ => drop(extra.take()),
            }
        }
        let ending = Ending {
            allocation,
            lanes: &lanes,
            waits_for,
            location,
            tag: self.charge.tag(),
        };
        observers.ending(&registration.service.engine, ending);
    }

    #[cold]
    #[inline(never)]
    fn end_unawaited(&mut self) {
        self.end(None);
    }

    /// Frees a block of a reservation in the plain case, in which the reservation keeps it for the stream. Returns whether
    /// it was the plain case.
    fn end_kept(&mut self) -> bool {
        let Some(allocation) = &self.allocation else {
            return false;
        };
        let extra = self.extra.get_mut();
        let is_plain = extra.as_ref().is_some_and(|extra| extra.is_only_reserved());
        if !is_plain {
            return false;
        }
        let block = as_used(allocation, self.charge.rounding());
        let mut spare = extra.take();
        let reserved = spare.as_mut().and_then(|extra| extra.reserved.take());
        let reserved = reserved.expect("a block of a reservation");
        let is_kept = reserved.keep(&mut self.registration, &block, &mut spare);
        if is_kept {
            self.allocation = None;
        } else if let Some(mut extra) = spare {
            extra.reserved = Some(reserved);
            **self.extra.get_mut() = Some(extra);
        }
        is_kept
    }

    /// Frees a tagged block that has nothing extra, and uncharges its tag. In the plain case both are done under one lock,
    /// in this order.
    #[cold]
    #[inline(never)]
    fn end_charged(&mut self) {
        let Some(tag) = self.charge.tag() else {
            return;
        };
        let Some(allocation) = &self.allocation else {
            return;
        };
        let block = as_used(allocation, self.charge.rounding());
        let mut is_throttled = false;
        let uncharge = |registration: &Registration| {
            is_throttled = registration.service.uncharge_freed(tag, block.bytes);
            !is_throttled
        };
        let (owner, bytes) = (&mut self.registration, block.bytes);
        let is_kept = StreamCache::free_at_once(owner, cache_of, bytes, || block, uncharge);
        if is_kept {
            if is_throttled {
                self.registration().service.admit(tag);
            }
            return;
        }
        self.free_tagged(tag);
    }

    #[cold]
    #[inline(never)]
    fn free_tagged(&mut self, tag: Tag) {
        self.free_slowly(Some(tag));
    }

    /// Frees a block that has nothing extra, and no tag. Reads the block from itself: the plain case holds its fields in
    /// registers.
    #[cold]
    #[inline(never)]
    fn free_untagged(&mut self) {
        self.free_slowly(None);
    }

    /// Frees a block that has nothing extra, and uncharges its tag, if any. A tagged block takes no spare, and leaves none.
    #[inline(always)]
    fn free_slowly(&mut self, tag: Option<Tag>) {
        let Registration { service, lane, .. } = &**self.registration();
        let block = as_used(self.allocation(), self.charge.rounding());
        let is_given = release::free_unawaited(&service.engine, lane, block);
        let (owner, may_keep) = (&mut self.registration, tag.is_none());
        if is_given && !StreamCache::keep_spare(owner, cache_of, &block, may_keep) {
            pass_through::remove(&self.registration().service.engine, &block);
        }
        // Last: requests are admitted, and memory is evicted for them.
        if let Some(tag) = tag {
            self.registration().service.count_freed(tag, block.bytes);
        }
    }

    /// Uncharges the tag or the reservation, after the free.
    fn uncharge_freed(&mut self, block: Use) {
        let registration = self.registration.as_ref();
        let registration = registration.expect("present until the block has ended");
        if let Some(tag) = self.charge.tag() {
            registration.service.count_freed(tag, block.bytes);
        }
        if let Some(extra) = &**self.extra.get_mut()
            && let Some(reserved) = &extra.reserved
        {
            reserved.publish_freed(block.bytes);
        }
    }
}

impl Drop for Block {
    /// In the plain case, the stream's cache takes the memory, and the reference to the stream, under one lock.
    #[inline]
    fn drop(&mut self) {
        let Some(registration) = &self.registration else {
            return;
        };
        if registration.observers.is_some() || self.extra.get_mut().is_some() {
            return self.end_unawaited();
        }
        if self.charge.is_tagged() {
            return self.end_charged();
        }
        let Some(allocation) = &self.allocation else {
            return;
        };
        let block = || as_used(allocation, self.charge.rounding());
        let (owner, bytes) = (&mut self.registration, allocation.bytes);
        if !StreamCache::free_at_once(owner, cache_of, bytes, block, |_| true) {
            self.free_untagged();
        }
    }
}

/// Returns the cache of a stream.
#[inline(always)]
fn cache_of(registration: &Registration) -> &StreamCache {
    &registration.lane.cache
}

/// Returns whether a checker is not told of the block.
fn is_unchecked(block: &Block) -> bool {
    let is_checked = |extra: &Extra| Some(extra.outside.as_ref()?.is_checked());
    block.extra(is_checked) == Some(false)
}

/// Returns a block as it is freed. `rounding` is the part of its bytes that was not asked for.
#[inline(always)]
fn as_used(allocation: &Allocation, rounding: u32) -> Use {
    Use {
        id: allocation.id,
        address: allocation.address,
        bytes: allocation.bytes,
        rounding,
    }
}

/// The future of a free: ready when no device work can touch the memory any more, whichever block the memory belongs to
/// by then. Dropping it does not stop the free.
///
/// # Errors
/// Returns an error if the device cannot record an event, or reports an error instead of completion. If the error is
/// sticky, the memory is leaked rather than reused. Otherwise it is reused once a later event proves it complete.
///
/// # Cancel safety
/// Dropping it stops waiting and has no other effect.
#[derive(Debug)]
pub struct Deallocation(pub(super) Passages);

impl Future for Deallocation {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_synchronizing(context)
    }
}

/// The error of a free that was refused. Nothing is lost: it holds the block.
#[derive(Debug, thiserror::Error)]
#[error("the block was not freed, and this error holds it: {reason}")]
pub struct DeallocateError {
    /// The block, still allocated.
    pub block: Block,
    /// Why the free was refused.
    #[source]
    pub reason: StreamError,
}

/// The bytes of a block that were not requested, and the tag that it is charged to, if any.
///
/// Both share one word: a block that is moved is copied word by word, and a read of one word stalls the processor if
/// two writes of half a word have just filled it.
#[derive(Clone, Copy)]
pub(super) struct BlockCharge(u64);

impl BlockCharge {
    #[inline(always)]
    pub(super) fn new(rounding: u32, tag: Option<Tag>) -> Self {
        let number = tag.map_or(0, Tag::number);
        Self(u64::from(number) << u32::BITS | u64::from(rounding))
    }

    #[inline]
    pub(super) fn rounding(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn is_tagged(self) -> bool {
        self.0 >> u32::BITS != 0
    }

    #[inline]
    pub(super) fn tag(self) -> Option<Tag> {
        Tag::of_number((self.0 >> u32::BITS) as u32)
    }

    pub(super) fn add_rounding(&mut self, rounding: u32) {
        *self = Self::new(self.rounding().saturating_add(rounding), self.tag());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_and_tag_are_kept_apart() {
        let tag = Tag::new("charge");
        for (rounding, tag) in [
            (0, None),
            (u32::MAX, None),
            (0, Some(tag)),
            (u32::MAX, Some(tag)),
        ] {
            let charge = BlockCharge::new(rounding, tag);
            assert_eq!((charge.rounding(), charge.tag()), (rounding, tag));
        }
        let mut charge = BlockCharge::new(u32::MAX - 1, Some(tag));
        charge.add_rounding(7);
        assert_eq!((charge.rounding(), charge.tag()), (u32::MAX, Some(tag)));
    }
}
