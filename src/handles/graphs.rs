//! Memory of graphs: what its handles, the captures that allocate from it, and the graphs share.

use super::{Presence, ReservedHandle};
use crate::driver::Allocation;
use crate::error::AllocError;
use crate::handles::Reserved;
use crate::id::StreamId;
use crate::lane::Lane;
use crate::queue::Demand;
use crate::sync::{Arc, Guards, Mutex, plain};

/// Memory that captures allocate from. It is set aside until the last owner is gone. Each graph that was captured is an
/// owner, and the device drops it once no launch of the graph can run any more.
#[derive(Debug)]
pub(crate) struct GraphShare {
    pub(crate) presence: plain::Arc<Presence>,
    parts: Mutex<Vec<ReservedHandle>>,
}

/// Where a captured stream allocates: the memory, and the order in which it is reused.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) share: plain::Arc<GraphShare>,
    pub(crate) order: StreamId,
}

impl GraphShare {
    pub(crate) fn new(presence: plain::Arc<Presence>) -> Self {
        Self {
            presence,
            parts: Mutex::new(Guards::Registry, Vec::new()),
        }
    }

    fn parts(&self) -> Vec<Arc<Reserved>> {
        let parts = self.parts.lock();
        parts.iter().map(|part| part.0.clone()).collect()
    }

    /// Adds memory that is set aside.
    pub(crate) fn add(&self, part: ReservedHandle) {
        let driver = &self.presence.service.driver;
        driver.counters.note_graphs_grew(part.0.size());
        self.parts.lock().push(part);
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
        let driver = &self.presence.service.driver;
        driver.counters.note_graphs_shrank(bytes);
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
        self.presence.service.driver.granted_from(&parts)
    }
}

impl Route {
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
        self.share
            .draw_from_parts(|part| part.draw_captured(lane, self.order, demand))
    }
}
