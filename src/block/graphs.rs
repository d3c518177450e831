//! Blocks that graphs use: those of memory for graphs, and any block that a call names while a stream is captured.
//!
//! A graph keeps the blocks that its captured work names. A block that ends before its graphs goes to one of them as a
//! value, and ends with that graph. Launches are uses, besides those that the block notes itself.

use super::uses::Points;
use super::{Block, Extra, Uses};
use crate::device::DeviceError;
use crate::engine::ordering;
use crate::handles::Registration;
use crate::handles::{CapturedPoint, GraphShare, GraphUses, HostAccess, Route};
use crate::id::{StreamId, Ticket};
use crate::lane::Lane;
use crate::stream::Event;
use crate::sync::{Arc, plain};
use smallvec::SmallVec;

/// The graphs that use a block.
#[derive(Default)]
pub(super) struct OfGraphs {
    /// The order of the capture that the block was allocated in.
    pub(super) capture: Option<StreamId>,
    /// The memory for graphs that the block was allocated from. Its graphs keep that memory themselves.
    memory: plain::Weak<GraphShare>,
    /// The graphs of other memory whose captured work names the block.
    named_by: SmallVec<[plain::Weak<GraphUses>; 1]>,
}

impl OfGraphs {
    /// Returns a graph that keeps the block, if there is one.
    pub(super) fn keeper(&self) -> Option<plain::Arc<GraphUses>> {
        self.named_by.iter().find_map(plain::Weak::upgrade)
    }

    /// Notes that captured work names the block. Returns whether a launch has to come after its grant, for all that the
    /// graph knew. A block of a capture is granted in the graph itself.
    fn name(&mut self, Route { share, uses, .. }: &Route) -> bool {
        let is_of_memory = std::ptr::eq(self.memory.as_ptr(), plain::Arc::as_ptr(share));
        let is_same =
            |known: &plain::Weak<_>| std::ptr::eq(known.as_ptr(), plain::Arc::as_ptr(uses));
        if is_of_memory {
            return self.capture.is_none();
        }
        if self.named_by.iter().any(is_same) {
            return false;
        }
        self.named_by.retain(|known| known.strong_count() > 0);
        self.named_by.push(plain::Arc::downgrade(uses));
        true
    }
}

impl Block {
    /// Makes it a block of memory for graphs: of the present capture of a stream, or allocated outside captures.
    pub(crate) fn of_graph_memory(
        mut self,
        memory: &plain::Arc<GraphShare>,
        route: Option<&Route>,
    ) -> Self {
        memory.hold_allocated(self.address().to_bits(), self.size());
        let extra = self.extra.get_mut().get_or_insert_default();
        extra.graphs = Some(Box::new(OfGraphs {
            capture: route.map(|route| route.order),
            memory: plain::Arc::downgrade(memory),
            named_by: SmallVec::new(),
        }));
        self
    }

    /// Names a block in the graph that its stream is being captured into, if a request from before the capture was
    /// granted it: the pool's work and the stream's need not name it.
    pub(crate) fn name_if_captured(&self) {
        let home = self.registration();
        if home.lane.cache.is_captured() {
            self.uses().name_captured(home);
        }
    }
}

