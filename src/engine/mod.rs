//! The engine: executes one allocation, and one free, through caches, heap and device.
//!
//! It is the only part that calls the device, and it never does so under a lock (invariant `no-lock-across-calls`). It
//! knows neither futures nor waiters: it reads the *gate*, which is not open while a request waits, and *publishes*
//! what makes memory reachable.
//!
//! The [`Engine`] has five parts. A part knows no other part; a function takes the parts that it needs, or the engine if
//! it needs most of them.
//!
//! | part | contents |
//! |---|---|
//! | [`Shared`] | the device, the settings, the gate, the counters, the fault that ended the pool |
//! | [`HeapStore`] | the heap behind its lock, the bounds on it, evictable memory, the event log |
//! | [`Streams`] | the registered streams, their events, and access of other devices |
//! | [`Supply`] | the memory that the device gave, and the budget for remapping |
//! | [`Maintenance`] | the call of the timer, the threshold and the heuristic |
//!
//! | file | contents |
//! |---|---|
//! | `search`, `recipient` | executes the [search policy](crate::heap::Sequence) for one stream |
//! | `mode` | how memory is asked for, and why a search ended without it |
//! | `parts` | several blocks, all or none |
//! | `draw`, `keeping` | allocating from memory that is set aside; freed blocks that stay apart from the heap |
//! | `order` | memory of graphs: allocations and frees in the order of a captured stream |
//! | `allocation` | a block on its way to its user |
//! | `release`, `pass_through` | frees, and allocations that were never used; frees that an ordered source of segments takes |
//! | `shared`, `store`, `streams`, `supply`, `maintenance` | the parts |
//! | `reaping`, `ordering` | asks streams how far they are; seals them, and orders one behind another |
//! | `registering`, `lanes`, `retired` | adds a stream; the list of lanes; counts of streams that are gone |
//! | `charging` | bytes outside of the heap that count against the capacity |
//! | `spill` | memory that pools of one device ask of each other |
//! | `neighbours`, `access` | other devices of the host, and their access to the memory |
//! | `teardown` | memory that outlives the pool because running work may still touch it |
//! | `publish` | how the engine reports what makes memory reachable |
//! | `fill`, `filling` | filling memory that is granted or freed |
//! | `walk` | all blocks at one moment |
//! | `figures` | how the pool's figures are read |

pub(crate) mod access;
mod allocation;
pub(crate) mod charging;
mod draw;
pub(crate) mod figures;
mod fill;
mod filling;
pub(crate) mod keeping;
pub(crate) mod maintenance;
mod mode;
pub(crate) mod order;
pub(crate) mod ordering;
mod parts;
pub(crate) mod pass_through;
mod publish;
pub(crate) mod reaping;
mod recipient;
pub(crate) mod registering;
pub(crate) mod release;
mod search;
mod shared;
pub(crate) mod spill;
mod store;
mod streams;
pub(crate) mod supply;
mod teardown;
mod walk;

pub(crate) use crate::lane::{AccessScope, Kept, Lanes, ReservationState};
pub(crate) use allocation::{Allocation, Allocations};
pub(crate) use draw::Draw;
pub use fill::Fill;
pub(crate) use fill::Fills;
pub(crate) use filling::{Filling, captures_of};
pub(crate) use maintenance::Maintenance;
pub(crate) use mode::{Effort, Expected, Mode, NoMemory};
pub(crate) use parts::{Part, Parts};
pub(crate) use publish::{Change, Publish};
pub(crate) use recipient::wait_allowed_at;
pub(crate) use shared::{MaintenanceSettings, Settings, Shared, gate};
pub(crate) use store::{CapacityCopy, HeapStore};
pub(crate) use streams::{Streams, Watches};
pub(crate) use supply::{OtherPools, Supply};
pub(crate) use walk::HeapWalk;
pub(crate) use weirpool_measure::announcer::{self, Announcer};
pub(crate) use weirpool_recall::{Candidate, Evict, Group, Home, Lease, Lender, ListPosition};
pub(crate) use weirpool_segments::PlainMemory;
pub use weirpool_segments::Upstream;

use crate::device::Device;
use crate::error::BuildError;
use crate::heap::{self, Placement};
use crate::id::ReservationId;
pub(crate) use crate::lane::Use;
use crate::lane::{Flush, Gate, Lane};
use crate::measure::Waits;
pub use crate::measure::{CoalesceHeuristic, Hits, Source, Statistics, Trimmed};
use crate::sync::{Arc, plain, yield_now};
use crate::timer::Timer;
use search::Search;
use std::time::{Duration, Instant};
use walk::Walk;

