//! What can be told of the driver: of the heap, of the lanes, and of lanes that are gone.
//!
//! Each lane counts for itself, and who asks adds up, one lane after the other: while other threads
//! allocate and free, a sum may be off by what moved in between. Lanes and what gone ones left are taken
//! from the registry together, so that no lane is missed or counted twice.

use super::{Driver, Source, counters};
use crate::device::MemoryInfo;
use crate::error::Shortfall;
use crate::heap::{Figures, High, Request};
use crate::lane::{Counts, Lane};
use crate::measure::{Histogram, Mark};
use crate::sync::Arc;

/// What lanes counted together, those included that are gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InLanes {
    pub(crate) counts: Counts,
    /// Bytes of blocks at most: the highest of each lane, added up.
    pub(crate) high: u64,
    pub(crate) cached: u64,
    /// Bytes kept that are complete on every stream.
    pub(crate) cached_complete: u64,
}

/// What lanes that are gone left behind.
#[derive(Debug)]
pub(super) struct Gone {
    counts: Counts,
    /// Every mark that is kept, with the highest of each lane that is gone since, added up.
    highs: Vec<(Mark, u64)>,
    next: Mark,
}

impl Default for Gone {
    fn default() -> Self {
        Self {
            counts: Counts::default(),
            highs: vec![(Mark::RESET, 0)],
            next: Mark(Mark::RESET.0 + 1),
        }
    }
}

impl Gone {
    /// A lane comes: it keeps the marks that there are.
    pub(super) fn greet(&self, lane: &Lane) {
        let marks = self.highs.iter().map(|(mark, _)| *mark);
        for mark in marks.filter(|mark| *mark != Mark::RESET) {
            lane.cache.begin(mark);
        }
    }

    /// A lane goes.
    pub(super) fn bury(&mut self, lane: &Lane) {
        self.counts.add(&lane.figures().counts);
        for (mark, sum) in &mut self.highs {
            *sum = sum.saturating_add(lane.cache.counts_since(*mark).1);
        }
    }

    fn begin(&mut self) -> Mark {
        let mark = self.next;
        self.next = Mark(mark.0 + 1);
        self.highs.push((mark, 0));
        mark
    }

    fn high_since(&self, mark: Mark) -> u64 {
        let found = self.highs.iter().find(|(known, _)| *known == mark);
        found.map_or(0, |(_, sum)| *sum)
    }

    fn reset_high(&mut self) {
        let reset = self.highs.iter_mut().find(|(mark, _)| *mark == Mark::RESET);
        reset.into_iter().for_each(|(_, sum)| *sum = 0);
    }
}

impl Driver {
    pub(crate) fn heap_figures(&self) -> Figures {
        self.heap.lock().figures()
    }

    pub(crate) fn in_lanes(&self) -> InLanes {
        let (lanes, mut sum) = {
            let registry = self.lanes.lock();
            let sum = InLanes {
                counts: registry.gone.counts,
                high: registry.gone.high_since(Mark::RESET),
                ..InLanes::default()
            };
            (registry.lanes.clone(), sum)
        };
        for lane in lanes.iter() {
            let figures = lane.figures();
            sum.counts.add(&figures.counts);
            sum.high = sum.high.saturating_add(figures.high_bound());
            sum.cached += figures.cached;
            sum.cached_complete += figures.cached_complete;
        }
        sum
    }

    /// Bytes freed on a lane's stream, or used there and freed, that are not known to be complete.
    pub(crate) fn pending_on(&self, lane: &Lane) -> u64 {
        let figures = lane.figures();
        let in_heap = self.heap.lock().pending_on(lane.id);
        in_heap + figures.cached - figures.cached_complete
    }

    /// How long frees were pending, as far as was asked.
    pub(crate) fn pending_ages(&self) -> Histogram {
        self.events.ages()
    }

    /// Times that the device was asked for memory, or to map it elsewhere, and did so.
    pub(crate) fn growths(&self) -> u64 {
        counters::read(&self.counters.growths)
    }

