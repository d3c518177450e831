//! Blocks of memory that others own: it is not in the heap. Their uses are ordered like those of any block. When the
//! block ends, the owner gets the memory, with the points of the streams that it waits for.
#![allow(
    unsafe_code,
    reason = "memory is of the device on the word of its owner"
)]

use super::{Block, Extra, Uses};
use crate::engine::{Allocation, Source};
use crate::error::StreamError;
use crate::foreign::{ForeignMemory, Resident, expect_awaitable};
use crate::handles::Registration;
use crate::heap::BlockId;
use crate::id::Ticket;
use crate::stream::Stream;
use crate::sync::{Arc, Rare};
use std::panic::Location;

impl Stream {
    /// Makes memory that others own a block of this stream, without a copy and without a device call. It is used and
    /// freed as any block of the pool. When it has ended, its owner gets the memory, with the points that work of the
    /// device has to pass first.
    ///
    /// The memory is not part of the pool's heap: it serves no request, does not grow, and is neither filled nor
    /// evicted. [`Statistics::foreign`](crate::Statistics::foreign) counts it; [`Pool::charge`](crate::Pool::charge)
    /// counts it against the capacity as well. Streams of devices that have [access](crate::Peers::enable) to the
    /// pool's memory have none to this.
    ///
    /// The page on [foreign memory](crate::guide::foreign_memory) has an example.
    ///
    /// # Safety
    /// The memory is one that the streams of this stream's pool can use: on the GPU, memory of the pool's device.
    #[track_caller]
    pub unsafe fn adopt(&self, memory: Box<dyn ForeignMemory>) -> Block {
        let registration = &self.registration;
        let (address, bytes) = memory.range();
        let allocation = Allocation {
            // The heap is never asked for it.
            id: BlockId::FIRST,
            address: address.to_bits(),
            bytes,
            after: match memory.is_ready() {
                true => Ticket::ZERO,
                false => registration.lane.cache.open_ticket(),
            },
            source: Source::Grown,
        };
        // First all that the owner is asked, since it may panic.
        let (requested, residency) = (memory.requested(), memory.residency());
        let checked_at = memory.is_checked().then(|| memory.location());
        if let Some(location) = checked_at
            && let Some(observers) = registration.observers.as_deref()
        {
            let location = location.unwrap_or(Location::caller());
            observers.outside_granted(&allocation, &registration.lane, location);
        }
        let counters = &registration.service.engine.shared.counters;
        counters.foreign_grew(bytes);
        let rounding = u32::try_from(bytes.saturating_sub(requested)).unwrap_or(u32::MAX);
        if let Some(residency) = &residency {
            residency.remember(registration);
        }
        let extra = Extra {
            residency,
            outside: Some(memory),
            ..Extra::default()
        };
        let registration = registration.clone();
        Block::of(registration, allocation, rounding, None, Rare::new(extra))
    }
}

impl Block {
    /// Returns whether the stream's device has no access: it has access to the memory of the pool, which this is not.
    #[inline]
    pub(super) fn is_out_of_reach(&self, stream: &Stream) -> bool {
        let is_outside = || self.extra(|extra| extra.outside.as_ref().map(drop));
        stream.registration.lane.is_foreign() && is_outside().is_some()
    }
}

impl Uses<'_> {
    /// Holds the memory for a use on a stream until it is submitted, if its owner takes the memory away at times.
    ///
    /// # Errors
    /// Returns an error if the memory is absent, or the stream external.
    pub(crate) fn hold_for(self, on: &Arc<Registration>) -> Result<Option<Resident>, StreamError> {
        let residency = self.block.extra(|extra| extra.residency.clone());
        residency
            .map(|residency| residency.hold_for(on))
            .transpose()
    }

    /// # Errors
    /// Returns an error if the stream is external, and the memory's owner takes it away at times.
    #[inline]
    pub(super) fn expect_awaitable(self, on: &Registration) -> Result<(), StreamError> {
        let residency = || self.block.extra(|extra| extra.residency.clone());
        match on.lane.is_external && residency().is_some() {
            true => Ok(expect_awaitable(on)?),
            false => Ok(()),
        }
    }
}
