//! Memory of graphs: what its handles, the captures that allocate from it, and the graphs share.

use super::{CaptureClock, GraphUses, Held, Presence, Reserved, ReservedHandle};
use crate::device::CaptureId;
use crate::engine::Allocation;
use crate::error::AllocError;
use crate::heap::Ranges;
use crate::lane::Lane;
use crate::queue::Demand;
use crate::sync::{Arc, Guards, Mutex, Ordering, plain};
use smallvec::SmallVec;

/// The address and the bytes of each block that was allocated at one moment, lowest first.
pub(crate) type Allocated = Vec<(u64, u64)>;

/// Memory that captures allocate from. It is set aside until the last owner is gone. Each graph that was captured is an
/// owner, and the device drops it once no launch of the graph can run any more.
#[derive(Debug)]
pub(crate) struct GraphShare {
    pub(crate) presence: plain::Arc<Presence>,
    parts: Mutex<Vec<ReservedHandle>>,
    /// The graphs that were captured with the memory, and may still exist.
    graphs: Mutex<Vec<plain::Weak<GraphUses>>>,
    /// Those of them that are being captured.
    open: Mutex<Vec<plain::Weak<GraphUses>>>,
    /// The clocks of the captures under way.
    clocks: Mutex<Vec<plain::Weak<CaptureClock>>>,
    /// The ranges of checkpoints that may still exist.
    checkpoints: Mutex<Vec<plain::Weak<Allocated>>>,
    /// How often a graph or checkpoint came to [hold](Self::held) more.
    holds: plain::AtomicU64,
}

impl GraphShare {
    pub(crate) fn new(presence: plain::Arc<Presence>) -> Self {
        Self {
            presence,
            parts: Mutex::new(Guards::Registry, Vec::new()),
            graphs: Mutex::new(Guards::Registry, Vec::new()),
            open: Mutex::new(Guards::Registry, Vec::new()),
            clocks: Mutex::new(Guards::Registry, Vec::new()),
            checkpoints: Mutex::new(Guards::Registry, Vec::new()),
            holds: plain::AtomicU64::new(0),
        }
    }

    /// Returns the clock of a capture, which streams share that join one by one.
    pub(crate) fn clock_of(&self, id: CaptureId) -> plain::Arc<CaptureClock> {
        let new = CaptureClock::new(self.presence.clone());
        new.set_id(id);
        let mut clocks = self.clocks.lock();
        // They may be the last owners: dropped outside the lock, with the new one.
        let all: SmallVec<[_; 2]> = clocks.iter().filter_map(plain::Weak::upgrade).collect();
        let known = all.iter().find(|clock| clock.id() == Some(id)).cloned();
        if known.is_none() {
            clocks.retain(|known| known.strong_count() > 0);
            clocks.push(plain::Arc::downgrade(&new));
        }
        drop(clocks);
        known.unwrap_or(new)
    }

    /// Makes the clock of a capture known that began.
    pub(crate) fn add_clock(&self, clock: &plain::Arc<CaptureClock>) {
        self.clocks.lock().push(plain::Arc::downgrade(clock));
    }

    /// Notes that a range was allocated from the memory: the graphs that are being captured may use it.
    pub(crate) fn hold_allocated(&self, address: u64, bytes: u64) {
        let graphs: SmallVec<[_; 2]> = {
            let open = self.open.lock();
            open.iter().filter_map(plain::Weak::upgrade).collect()
        };
        graphs.iter().for_each(|graph| graph.hold(address, bytes));
        self.count_hold();
    }

    /// Counts that more may be held, after that was noted: see [`held`](Self::held).
    fn count_hold(&self) {
        self.holds.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the ranges that are allocated now, and holds them until the result is dropped.
    pub(crate) fn keep_allocated(&self) -> plain::Arc<Allocated> {
        let ranges = plain::Arc::new(self.allocated());
        {
            let mut checkpoints = self.checkpoints.lock();
            checkpoints.retain(|known| known.strong_count() > 0);
            checkpoints.push(plain::Arc::downgrade(&ranges));
        }
        self.count_hold();
        ranges
    }

    /// Returns the addresses that graphs or checkpoints may use, whose memory must stay where it is.
    pub(crate) fn held(&self) -> Held<'_> {
        // Before the notes are read, so that a later one shows.
        let as_of = self.holds.load(Ordering::Acquire);
        let mut ranges = Ranges::default();
        self.graphs()
            .iter()
            .for_each(|graph| graph.add_held(&mut ranges));
        let checkpoints: Vec<_> = {
            let checkpoints = self.checkpoints.lock();
            checkpoints
                .iter()
                .filter_map(plain::Weak::upgrade)
                .collect()
        };
        for (address, bytes) in checkpoints.iter().flat_map(|ranges| ranges.iter()) {
            ranges.insert(*address, address + bytes);
        }
        Held {
            ranges,
            as_of,
            holds: &self.holds,
        }
    }