    /// Events made so far (I8).
    pub(crate) fn events_created(&self) -> u64 {
        self.events.created()
    }

    /// Sets a high-water mark to the present figure.
    pub(crate) fn reset_high(&self, high: High) {
        self.heap.lock().reset_high(high);
        if high == High::Used {
            let lanes = {
                let mut registry = self.lanes.lock();
                registry.gone.reset_high();
                registry.lanes.clone()
            };
            lanes.iter().for_each(|lane| lane.cache.reset_high());
        }
    }

    /// Keeps the highest that the used bytes are since now. Returns what is counted so far.
    pub(crate) fn begin(&self) -> (Mark, Counts) {
        let (mark, lanes, mut counts) = {
            let mut registry = self.lanes.lock();
            let mark = registry.gone.begin();
            (mark, registry.lanes.clone(), registry.gone.counts)
        };
        {
            let mut heap = self.heap.lock();
            let allocation = heap.totals().used.current;
            heap.used_peaks.begin(mark, allocation);
        }
        for lane in lanes.iter() {
            counts.add(&lane.cache.begin(mark));
        }
        (mark, counts)
    }

    /// What is counted so far, and a bound of what the used bytes have been since a mark. Two bounds are
    /// known, and the lower one counts: of the heap, to whom what lanes keep is used; and of the lanes,
    /// whose highest may have been at different times.
    pub(crate) fn counts_since(&self, mark: Mark) -> (Counts, u64) {
        let (lanes, mut counts, mut high) = {
            let registry = self.lanes.lock();
            let high = registry.gone.high_since(mark);
            (registry.lanes.clone(), registry.gone.counts, high)
        };
        for lane in lanes.iter() {
            let (lane_counts, lane_high) = lane.cache.counts_since(mark);
            counts.add(&lane_counts);
            high = high.saturating_add(lane_high);
        }
        let allocation = self.heap.lock().used_peaks.since(mark);
        (
            counts,
            allocation.map_or(high, |allocation| allocation.min(high)),
        )
    }

    pub(crate) fn end(&self, mark: Mark) {
        let lanes: Arc<Vec<Arc<Lane>>> = {
            let mut registry = self.lanes.lock();
            registry.gone.highs.retain(|(known, _)| *known != mark);
            registry.lanes.clone()
        };
        lanes.iter().for_each(|lane| lane.cache.end(mark));
        self.heap.lock().used_peaks.end(mark);
    }

    /// How memory stands, for an error.
    pub(crate) fn shortfall(&self, request: Request, waiting: usize) -> Shortfall {
        let cached = self.in_lanes().cached;
        let figures = self.heap_figures();
        let totals = figures.totals;
        Shortfall {
            requested: request.bytes,
            free: totals.free.current,
            largest_free: figures.largest_free,
            pending: totals.pending.current + cached,
            used: totals.used.current.saturating_sub(cached),
            reserved: totals.reserved.current,
            capacity: self.capacity(),
            waiting,
            tag: None,
            device: self.refused_by_device(request.bytes, totals.reserved.current),
        }
    }

    /// What the device has, if it refused so many bytes when it was asked last, and not the capacity.
    fn refused_by_device(&self, bytes: u64, reserved: u64) -> Option<MemoryInfo> {
        let is_allowed = reserved.saturating_add(bytes) <= self.capacity();
        let is_refused = is_allowed && self.pressure.is_felt();
        let info = is_refused.then(|| self.device.memory_info(self.settings.kind));
        info?.ok()
    }

    /// Grants so far by the source that gave them, in the order of [`Source::ALL`].
    pub(crate) fn hits(&self, in_lanes: &Counts) -> [u64; Source::COUNT] {
        let mut hits = Source::ALL.map(|source| self.counters.hits(source));
        hits[Source::Lane as usize] = in_lanes.hits;
        hits
    }
}