/// How long a check waits for memory calls of other threads.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) shared: Shared,
    pub(crate) store: HeapStore,
    pub(crate) streams: Streams,
    pub(crate) supply: Supply,
    pub(crate) maintenance: Maintenance,
}

impl Engine {
    /// # Errors
    /// Returns an error if the device cannot reserve addresses, or the initial memory.
    pub(crate) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        others: OtherPools,
        publisher: plain::Arc<dyn Publish>,
        (waits, gate): (plain::Arc<Waits>, Gate),
        timer: &plain::Arc<Timer>,
    ) -> Result<Self, BuildError> {
        let shared = Shared::new(device, settings, publisher, waits, gate);
        let engine = Self {
            store: HeapStore::new(&shared),
            streams: Streams::new(&shared),
            supply: Supply::new(&shared, others),
            maintenance: Maintenance::new(&shared.settings.maintenance, timer),
            shared,
        };
        supply::reserve_addresses(&engine, engine.store.capacity())?;
        let initial = engine
            .store
            .heap
            .lock()
            .plan_new(engine.shared.settings.initial);
        supply::carry_out_free(&engine, initial)?;
        Ok(engine)
    }

    /// Searches the sources above the stream's own cache for each of the parts, in the order of the policy, the largest
    /// part first.
    ///
    /// # Errors
    /// Returns an error if one of the parts gets no memory; then none does. The heap is then as it was, except for
    /// completed and flushed blocks.
    #[inline(always)]
    pub(crate) fn search(
        &self,
        lane: &Arc<Lane>,
        parts: &Parts,
        mode: Mode<'_>,
    ) -> Result<Allocations, NoMemory> {
        if let Some(part) = parts.plain() {
            let at = (part.request, Placement::Anywhere);
            let found = Search::for_stream(self, lane, at, mode, None).run()?;
            return Ok(Allocations::from_buf([found.allocation]));
        }
        let search = parts::PartsSearch {
            engine: self,
            lane,
            parts,
            mode,
        };
        search.run()
    }

    /// Returns the address and the bytes of each block that is allocated from one of these reservations, lowest first.
    /// Takes time proportional to the number of all blocks, under the heap's lock.
    pub(crate) fn granted_from(&self, reservations: &[ReservationId]) -> Vec<(u64, u64)> {
        let heap = keeping::whole_heap(&self.streams, &self.store);
        heap::inspect::granted_from(&heap, reservations)
    }

    /// Moves the unallocated memory of a reservation into another one, or into the pool if that one has ended.
    pub(crate) fn merge_reservation(&self, from: ReservationId, into: ReservationId) {
        heap::reservation::merge(&mut self.store.heap.lock(), from, into);
        self.shared.publish(Change::Memory);
        maintenance::schedule_after_return(self);
    }

    /// Ends a reservation. Its memory that is not allocated is available to all, once it is complete.
    pub(crate) fn disband(&self, reservation: ReservationId) {
        heap::reservation::disband(&mut self.store.heap.lock(), reservation);
        self.shared.publish(Change::Memory);
        maintenance::schedule_after_return(self);
    }

    /// Checks, after flushing all caches, that no block is allocated any more. Memory that another thread is mapping,
    /// releasing or evicting is waited for, and so is a thread that serves: it may hold memory for a request that was
    /// dropped meanwhile. But not for ever: memory may be lost.
    ///
    /// # Errors
    /// Returns a description of the bytes that are missing.
    pub(crate) fn check_conserved(&self, is_serving: impl Fn() -> bool) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let is_in_hands = is_serving() || self.store.evictables.is_evicting();
            // Memory that they gave back until now may be in a cache.
            self.streams.flush(&self.store, Flush::All);
            let heap = keeping::whole_heap(&self.streams, &self.store);
            let totals = heap.totals();
            let is_quiet = !is_in_hands && totals.claimed + totals.planned == 0;
            if is_quiet || begin.elapsed() > PATIENCE {
                return heap::check::conserved(&heap);
            }
            drop(heap);
            yield_now();
        }
    }

    /// Returns the block that an address is in; `None` where the pool has no memory. Takes time proportional to the
    /// number of blocks, under the heap's lock.
    pub(crate) fn block_at(&self, address: u64) -> Option<crate::measure::BlockInfo> {
        Walk::new(self).block_at(address)
    }

    /// Returns all segments and reservations. Takes time proportional to the number of
    /// blocks, most of it without the heap's lock.
    pub(crate) fn heap_walk(&self) -> HeapWalk {
        Walk::new(self).all()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        teardown::end(self);
    }
}
