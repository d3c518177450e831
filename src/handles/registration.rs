//! A stream's registration: what handles, blocks and futures of a stream share, and keep alive.

use super::native::Native;
use super::{Observers, Presence};
use crate::device::{Device, DeviceError, DeviceStream, StreamProperties};
use crate::engine::{CapacityCopy, registering, release};
use crate::error::StreamError;
use crate::id::Ticket;
use crate::lane::{CacheOwner, Lane, RefCache};
use crate::measure::Tag;
use crate::queue::{Asker, Passage, Service};
use crate::sync::{Arc, Ordering, SharedNumber, plain};
use std::any::Any;
use std::fmt;

/// A stream, registered with a pool. Each block holds a reference, and nothing else of the pool, so that a free writes
/// no cache line that other streams write. A freed block leaves its reference in the lane's [`RefCache`] for the next
/// one. Dropping the last reference retires the stream.
///
/// It lies on cache lines of its own, because the hot path reads it.
#[repr(align(128))]
pub(crate) struct Registration {
    pub(crate) service: Arc<Service>,
    pub(crate) lane: Arc<Lane>,
    /// Number of [`Stream`](crate::Stream) handles. Freed blocks leave references while there is at least one.
    handles: SharedNumber,
    pub(crate) presence: plain::Arc<Presence>,
    /// The alignment of every block in bytes, a power of two. A copy, as the capacity is, so that an allocation from the
    /// lane reads nothing of the engine.
    pub(crate) step: u64,
    pub(crate) capacity: CapacityCopy,
    /// Told about the life of each block, if the pool has observers.
    pub(crate) observers: Option<plain::Arc<Observers>>,
    pub(crate) native: Native,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.lane.label())
    }
}

impl Registration {
    /// Makes a stream known to a pool.
    ///
    /// # Errors
    /// Returns an error if it is a stream of another device, or the device cannot keep its order.
    pub(crate) fn enter(
        presence: &plain::Arc<Presence>,
        stream: &dyn DeviceStream,
    ) -> Result<Arc<Self>, StreamError> {
        let lane = registering::register(&presence.service.engine, stream)?;
        Ok(Self::of_lane(presence, stream.native(), lane))
    }

    /// Returns a registration of another pool's stream with this one, on which copies are noted: one that exists, or a
    /// new one.
    ///
    /// # Errors
    /// Returns an error if the stream is of a device that is not beside the pool's.
    pub(crate) fn for_copies(
        presence: &plain::Arc<Presence>,
        stream: &Arc<Self>,
    ) -> Result<Arc<Self>, StreamError> {
        if plain::Arc::ptr_eq(presence, &stream.presence) {
            return Ok(stream.clone());
        }
        let device = stream.stream_device();
        if let Some(known) = presence.roll.find(device.id(), stream.lane.raw) {
            return Ok(known);
        }
        let other = StreamOfOtherPool(stream);
        let lane = registering::register_for_copies(&presence.service.engine, &other, device)?;
        Ok(Self::of_lane(presence, other.native(), lane))
    }

    fn of_lane(
        presence: &plain::Arc<Presence>,
        native: Option<plain::Arc<dyn Any + Send + Sync>>,
        lane: Arc<Lane>,
    ) -> Arc<Self> {
        let service = presence.service.clone();
        let (shared, store) = (&service.engine.shared, &service.engine.store);
        let registration = Arc::new(Self {
            step: shared.settings.alignment,
            capacity: store.capacity.clone(),
            observers: presence.observers.clone(),
            native: Native::of(native, &lane, &**lane.device(&shared.device)),
            service,
            lane,
            handles: SharedNumber::new(0),
            presence: presence.clone(),
        });
        presence.roll.enter(&registration);
        presence.routes.join(&registration);
        registration
    }

    /// Returns a future's state that waits for a point of the stream.
    pub(crate) fn passage(&self, ticket: Ticket) -> Passage {
        Passage::new(self.service.clone(), self.lane.clone(), ticket)
    }

    /// Returns the device of the stream, which may not be that of the pool.
    pub(crate) fn stream_device(&self) -> &plain::Arc<dyn Device> {
        self.lane.device(&self.service.engine.shared.device)
    }

    /// Returns whether both are registrations of one stream. An external stream can have the name that another one had before.
    pub(super) fn is_of_same_stream(&self, other: &Self) -> bool {
        let has_same_name = self.lane.raw == other.lane.raw
            && self.stream_device().id() == other.stream_device().id();
        let ids = self.lane.external_id.zip(other.lane.external_id);
        has_same_name && ids.is_none_or(|(id, of_other)| id == of_other)
    }

