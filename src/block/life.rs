//! A block's beginning, its growth in place, and its plain end.
//!
//! The plain cases are on the hot path: [`Block::of`] makes a block of what the stream's cache granted, and
//! [`Drop`](Block#impl-Drop-for-Block) gives it back. In every other case observers hear of the grant before its user
//! does, and of the [end](super::ending) before any other request can be granted the memory.

use super::ending::End;
use super::{Block, Extra};
use crate::device::DeviceError;
use crate::engine::{Allocation, Allocations, Home, Use, ordering, pass_through, release};
use crate::error::AllocError;
use crate::handles::{Caller, Ending, Granted, Registration, Reserved};
use crate::heap::Placement;
use crate::id::Ticket;
use crate::lane::{BlockEvent, StreamCache};
use crate::measure::Tag;
use crate::queue::Demand;
use crate::sync::{Arc, Guards, Mutex, Rare};

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

    /// Returns where the memory goes if the block is freed now.
    pub(crate) fn home(&self) -> Home {
        let home = self.extra(|extra| match (&extra.outside, &extra.reserved) {
            (Some(_), _) => Some(Home::Outside),
            (None, reserved) => Some(reserved.as_ref()?.home()),
        });
        home.unwrap_or(Home::Pool)
    }

    /// Returns where the block grows, and whether addresses are kept for it there. A block of a reservation, or of memory
    /// that others own, does not grow.
    pub(crate) fn place_to_grow(&self) -> Option<(Placement, bool)> {
        let allocation = self.allocation();
        let above = Placement::Above(allocation.id, allocation.address + allocation.bytes);
        match self.extra.lock().as_ref() {
            Some(extra) if extra.reserved.is_some() || extra.outside.is_some() => None,
            extra => Some((above, extra.is_some_and(|extra| extra.has_room))),
        }
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

/// The plain end.
impl Block {
    /// Frees a tagged block that has nothing extra, and uncharges its tag. In the plain case both are done under one lock,
    /// in this order.
    #[cold]
    #[inline(never)]
    fn end_charged(&mut self) {
        let (Some(tag), Some(allocation)) = (self.charge.tag(), &self.allocation) else {
            return;
        };
        let block = as_used(allocation, self.charge.rounding());
        let mut is_throttled = false;
        let uncharge = |registration: &Registration| {
            is_throttled = registration.service.uncharge_freed(tag, block.bytes);
            !is_throttled
        };
        let (owner, bytes) = (&mut self.registration, block.bytes);
        if !StreamCache::free_at_once(owner, cache_of, bytes, || block, uncharge) {
            self.free_slowly(Some(tag));
        } else if is_throttled {
            self.registration().service.admit(tag);
        }
    }

    /// Frees a block that has nothing extra, and that the stream's cache did not take at once. Reads the block from itself:
    /// the plain case holds its fields in registers. A tagged block, whose tag is uncharged, takes no spare, and leaves none.
    #[cold]
    #[inline(never)]
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
}

impl Drop for Block {
    /// In the plain case, the stream's cache takes the memory, and the reference to the stream, under one lock.
    #[inline]
    fn drop(&mut self) {
        let Some(registration) = &self.registration else {
            return;
        };
        if registration.observers.is_some() || self.extra.get_mut().is_some() {
            return End(self).unawaited();
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
            self.free_slowly(None);
        }
    }
}

/// Returns the cache of a stream.
#[inline(always)]
fn cache_of(registration: &Registration) -> &StreamCache {
    &registration.lane.cache
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
    pub(super) fn is_tagged(self) -> bool {
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
