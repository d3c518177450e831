//! Where streams allocate while they are being captured.

use super::{CaptureClock, FromPart, GraphShare, GraphUses, Registration};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::engine::{Change, maintenance, order};
use crate::error::AllocError;
use crate::id::StreamId;
use crate::lane::Lane;
use crate::queue::Demand;
use crate::sync::{Arc, Guards, Mutex, plain};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Where a captured stream allocates: the memory, and the order in which it is reused.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) share: plain::Arc<GraphShare>,
    /// What the graph will use.
    pub(crate) uses: plain::Arc<GraphUses>,
    pub(crate) clock: plain::Arc<CaptureClock>,
    /// The stream's id in the capture.
    pub(crate) order: StreamId,
    /// The clocks of other captures of the stream in the same session, which last as long. The body of a conditional node is
    /// a capture of its own: it runs several times, so that memory freed in it cannot be reused as if it ran once.
    others: SmallVec<[plain::Arc<CaptureClock>; 1]>,
}

/// The routes of a pool's streams, by the ids of their lanes.
pub(super) struct Routes(Mutex<FxHashMap<StreamId, Route>>);

impl Default for Routes {
    fn default() -> Self {
        Self(Mutex::new(Guards::Registry, FxHashMap::default()))
    }
}

impl Route {
    /// Returns where a stream allocates while it is being captured.
    #[inline]
    pub(crate) fn of(stream: &Registration) -> Option<Self> {
        match stream.lane.cache.is_captured() {
            true => Self::of_captured(stream),
            false => None,
        }
    }

    #[cold]
    fn of_captured(stream: &Registration) -> Option<Self> {
        let routes = stream.presence.routes.0.lock();
        routes.get(&stream.lane.id).cloned()
    }

    /// Lets a stream allocate from memory for graphs, in the order of a capture, until [`end`](Self::end). Its freed blocks
    /// stay pending until then, and the pool makes no call on it.
    ///
    /// # Errors
    /// Returns an error if it does so already.
    pub(crate) fn begin(
        stream: &Registration,
        share: &plain::Arc<GraphShare>,
        uses: &plain::Arc<GraphUses>,
        clock: &plain::Arc<CaptureClock>,
    ) -> Result<(), DeviceError> {
        let order = clock.order_of(&stream.lane);
        if !order::begin_capture(&stream.service.engine.store, &stream.lane, order) {
            let reason = "the stream is being captured already; end that capture first";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("begin_capture", kind, reason));
        }
        let route = Self {
            share: share.clone(),
            uses: uses.clone(),
            clock: clock.clone(),
            order,
            others: SmallVec::new(),
        };
        let former = stream
            .presence
            .routes
            .0
            .lock()
            .insert(stream.lane.id, route);
        drop(former);
        Ok(())
    }

    /// Ends what [`begin`](Self::begin) began.
    pub(crate) fn end(stream: &Registration) {
        // It may be the last owner of memory: dropped outside locks, after the end.
        let route = stream.presence.routes.0.lock().remove(&stream.lane.id);
        order::end_capture(&stream.service.engine, &stream.lane);
        drop(route);
        stream.service.publish(Change::Memory);
        // Memory that was freed on the captured stream had no event to watch.
        maintenance::note_progress(&stream.service.engine);
    }

    /// Ends the routes of the streams that joined the capture of a graph by waiting.
    pub(crate) fn end_joined(uses: &GraphUses) {
        uses.take_joined()
            .iter()
            .for_each(|stream| Self::end(stream));
    }

    /// Goes on in the order of another capture, unless another thread did so first, or the session is over. Returns where
    /// the stream allocates then.
    pub(crate) fn go_on(
        &self,
        stream: &Registration,
        clock: plain::Arc<CaptureClock>,
    ) -> Option<Self> {
        let order = clock.order_of(&stream.lane);
        // The clock may have its last owner here: it is dropped outside the lock.
        let mut routes = stream.presence.routes.0.lock();
        let route = routes.get_mut(&stream.lane.id)?;
        if plain::Arc::ptr_eq(&route.clock, &self.clock) {
            route.order = order;
            route
                .others
                .retain(|other| !plain::Arc::ptr_eq(other, &clock));
            let former = std::mem::replace(&mut route.clock, clock.clone());
            route.others.push(former);
            stream.lane.cache.continue_capture(order);
        }
        Some(route.clone())
    }

    /// Allocates from the memory, in the order of the capture, if it has enough. Returns the part that the block
    /// belongs to as well.
    ///
    /// # Errors
    /// Returns an error if the pool is closed, or the device failed.
    pub(crate) fn draw(
        &self,
        lane: &Arc<Lane>,
        demand: &Demand,
    ) -> Result<Option<FromPart>, AllocError> {
        let by = (&*self.clock, self.order);
        self.share
            .draw_from_parts(|part| part.draw_captured(lane, by, demand))
    }
}