    /// Returns whether this is a stream of that name, and not an external one.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_of(
        &self,
        device: crate::device::DeviceId,
        raw: crate::device::RawStream,
    ) -> bool {
        !self.lane.is_external && self.lane.raw == raw && self.stream_device().id() == device
    }

    /// Counts a new handle of the stream.
    pub(crate) fn count_handle(&self) {
        if self.handles.fetch_add(1, Ordering::Relaxed) == 0 {
            self.lane.cache.with_references(RefCache::open::<Self>);
        }
    }

    /// Counts a dropped handle. The last one closes the reference cache; the first one opened it before it was dropped
    /// itself, so the closing comes after the opening.
    pub(crate) fn count_handle_dropped(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close_references();
        }
    }

    /// Closes the reference cache, unless a block has made a new handle since the last one was dropped: that handle
    /// opens the cache under the same lock, and closes it later. The caller's own reference keeps the registration
    /// alive.
    fn close_references(&self) {
        let is_last = || self.handles.load(Ordering::Relaxed) == 0;
        let left = self
            .lane
            .cache
            .with_references(|references| is_last().then(|| references.close()));
        drop(left);
    }

    /// Drops the references that freed blocks left.
    pub(crate) fn drop_references(&self) {
        let left = self.lane.cache.with_references(RefCache::empty);
        drop(left);
    }

    /// Counts a block granted to a tag that is larger by `surplus` bytes than the tag was charged for.
    #[inline(never)]
    pub(crate) fn count_granted(&self, tag: Tag, surplus: u64) {
        let account = self.service.queue.accounts.of(tag);
        if surplus > 0 {
            account.charge_more(surplus);
        }
        account.count_granted();
    }

    /// Counts the growth of a tag's block by bytes that the tag was charged for.
    pub(crate) fn count_growth(&self, tag: Tag) {
        self.service.queue.accounts.of(tag).count_growth();
    }
}

// SAFETY: the cache of each lane is reached through registrations alone.
#[allow(unsafe_code, reason = "says what owns the cache of a stream")]
unsafe impl CacheOwner for Registration {}

/// A stream that is registered with another pool.
struct StreamOfOtherPool<'a>(&'a Registration);

// SAFETY: the lane is of that stream, and holds its owner.
#[allow(unsafe_code, reason = "stands for the lane's stream")]
unsafe impl DeviceStream for StreamOfOtherPool<'_> {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        let lane = &self.0.lane;
        let mut properties = StreamProperties::new(self.0.stream_device().id(), lane.raw);
        properties.takes_waits = lane.takes_waits;
        properties.external_id = lane.external_id;
        Ok(properties)
    }

    fn keep_alive(&self) -> plain::Arc<dyn Any + Send + Sync> {
        self.0.lane.owner().clone()
    }

    fn native(&self) -> Option<plain::Arc<dyn Any + Send + Sync>> {
        self.0.native.shared()
    }

    fn name(&self) -> Option<plain::Arc<str>> {
        self.0.lane.name().map(Into::into)
    }
}

impl<'a> From<&'a Registration> for Asker<'a> {
    #[inline]
    fn from(registration: &'a Registration) -> Self {
        Self {
            service: &registration.service,
            lane: &registration.lane,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.presence.roll.leave(self);
        release::retire(&self.service.engine, &self.lane);
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use crate::Pool;
    use crate::device::sim::{Checker, SimDevice};
    use crate::sync::Arc;

    /// Each reference leads to all streams of the pool: printing them would never end.
    #[test]
    fn debug_output_omits_the_references_of_freed_blocks() {
        let device = SimDevice::builder().checker(Checker::Off).build();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let register = |_| pool.register(&device.create_stream()).unwrap();
        let streams: Vec<_> = (0..3).map(register).collect();
        let take = |stream| pool.try_allocate(stream, 4096).unwrap();
        for stream in streams.iter().chain(&streams) {
            // The first block of a size leaves no reference: the cache has no entry for it yet.
            drop(take(stream));
            drop([take(stream), take(stream)]);
        }
        let printed = format!("{:?}", take(&streams[0]).deallocate());
        assert!(!printed.contains("Registration {"), "{printed}");
    }

    /// The last handle was counted as dropped, and a new one exists before the cache is closed.
    #[test]
    fn handle_made_just_after_the_last_one_keeps_the_references() {
        let device = SimDevice::builder().checker(Checker::Off).build();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let stream = pool.register(&device.create_stream()).unwrap();
        let take = || pool.try_allocate(&stream, 4096).unwrap();
        // The first block of a size leaves no reference: the cache has no entry for it yet.
        drop(take());
        let registration = &stream.registration;
        registration.close_references();
        let owners = Arc::strong_count(registration);
        drop(take());
        assert_eq!(Arc::strong_count(registration), owners + 1);
    }
}
