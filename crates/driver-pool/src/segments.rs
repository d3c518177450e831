//! Memory of a pool of the driver as the segments of a pool: sub-allocated, or passed through.

#![allow(unsafe_code, reason = "calls pools by their handles")]

use crate::DriverPool;
use std::any::Any;
use std::sync::Arc;
use weirpool::Pool;
use weirpool::device::{Access, DeviceError, DeviceErrorKind, Peer, PoolAttribute, RawStream};
use weirpool::extend::{SegmentProperties, SegmentSource};
use weirpool_heap::GRANULE;

/// How a pool uses a pool of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum DriverPoolUse {
    /// The driver's pool gives segments, of which this crate's pool makes blocks: with its caches, reuse and waiting,
    /// as of any plain memory. The default.
    #[default]
    SubAllocated,
    /// Every allocation and every free is passed on to the driver's pool, in the order of the block's stream. The
    /// driver decides about reuse, and keeps freed memory or not. Requests wait, are counted and limited as in any
    /// pool: a request waits while the live blocks leave no room within the capacity, or while the driver refuses.
    ///
    /// If a stream takes no work when a block is freed there (because it is being captured, for example), the block
    /// goes back to the driver some time after its work is complete. Such a pool takes no
    /// [reservations](weirpool::Pool::reserve).
    PassedThrough,
}

impl DriverPool {
    /// Returns the memory of this pool as segments, for [`PoolBuilder::segment_source`](weirpool::PoolBuilder::segment_source).
    pub fn segments(&self, how: DriverPoolUse) -> Arc<dyn SegmentSource> {
        let device = self.device();
        let properties = self.properties();
        let step = device.capabilities().granularity;
        let is_ordered = how == DriverPoolUse::PassedThrough;
        Arc::new(Segments {
            pool: self.clone(),
            properties: SegmentProperties {
                owner: "a pool of the driver",
                device: device.id(),
                kind: properties.kind,
                // The driver has blocks of any size, and takes memory in whole steps.
                granularity: if is_ordered { GRANULE } else { step },
                most: match properties.max_size {
                    0 => u64::MAX,
                    most => most / step * step,
                },
                is_ordered,
            },
        })
    }

    /// Returns how many bytes the pool keeps that are not allocated; 0 if the driver does not tell.
    fn free_bytes(&self) -> u64 {
        let attribute = |attribute| self.attribute(attribute).unwrap_or(0);
        let used = attribute(PoolAttribute::UsedMemCurrent);
        attribute(PoolAttribute::ReservedMemCurrent).saturating_sub(used)
    }
}

/// Returns the driver's pool that a pool's memory comes from, if it comes from one, and how it is used.
pub fn driver_pool_of(pool: &Pool) -> Option<(DriverPool, DriverPoolUse)> {
    let source: &dyn Any = pool.inspect().segment_source()?;
    let segments = source.downcast_ref::<Segments>()?;
    let how = match segments.properties.is_ordered {
        true => DriverPoolUse::PassedThrough,
        false => DriverPoolUse::SubAllocated,
    };
    Some((segments.pool.clone(), how))
}

#[derive(Debug)]
struct Segments {
    pool: DriverPool,
    properties: SegmentProperties,
}

// SAFETY: the driver guarantees it of the blocks of its pool, which the handle keeps.
unsafe impl SegmentSource for Segments {
    fn properties(&self) -> SegmentProperties {
        self.properties
    }

    /// If the driver refuses while its pool keeps free memory, which may be too scattered for the request, releases all
    /// of it and asks once more.
    unsafe fn take(
        &self,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        let calls = self.pool.calls();
        // SAFETY: the handle keeps the pool; the caller guarantees the stream.
        let ask = || unsafe { calls.allocate_from(self.pool.raw(), bytes, alignment, stream) };
        let refusal = match ask() {
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => error,
            answer => return answer,
        };
        if self.pool.free_bytes() == 0 || self.pool.trim_to(0).is_err() {
            return Err(refusal);
        }
        ask()
    }

    unsafe fn give(&self, address: u64, _: u64, stream: RawStream) -> Result<(), DeviceError> {
        // SAFETY: the handle keeps the pool; the caller guarantees the rest.
        unsafe { self.pool.calls().free_to(self.pool.raw(), address, stream) }
    }

    /// What the device has left and the pool's own free memory, within the pool's maximum.
    fn available(&self) -> Option<u64> {
        let device = self.pool.device();
        let left = device.memory_info(self.properties.kind).ok()?.free;
        let used = self.pool.attribute(PoolAttribute::UsedMemCurrent);
        let most = match self.pool.properties().max_size {
            0 => u64::MAX,
            most => most.saturating_sub(used.unwrap_or(0)),
        };
        Some(left.saturating_add(self.pool.free_bytes()).min(most))
    }

    /// The driver itself meets its threshold only when its own calls synchronize.
    fn to_trim(&self) -> Option<u64> {
        if !self.properties.is_ordered {
            return None;
        }
        let (reserved, used) = (self.pool.reserved().ok()?, self.pool.used().ok()?);
        let threshold = self.pool.release_threshold().ok()?;
        (reserved.current > threshold.max(used.current)).then_some(threshold)
    }

    fn trim_to(&self, keep: u64) -> Result<(), DeviceError> {
        self.pool.trim_to(keep)
    }

    unsafe fn set_access(&self, peer: Peer, access: Access) -> Result<(), DeviceError> {
        match access {
            // SAFETY: the caller guarantees that no work loses its access.
            Access::None => unsafe { self.pool.forbid_access_from(peer.ordinal) },
            _ => self.pool.allow_access_of(peer.ordinal),
        }
    }
}