impl Uses<'_> {
    /// Notes that captured work uses the block: the graph keeps it.
    pub(super) fn name_in(self, route: &Route) {
        let (is_new, residency) = {
            let mut extra = self.block.extra.lock();
            let Extra {
                graphs, residency, ..
            } = &mut **extra.get_or_insert_default();
            (
                graphs.get_or_insert_default().name(route),
                residency.clone(),
            )
        };
        if let Some(residency) = residency {
            residency.name_in(&route.uses);
        }
        if is_new {
            let after = self.block.allocation().after;
            route.uses.record_grant(self.home, after);
        }
    }

    /// Returns a graph that keeps the block, if there is one.
    pub(crate) fn keeper(self) -> Option<plain::Arc<GraphUses>> {
        self.block.extra(Extra::keeper)
    }

    /// Notes a use on a stream that is being captured: the graph keeps the block.
    pub(super) fn name_captured(self, on: &Registration) {
        if let Some(route) = Route::of(on) {
            self.name_in(&route);
        }
    }

    /// Returns the point of a stream that a use on another stream comes after in the graph, if both are in one capture.
    ///
    /// # Errors
    /// Returns an error if the device cannot tell.
    pub(super) fn captured_point(
        self,
        earlier: &Arc<Registration>,
        on: Option<&Arc<Registration>>,
    ) -> Result<Option<CapturedPoint>, DeviceError> {
        let Some(to) = on.and_then(|on| Route::of(on)) else {
            return Ok(None);
        };
        let is_inside = match Route::of(earlier) {
            Some(route) => plain::Arc::ptr_eq(&to.clock, &route.clock),
            None => to.clock.contains(&earlier.lane),
        };
        if !is_inside {
            return Ok(None);
        }
        CapturedPoint::present(&to, earlier).map(Some)
    }

    /// Returns whether any graph ever used the block.
    fn has_graphs(self) -> bool {
        self.block
            .extra(|extra| extra.graphs.as_ref().map(drop))
            .is_some()
    }

    /// Returns the graphs whose launches may use the block.
    fn graphs(self) -> SmallVec<[plain::Arc<GraphUses>; 1]> {
        let mut memory = None;
        let mut all: SmallVec<[_; 1]> = SmallVec::new();
        self.block.extra(|extra| {
            let graphs = extra.graphs.as_ref()?;
            memory = graphs.memory.upgrade();
            all.extend(graphs.named_by.iter().filter_map(plain::Weak::upgrade));
            Some(())
        });
        all.extend(memory.iter().flat_map(|memory| memory.graphs()));
        all
    }

    /// Returns the launches that use the block and may not be complete.
    pub(super) fn launches(self) -> impl Iterator<Item = (Arc<Registration>, Ticket)> {
        let graphs = self.graphs();
        graphs.into_iter().flat_map(|graph| graph.launches())
    }

    /// Returns the streams that the block is used on, those of launches included.
    pub(super) fn lanes_with_launches(self) -> SmallVec<[Arc<Lane>; 2]> {
        let mut lanes = self.lanes();
        if self.has_graphs() {
            self.add_lanes_of_launches(&mut lanes);
        }
        lanes
    }

    #[cold]
    fn add_lanes_of_launches(self, lanes: &mut SmallVec<[Arc<Lane>; 2]>) {
        for (registration, point) in self.launches() {
            let lane = &registration.lane;
            let is_open = lane.timeline.completed() < point;
            let is_own = plain::Arc::ptr_eq(&registration.presence, &self.home.presence);
            if is_open && is_own && lanes.iter().all(|known| known.id != lane.id) {
                lanes.push(lane.clone());
            }
        }
    }

    /// Adds the points of launches that a use on another stream comes after. Work of a captured stream does not run: its
    /// own launches come after those.
    ///
    /// # Errors
    /// Returns an error if the device cannot record an event for one of them.
    pub(super) fn add_launches(
        self,
        on: Option<&Arc<Registration>>,
        points: &mut Points,
    ) -> Result<(), DeviceError> {
        if !self.has_graphs() || on.is_some_and(|on| on.lane.cache.is_captured()) {
            return Ok(());
        }
        for (registration, point) in self.launches() {
            if on.is_none_or(|on| !Arc::ptr_eq(on, &registration)) {
                // In the pool of the launch: an external stream of another pool may be gone.
                let engine = &registration.service.engine;
                let marker = ordering::marker_for(engine, &registration.lane, point)?;
                points.extend(marker.map(|marker| Event::recorded(registration, marker)));
            }
        }
        Ok(())
    }

    /// Lets the host in: until the result is dropped, no graph is launched that uses the block.
    pub(super) fn begin_host_access(self) -> HostAccess {
        HostAccess::begin(self.graphs(), None)
    }
}
