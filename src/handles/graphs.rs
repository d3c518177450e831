//! Memory of graphs: what its handles, the captures that allocate from it, and the graphs share.

use super::{GraphUses, Presence, ReservedHandle};
use crate::device::CaptureId;
use crate::engine::Allocation;
use crate::error::AllocError;
use crate::handles::Reserved;
use crate::id::StreamId;
use crate::lane::Lane;
use crate::queue::Demand;
use crate::sync::{Arc, Guards, Mutex, plain};
use smallvec::SmallVec;

/// Memory that captures allocate from. It is set aside until the last owner is gone. Each graph that was captured is an
/// owner, and the device drops it once no launch of the graph can run any more.
#[derive(Debug)]
pub(crate) struct GraphShare {
    pub(crate) presence: plain::Arc<Presence>,
    parts: Mutex<Vec<ReservedHandle>>,
    /// The graphs that were captured with the memory, and may still exist.
    graphs: Mutex<Vec<plain::Weak<GraphUses>>>,
}

/// Where a captured stream allocates: the memory, and the order in which it is reused.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// What the graph will use.
    pub(crate) uses: plain::Arc<GraphUses>,
    /// The present order, and before it those of other captures of the stream in the same session. The body of a
    /// conditional node is a capture of its own: it runs several times, so that memory freed in it cannot be reused as
    /// if it ran once.
    pub(crate) orders: SmallVec<[StreamId; 1]>,
    /// The device's id of the capture that the present order is of, once it is known.
    pub(crate) capture: Option<CaptureId>,
}

impl GraphShare {
    pub(crate) fn new(presence: plain::Arc<Presence>) -> Self {
        Self {
            presence,
            parts: Mutex::new(Guards::Registry, Vec::new()),
            graphs: Mutex::new(Guards::Registry, Vec::new()),
        }
    }

    /// Makes a graph known whose capture begins.
    pub(super) fn enter(&self, uses: &plain::Arc<GraphUses>) {
        let mut graphs = self.graphs.lock();
        graphs.retain(|known| known.strong_count() > 0);
        graphs.push(plain::Arc::downgrade(uses));
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
        engine.shared.counters.note_graphs_grew(part.0.size());
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
        engine.shared.counters.note_graphs_shrank(bytes);
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

    fn draw_from_parts(
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
    pub(crate) fn allocated(&self) -> Vec<(u64, u64)> {
        let parts: Vec<_> = self.parts().iter().map(|part| part.id()).collect();
        self.presence.service.engine.granted_from(&parts)
    }
}

impl Route {
    pub(crate) fn share(&self) -> &plain::Arc<GraphShare> {
        &self.uses.share
    }

    /// Returns the order of the present capture.
    pub(crate) fn order(&self) -> StreamId {
        *self.orders.last().expect("a session has an order")
    }

    /// Allocates from the memory, in the order of the capture, if it has enough. Returns the part that the block
    /// belongs to as well.
    ///
    /// # Errors
    /// Returns an error if the pool is closed, or the device failed.
    pub(crate) fn draw(
        &self,
        lane: &Lane,
        demand: &Demand,
    ) -> Result<Option<FromPart>, AllocError> {
        let order = self.order();
        self.share()
            .draw_from_parts(|part| part.draw_captured(lane, order, demand))
    }
}