    /// Begins the uses of a graph whose capture begins.
    pub(crate) fn begin_graph(self: &plain::Arc<Self>) -> plain::Arc<GraphUses> {
        let uses = GraphUses::new(Box::new(self.clone()));
        for graphs in [&self.graphs, &self.open] {
            let mut graphs = graphs.lock();
            graphs.retain(|known| known.strong_count() > 0);
            graphs.push(plain::Arc::downgrade(&uses));
        }
        for (address, bytes) in self.allocated() {
            uses.hold(address, bytes);
        }
        self.count_hold();
        uses
    }

    /// Notes that the capture of a graph is over, and no stream allocates for it any more.
    pub(crate) fn end_capture(&self, uses: &GraphUses) {
        let mut open = self.open.lock();
        open.retain(|known| !std::ptr::eq(known.as_ptr(), uses));
    }

    /// Returns the graphs that were captured with the memory, and still exist.
    pub(crate) fn graphs(&self) -> SmallVec<[plain::Arc<GraphUses>; 1]> {
        let graphs = self.graphs.lock();
        graphs.iter().filter_map(plain::Weak::upgrade).collect()
    }

    fn parts(&self) -> Vec<Arc<Reserved>> {
        let parts = self.parts.lock();
        parts.iter().map(|part| part.0.clone()).collect()
    }

    /// Adds memory that is set aside. It joins the first part if no tag is charged for either: a request looks at each
    /// part.
    pub(crate) fn add(&self, part: ReservedHandle) {
        let engine = &self.presence.service.engine;
        engine.shared.counters.graphs_grew(part.0.size());
        let known = {
            let mut parts = self.parts.lock();
            let known = parts.iter().find(|known| known.0.may_absorb(&part.0));
            match known.map(|known| known.0.clone()) {
                Some(known) => known,
                None => return parts.push(part),
            }
        };
        known.absorb(part);
    }

    /// Returns the parts that take up more memory: no tag is charged for them.
    pub(crate) fn extensible(&self) -> Vec<Arc<Reserved>> {
        let mut parts = self.parts();
        parts.retain(|part| part.is_plain());
        parts
    }

    /// Returns the parts of which this many bytes could be exchanged.
    pub(crate) fn parts_with(&self, bytes: u64, held: &Held<'_>) -> Vec<Arc<Reserved>> {
        let store = &self.presence.service.engine.store;
        let mut parts = self.parts();
        parts.retain(|part| store.exchangeable(part.id(), &held.ranges) >= bytes);
        parts
    }

    /// Returns the size in bytes, allocated or not.
    pub(crate) fn size(&self) -> u64 {
        self.parts().iter().map(|part| part.size()).sum()
    }

    /// Returns how many bytes are not allocated, and the size of the largest piece of them.
    pub(crate) fn left(&self) -> (u64, u64) {
        let left = self.parts().into_iter().map(|part| part.left());
        left.fold((0, 0), |(all, largest), (left, piece)| {
            (all + left, largest.max(piece))
        })
    }
}

impl Drop for GraphShare {
    fn drop(&mut self) {
        let bytes = self.size();
        let engine = &self.presence.service.engine;
        engine.shared.counters.graphs_shrank(bytes);
    }
}

/// An allocation, and the part of the memory that it belongs to.
pub(crate) type FromPart = (Allocation, Arc<Reserved>);

impl GraphShare {
    /// Allocates from the memory, for use in the order of the lane's stream, if it has enough.
    ///
    /// # Errors
    /// Returns an error if the pool is closed, or the device failed.
    pub(crate) fn draw(
        &self,
        lane: &Arc<Lane>,
        demand: &Demand,
    ) -> Result<Option<FromPart>, AllocError> {
        self.draw_from_parts(|part| part.draw_in_place(lane, demand))
    }

    /// Allocates exactly the demanded bytes from `start`, if they are all in the memory, and not allocated.
    ///
    /// # Errors
    /// Returns an error if the pool is closed, or the device failed.
    pub(crate) fn draw_at(
        &self,
        lane: &Arc<Lane>,
        start: u64,
        demand: &Demand,
    ) -> Result<Option<FromPart>, AllocError> {
        self.draw_from_parts(|part| part.draw_at(lane, start, demand))
    }

    pub(super) fn draw_from_parts(
        &self,
        draw: impl Fn(&Reserved) -> Result<Option<Allocation>, AllocError>,
    ) -> Result<Option<FromPart>, AllocError> {
        for part in self.parts() {
            if let Some(allocation) = draw(&part)? {
                return Ok(Some((allocation, part)));
            }
        }
        Ok(None)
    }

    /// Returns the address and the bytes of each block that is allocated from the memory, lowest first.
    pub(crate) fn allocated(&self) -> Allocated {
        if self.size() == self.left().0 {
            return Allocated::new();
        }
        let parts: Vec<_> = self.parts().iter().map(|part| part.id()).collect();
        self.presence.service.engine.granted_from(&parts)
    }
}
