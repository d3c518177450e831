//! The driver: executes one allocation, and one free, through caches, heap and device.
//!
//! It is the only part that calls the device, and it never does so under a lock (invariant `no-lock-across-calls`). It
//! knows neither futures nor waiters: it reads the *gate*, which is not open while a request waits, and *publishes*
//! what makes memory reachable.
//!
//! It consists of layers. Each owns its fields and the layer below, and dereferences to it:
//!
//! | layer | responsibility |
//! |---|---|
//! | [`Driver`] | entry points: allocate, free, reserve |
//! | [`Maintenance`] | the alarm, the threshold and the heuristic; releases and coalesces unasked |
//! | [`Supply`] | the memory that the device gave, and the budget for remapping; carries out the heap's plans |
//! | [`Streams`] | the registered streams and their events; polls, flushes, seals, orders |
//! | [`Core`] | the device, the heap behind its lock, the gate, the event log |
//!
//! | file | contents |
//! |---|---|
//! | `search`, `recipient` | executes the [search policy](crate::policy) for one stream |
//! | `mode` | how memory is asked for, and why a search ended without it |
//! | `parts` | several blocks, all or none |
//! | `reservation`, `streams/kept` | allocating from memory that is set aside; freed blocks that stay apart from the heap |
//! | `captured` | memory of graphs: allocations and frees inside a capture |
//! | `allocation` | a block on its way to its user; counts of device calls |
//! | `release` | frees, and allocations that were never used |
//! | `core`, `streams`, `ordering`, `registry`, `supply`, `memory`, `maintenance` | the layers |
//! | `alarm` | when the maintenance is done |
//! | `neighbours`, `access` | other devices of the host, and their access to the memory |
//! | `teardown` | memory that outlives the pool because running work may still touch it |
//! | `publish` | how the driver reports what makes memory reachable |
//! | `fill` | filling memory that is granted or freed |
//! | `upstream`, `segments`, `driver_pool` | where memory comes from |
//! | `pass_through` | frees that are passed on to a pool of the driver |
//! | `evictable` | memory that can be taken back from its user |
//! | `soft_cap` | a mark on the reserved bytes |
//! | `lease` | the part of the capacity that a broker leases |
//! | `event_log`, `walk` | recent events; all blocks at one moment |
//! | `heuristic` | when to coalesce |
//! | `statistics`, `figures` | the pool's figures, and how they are read |

mod access;
mod alarm;
mod allocation;
mod captured;
mod core;
mod driver_pool;
mod event_log;
mod evictable;
mod figures;
mod fill;
mod heuristic;
mod lease;
mod maintenance;
mod memory;
mod mode;
mod neighbours;
mod ordering;
mod parts;
mod pass_through;
mod publish;
mod recipient;
mod registry;
mod release;
mod reservation;
mod search;
mod segments;
mod soft_cap;
mod statistics;
mod streams;
mod supply;
mod teardown;
mod trimmed;
mod upstream;
mod walk;

pub(crate) use allocation::{Allocation, Counters};
pub(crate) use core::{Settings, gate};
pub use driver_pool::{DriverPool, DriverPoolBuilder, DriverPoolUse};
pub use event_log::{BlockOrigin, HistoryEntry, HistoryEvent, Occupancy, ReservationOrigin, Site};
pub(crate) use event_log::{Extent, Pages};
pub(crate) use evictable::{Candidate, Evict, Group, Home, ListPosition};
pub use fill::Fill;
pub(crate) use fill::{Filling, Fills, captures_of};
pub use heuristic::CoalesceHeuristic;
pub use lease::BrokerLease;
pub(crate) use lease::{Lease, LeaseBounds, Lender};
pub(crate) use maintenance::{Maintenance, MaintenanceSettings};
pub(crate) use mode::{Effort, Expected, Mode, Refusal};
pub(crate) use neighbours::AccessScope;
pub(crate) use parts::{Allocations, Part, Parts};
pub(crate) use publish::{Change, Publish};
pub(crate) use recipient::wait_allowed_at;
pub(crate) use reservation::Drawn;
pub use statistics::{Hits, Statistics};
pub(crate) use streams::{Kept, ReservationState, Watches};
pub(crate) use supply::{OtherPools, Supply};
pub use trimmed::Trimmed;
pub(crate) use upstream::MemorySource;
pub use upstream::Upstream;
pub(crate) use walk::HeapWalk;
pub use walk::{BlockInfo, BlockState, ReservationInfo, SegmentInfo};

