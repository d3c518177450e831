//! A stream's registration: what its handle and its blocks hold in common.

use super::natives::{Native, Roll};
use super::{Observers, Service};
use crate::device::DeviceStream;
use crate::error::{AllocError, StreamError};
use crate::lane::{Lane, RefCache, Slot, Slots};
use crate::measure::Tag;
use crate::sync::{Arc, Lasting, Ordering, SharedNumber, plain};

/// Held by the pool's handles and its registrations; the last one out tells the reclaimers that were
/// made to last.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) service: Arc<Service>,
    /// The pool's name, if it has one.
    pub(crate) name: Option<plain::Arc<str>>,
    pub(crate) roll: Roll,
}

impl Presence {
    /// # Errors
    /// When the stream was registered with another pool.
    ///
    /// # Panics
    /// On a device that checks orderings, with a violation that was found where no caller could be told.
    #[inline]
    pub(crate) fn expect_own(&self, registration: &Registration) -> Result<(), AllocError> {
        if !std::ptr::eq(&*registration.presence, self) {
            return Err(AllocError::ForeignStream);
        }
        if let Some(observers) = registration.observers.as_deref() {
            observers.call_out();
        }
        Ok(())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.service.orphan();
    }
}

/// What freed blocks leave with their stream: the count of its owners that each of them was.
pub(crate) type Left = RefCache<Arc<Registration>>;

static SLOTS: Slots<Left> = Slots::new();

/// One count for a stream: a block holds it, so that a free writes no line that other streams write. It leaves it to the
/// next one, so that neither counts. On cache lines of its own, as the [lane](Lane) is.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Registration {
    pub(crate) service: Arc<Service>,
    pub(crate) lane: Arc<Lane>,
    /// In which the lane's front is.
    pub(crate) slot: Lasting<Slot<Left>>,
    /// Handles of the stream, which can be given something: while there are any, counts are left with it.
    handles: SharedNumber,
    pub(crate) presence: plain::Arc<Presence>,
    /// Who is told of blocks' lives, if anybody is.
    pub(crate) observers: Option<plain::Arc<Observers>>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "no backend has any"))]
    pub(crate) native: Native,
}

impl Registration {
    /// Makes a stream known to a pool.
    ///
    /// # Errors
    /// As [`Driver::register`](crate::driver::Driver::register).
    pub(crate) fn enter(
        presence: &plain::Arc<Presence>,
        stream: &dyn DeviceStream,
    ) -> Result<Arc<Self>, StreamError> {
        let service = presence.service.clone();
        let (slot, leased) = SLOTS.lease();
        let lane = service.driver.register(stream, leased)?;
        let registration = Arc::new(Self {
            observers: service.observers.clone(),
            native: Native::of(stream, &*service.driver.device),
            service,
            lane,
            slot,
            handles: SharedNumber::new(0),
            presence: presence.clone(),
        });
        presence.roll.enter(&registration);
        Ok(registration)
    }

    /// Somebody has a handle of the stream more.
    pub(crate) fn note_chunk(&self) {
        if self.handles.fetch_add(1, Ordering::Relaxed) == 0 {
            self.slot.lock().left.open();
        }
    }

    /// Or less. Whoever was the first opened the reference cache before it went, so this closes it after that.
    pub(crate) fn note_chunk_gone(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.leave_nothing();
        }
    }

    /// The last handle went, and one may have come since, from a block: then that is the one to do this. It opens the reference cache
    /// under the same lock. What is let go here is not the last count: the handle has one.
    fn leave_nothing(&self) {
        let mut slot = self.slot.lock();
        if self.handles.load(Ordering::Relaxed) == 0 {
            let left = slot.left.close();
            drop(slot);
            drop(left);
        }
    }

    /// Lets the counts go that freed blocks left.
    pub(crate) fn settle(&self) {
        let left = self.slot.lock().left.empty();
        drop(left);
    }

    /// A block was granted to a tag, with so much more than was claimed. Out of the way of those that have
    /// none.
    #[inline(never)]
    pub(crate) fn note_granted(&self, tag: Tag, surplus: u64) {
        let account = self.service.queue.accounts.of(tag);
        if surplus > 0 {
            account.charge_more(surplus);
        }
        account.note_granted();
    }

    /// What was granted has become more, by what was claimed.
    pub(crate) fn note_more(&self, tag: Tag) {
        self.service.queue.accounts.of(tag).note_more();
    }

    /// It was freed.
    #[inline(never)]
    pub(crate) fn note_freed(&self, tag: Tag, bytes: u64) {
        self.service.queue.accounts.of(tag).note_freed();
        self.service.uncharge(tag, bytes);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.service.driver.retire(&self.lane);
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use crate::Pool;
    use crate::device::sim::{Checker, SimDevice};
    use crate::sync::Arc;
    use std::collections::HashSet;

    /// What is left keeps the stream, and so all streams of the pool: printed one within the other there is no end to them.
    #[test]
    fn what_is_left_with_streams_is_not_printed() {
        let device = SimDevice::builder().checker(Checker::Off).build();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let register = |_| pool.register(&device.create_stream()).unwrap();
        let streams: Vec<_> = (0..3).map(register).collect();
        let take = |stream| pool.try_allocate(stream, 4096).unwrap();
        for stream in streams.iter().chain(&streams) {
            // The first of a size has no place in the lane yet.
            drop(take(stream));
            drop([take(stream), take(stream)]);
        }
        let printed = format!("{:?}", take(&streams[0]).deallocate());
        assert!(!printed.contains("Registration {"), "{printed}");
    }

    /// The last handle is noted to be gone, and before anything comes of that there is another.
    #[test]
    fn a_handle_that_came_just_after_the_last_one_has_what_is_left() {
        let device = SimDevice::builder().checker(Checker::Off).build();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let stream = pool.register(&device.create_stream()).unwrap();
        let take = || pool.try_allocate(&stream, 4096).unwrap();
        // The first of a size has no place in the lane yet.
        drop(take());
        let registration = stream.registration();
        registration.leave_nothing();
        let owners = Arc::strong_count(registration);
        drop(take());
        assert_eq!(Arc::strong_count(registration), owners + 1);
    }

    /// Other tests take slots as well, at most as many as they have streams at a time.
    #[test]
    fn streams_that_come_have_the_slots_of_those_that_went() {
        const ROUNDS: usize = 2000;
        let device = SimDevice::new();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let mut slots = HashSet::new();
        for _ in 0..ROUNDS {
            let stream = pool.register(&device.create_stream()).unwrap();
            drop(pool.try_allocate(&stream, 4096).unwrap());
            slots.insert(std::ptr::from_ref(&*stream.registration().slot));
        }
        assert!(slots.len() < ROUNDS / 2, "{} slots", slots.len());
    }
}
