//! A pool's figures.

use crate::engine::{Engine, Rung};
use crate::ledger::Level;
use crate::sync::{Ordering, SharedNumber};
use crate::wait::{Service, WaitStatistics};

/// A pool's figures at one moment; bytes unless said otherwise.
///
/// `reserved`, `used` and `pending` are the names that CUDA and HIP use. Each lane counts for itself,
/// so that the hot path writes nothing shared; a reader adds up. At a quiescent point
/// `free + used + pending = reserved`; while other threads allocate and free, the lanes are read one
/// after the other, and the sum may be off by what moved in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Held from the device. Exact.
    pub reserved: Level,
    /// In blocks that somebody owns. The high is a bound: what lanes kept counts as used in it, so
    /// it is at most the lanes' bound for each stream too high.
    pub used: Level,
    /// Given back, but behind work that is not known to be complete. The high leaves out what lanes
    /// kept and do not keep any more.
    pub pending: Level,
    /// Any stream can have it at once.
    pub free: u64,
    /// The largest free block: what a request can have without remapping or growing.
    pub largest_free: u64,
    /// Free blocks, in number.
    pub free_blocks: usize,
    /// What lanes keep for their own streams: in `pending`, or in `free` once complete.
    pub kept_by_lanes: u64,
    /// Grants by the rung that gave them.
    pub hits: Hits,
    /// How requests waited.
    pub waits: WaitStatistics,
    /// Times that memory was mapped, or taken from the device.
    pub growths: u64,
    /// Handles taken from the device.
    pub handles_created: u64,
    /// Handles mapped elsewhere.
    pub remaps: u64,
    /// Waits on the device that the pool inserted.
    pub device_waits: u64,
    /// Given back to the device so far.
    pub released: u64,
    /// Events made so far; in a steady state it stands still.
    pub events_created: u64,
}

/// Grants by the rung that gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits([u64; Rung::COUNT]);

impl Hits {
    /// Grants that `rung` gave.
    pub fn of(&self, rung: Rung) -> u64 {
        self.0[rung as usize]
    }

    /// All grants.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// What lanes add to the ledger's figures.
#[derive(Default)]
struct InLanes {
    hits: u64,
    kept: u64,
    kept_complete: u64,
}

impl InLanes {
    fn of(engine: &Engine) -> Self {
        let mut sum = Self::default();
        for lane in engine.lanes().iter() {
            let figures = lane.figures();
            sum.hits += figures.hits;
            sum.kept += figures.kept;
            sum.kept_complete += figures.kept_complete;
        }
        sum.hits += engine.hits_of_gone_lanes();
        sum
    }
}

impl Statistics {
    pub(crate) fn of(service: &Service) -> Self {
        let engine = &service.engine;
        let lanes = InLanes::of(engine);
        let totals = engine.totals();
        let tally = &engine.tally;
        let read = |number: &SharedNumber| number.load(Ordering::Relaxed);
        let pending = totals.pending.current + lanes.kept - lanes.kept_complete;
        Self {
            reserved: totals.reserved,
            used: Level {
                current: totals.lent.current.saturating_sub(lanes.kept),
                high: totals.lent.high,
            },
            pending: Level {
                current: pending,
                high: totals.pending.high.max(pending),
            },
            free: totals.free.current + lanes.kept_complete,
            largest_free: engine.largest_free(),
            free_blocks: engine.free_blocks(),
            kept_by_lanes: lanes.kept,
            hits: hits(engine, lanes.hits),
            waits: service.queue.statistics(),
            growths: read(&tally.growths),
            handles_created: read(&tally.handles_created),
            remaps: read(&tally.remaps),
            device_waits: read(&tally.device_waits),
            released: read(&tally.released),
            events_created: engine.events_created(),
        }
    }
}

fn hits(engine: &Engine, in_lanes: u64) -> Hits {
    let mut hits = Rung::ALL.map(|rung| engine.tally.hits(rung));
    hits[Rung::Lane as usize] = in_lanes;
    Hits(hits)
}
