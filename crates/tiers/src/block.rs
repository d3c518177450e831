//! A block of a region.
#![allow(unsafe_code, reason = "the region's memory as blocks")]

use crate::inner::Shared;
use std::panic::Location;
use std::sync::Arc;
use weirpool::device::DeviceAddress;
use weirpool::extend::{ForeignMemory, Passages, Residency};
use weirpool::{Block, Stream};
use weirpool_heap::{BlockId, Grant};

/// A block of a region, as memory of others.
#[derive(Debug)]
pub(crate) struct RegionBlock {
    id: BlockId,
    address: DeviceAddress,
    bytes: u64,
    requested: u64,
    location: &'static Location<'static>,
    region: Arc<Shared>,
}

// SAFETY: the region's heap granted the range, and has it back only after the passages. It is mapped but for absences.
unsafe impl ForeignMemory for RegionBlock {
    fn range(&self) -> (DeviceAddress, u64) {
        (self.address, self.bytes)
    }

    fn requested(&self) -> u64 {
        self.requested
    }

    /// Memory is granted when all of its earlier work is complete.
    fn is_ready(&self) -> bool {
        true
    }

    fn location(&self) -> Option<&'static Location<'static>> {
        Some(self.location)
    }

    fn residency(&self) -> Option<Residency> {
        Some(self.region.residency.clone())
    }

    fn release(self: Box<Self>, after: Passages) {
        let address = self.address.to_bits();
        self.region.state().live.remove(&address);
        after.then(move || self.region.free(self.id));
    }
}

impl RegionBlock {
    /// Makes a block of a range that the region's heap granted.
    pub(crate) fn adopted(
        grant: &Grant,
        requested: u64,
        region: Arc<Shared>,
        stream: &Stream,
        location: &'static Location<'static>,
    ) -> Block {
        let memory = Self {
            id: grant.id,
            address: DeviceAddress::from_bits(grant.address),
            bytes: grant.bytes,
            requested,
            location,
            region,
        };
        // SAFETY: the memory is the device's, at addresses that no other block has until this one has ended.
        unsafe { stream.adopt(Box::new(memory)) }
    }
}