use crate::device::{Device, DeviceError};
use crate::error::BuildError;
use crate::heap::{self, Placement, Request};
use crate::id::ReservationId;
use crate::lane::Lane;
pub use crate::lane::Source;
pub(crate) use crate::lane::Use;
use crate::measure::Waits;
use crate::sync::{Arc, plain};
use core::Core;
use recipient::Recipient;
use reservation::Draw;
use search::Search;
use std::ops::Deref;
use streams::Streams;
use walk::Walk;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) maintenance: Maintenance,
}

impl Deref for Driver {
    type Target = Maintenance;

    #[inline(always)]
    fn deref(&self) -> &Maintenance {
        &self.maintenance
    }
}

impl Driver {
    /// # Errors
    /// Returns an error if the device cannot reserve addresses, or the initial memory.
    pub(crate) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        others: OtherPools,
        publisher: plain::Arc<dyn Publish>,
        waits: plain::Arc<Waits>,
    ) -> Result<Self, BuildError> {
        let streams = Streams::new(Core::new(device, settings, publisher, waits));
        let maintenance = Maintenance::new(Supply::new(streams, others)?);
        Ok(Self { maintenance })
    }

    /// Searches the sources above the stream's own cache, in the order of the policy.
    ///
    /// # Errors
    /// Returns an error if no source has memory. The heap is then as it was, except for completed and flushed blocks.
    #[inline]
    pub(crate) fn search(
        &self,
        lane: &Arc<Lane>,
        request: Request,
        mode: Mode<'_>,
    ) -> Result<Allocation, Refusal> {
        let at = (request, Placement::Anywhere);
        let found = Search::for_stream(self, lane, at, mode, None).run()?;
        Ok(found.allocation)
    }

    /// Searches memory for each of the parts, the largest first.
    ///
    /// # Errors
    /// Returns an error if one of the parts gets no memory; then none does.
    pub(crate) fn search_all(
        &self,
        lane: &Arc<Lane>,
        parts: &Parts,
        mode: Mode<'_>,
    ) -> Result<Allocations, Refusal> {
        let driver = self;
        let search = parts::PartsSearch {
            driver,
            lane,
            parts,
            mode,
        };
        search.run()
    }

    /// Joins a block and the one that was allocated directly above it.
    pub(crate) fn join_used(&self, lower: &Allocation, upper: &Allocation) {
        self.heap.lock().join_used(lower.id, upper.id);
    }

    /// Makes a reservation of complete memory.
    pub(crate) fn reservation(&self, allocations: Allocations) -> ReservationId {
        let mut heap = self.heap.lock();
        heap::reservation::create(
            &mut heap,
            allocations.into_iter().map(|allocation| allocation.id),
        )
    }

    /// Adds complete memory to a reservation.
    pub(crate) fn add_to_reservation(&self, reservation: ReservationId, allocations: Allocations) {
        let mut heap = self.heap.lock();
        let ids = allocations.into_iter().map(|allocation| allocation.id);
        heap::reservation::extend(&mut heap, reservation, ids);
    }

    /// Allocates from a reservation, for use in the order of the lane's stream: behind a wait on the device if
    /// nothing else helps, or in exchange for its pieces if it has enough bytes but no block that is large enough.
    ///
    /// If it finds too little while another thread exchanges pieces of the same reservation, it waits for the end of
    /// that exchange, as for a lock: part of those pieces may come back.
    ///
    /// # Errors
    /// Returns the device's error; the memory is in the reservation again.
    pub(crate) fn draw(
        &self,
        lane: &Arc<Lane>,
        reservation: ReservationId,
        request: Request,
    ) -> Result<Drawn, DeviceError> {
        self.drawing(lane, reservation, request)?.run()
    }

    /// Allocates from a reservation whose other blocks stay where they are, for use in the order of the lane's stream:
    /// behind a wait on the device if nothing else helps. `None` if it has too little.
    ///
    /// # Errors
    /// Returns the device's error; the memory is in the reservation again.
    pub(crate) fn draw_in_place(
        &self,
        lane: &Arc<Lane>,
        reservation: ReservationId,
        request: Request,
    ) -> Result<Option<Allocation>, DeviceError> {
        self.drawing(lane, reservation, request)?.run_in_place()
    }

    /// Allocates exactly the requested bytes from `start` of a reservation, for use in the order of the lane's stream.
    /// `None` if they are allocated, not the reservation's, or pending without a way to wait for them.
    ///
    /// # Errors
    /// Returns the device's error; the memory is in the reservation again.
    pub(crate) fn draw_at(
        &self,
        lane: &Arc<Lane>,
        reservation: ReservationId,
        (start, request): (u64, Request),
    ) -> Result<Option<Allocation>, DeviceError> {
        self.drawing(lane, reservation, request)?.run_at(start)
    }

    /// Begins a draw. The reuse policy does not matter to memory that belongs to one holder.
    fn drawing<'a>(
        &'a self,
        lane: &'a Arc<Lane>,
        reservation: ReservationId,
        request: Request,
    ) -> Result<Draw<'a>, DeviceError> {
        self.expect_sound()?;
        let to = Recipient::new(self, lane, lane.timeline.clock());
        Ok(Draw::new(to, reservation, request))
    }

    /// Returns the address and the bytes of each block that is allocated from one of these reservations, lowest first.
    /// Takes time proportional to the number of all blocks, under the heap's lock.
    pub(crate) fn granted_from(&self, reservations: &[ReservationId]) -> Vec<(u64, u64)> {
        self.return_all_kept();
        heap::inspect::granted_from(&self.heap.lock(), reservations)
    }

    /// Bytes of a reservation that are not allocated, and those of its largest block.
    pub(crate) fn left_in_reservation(&self, reservation: ReservationId) -> (u64, u64) {
        let state = heap::reservation::state(&self.heap.lock(), reservation);
        (state.left, state.largest)
    }

    /// Splits off another reservation of that size, if as many bytes are not allocated; with `only_whole`, in one
    /// piece.
    pub(crate) fn split_reservation(
        &self,
        reservation: ReservationId,
        bytes: u64,
        only_whole: bool,
    ) -> Option<ReservationId> {
        heap::reservation::split(&mut self.heap.lock(), reservation, bytes, only_whole)
    }

    /// Moves the unallocated memory of a reservation into another one, or into the pool if that one has ended.
    pub(crate) fn merge_reservation(&self, from: ReservationId, into: ReservationId) {
        heap::reservation::merge(&mut self.heap.lock(), from, into);
        self.publish(Change::Memory);
        self.note_return();
    }

    /// Ends a reservation. Its memory that is not allocated is available to all, once it is complete.
    pub(crate) fn disband(&self, reservation: ReservationId) {
        heap::reservation::disband(&mut self.heap.lock(), reservation);
        self.publish(Change::Memory);
        self.note_return();
    }

    /// Returns the block that an address is in; `None` where the pool has no memory. Takes time proportional to the
    /// number of blocks, under the heap's lock.
    pub(crate) fn block_at(&self, address: u64) -> Option<BlockInfo> {
        Walk::new(self).block_at(address)
    }

    /// Returns all segments and reservations, with the events that led there. Takes time proportional to the number of
    /// blocks, most of it without the heap's lock.
    pub(crate) fn heap_walk(&self) -> HeapWalk {
        Walk::new(self).all()
    }
}
