//! Where streams allocate while they are being captured.

use super::{CaptureClock, FromPart, GraphShare, GraphUses, Registration};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::engine::{Change, maintenance, order, ordering};
use crate::error::AllocError;
use crate::id::StreamId;
use crate::lane::Lane;
use crate::queue::Demand;
use crate::sync::{Arc, Guards, Mutex, plain, yield_now};
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

/// The routes of a pool's streams, by the ids of their lanes. All registrations of a stream have routes, or none has.
pub(super) struct Routes(Mutex<FxHashMap<StreamId, Routed>>);

/// A registration that allocates in a capture. It stays until the capture is over, with the memory that was freed on it.
struct Routed {
    registration: Arc<Registration>,
    route: Route,
}

impl Default for Routes {
    fn default() -> Self {
        Self(Mutex::new(Guards::Registry, FxHashMap::default()))
    }
}

impl Routes {
    /// Adds the route of a registration. Returns false if the stream has one by another registration.
    fn enter(&self, routed: Routed) -> bool {
        let mut routes = self.0.lock();
        let registration = &routed.registration;
        let mut others = routes.values();
        if others.any(|other| other.registration.is_of_same_stream(registration)) {
            return false;
        }
        routes.insert(registration.lane.id, routed);
        true
    }

    /// Lets a further registration of a stream take part in the capture of the stream, if there is one.
    pub(super) fn join(&self, registration: &Arc<Registration>) {
        let of_others = |routes: &FxHashMap<StreamId, Routed>| {
            let mut others = routes.values();
            let other = others.find(|other| other.registration.is_of_same_stream(registration));
            other.map(|other| other.route.clone())
        };
        let present = || of_others(&self.0.lock());
        let (engine, lane) = (&registration.service.engine, &registration.lane);
        // Again if that capture ended meanwhile: another one may have begun.
        while let Some(mut route) = present() {
            route.order = route.clock.order_of(lane);
            if !order::begin_capture(&engine.store, lane, route.order) {
                if self.0.lock().contains_key(&lane.id) {
                    return;
                }
                // Another thread is about to be refused a capture of this registration, or to end one.
                yield_now();
                continue;
            }
            {
                let mut routes = self.0.lock();
                let now = of_others(&routes);
                if now.is_some_and(|now| plain::Arc::ptr_eq(&now.uses, &route.uses)) {
                    let registration = registration.clone();
                    routes.insert(
                        lane.id,
                        Routed {
                            registration,
                            route,
                        },
                    );
                    return;
                }
            }
            order::end_capture(engine, lane);
        }
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
        routes
            .get(&stream.lane.id)
            .map(|routed| routed.route.clone())
    }

    /// Lets a stream allocate from memory for graphs, in the order of a capture, until [`end`](Self::end). Its freed blocks
    /// stay pending until then, and the pool makes no call on it. It does so by each of its registrations.
    ///
    /// # Errors
    /// Returns an error if it does so already.
    pub(crate) fn begin(
        stream: &Arc<Registration>,
        share: &plain::Arc<GraphShare>,
        uses: &plain::Arc<GraphUses>,
        clock: &plain::Arc<CaptureClock>,
    ) -> Result<(), DeviceError> {
        let route = Self {
            share: share.clone(),
            uses: uses.clone(),
            clock: clock.clone(),
            order: clock.order_of(&stream.lane),
            others: SmallVec::new(),
        };
        let engine = &stream.service.engine;
        let refused = || {
            let reason = "the stream is being captured already; end that capture first";
            let kind = DeviceErrorKind::Unsupported;
            Err(DeviceError::new("begin_capture", kind, reason))
        };
        if !order::begin_capture(&engine.store, &stream.lane, route.order) {
            return refused();
        }
        let routed = Routed {
            registration: stream.clone(),
            route,
        };
        if !stream.presence.routes.enter(routed) {
            order::end_capture(engine, &stream.lane);
            return refused();
        }
        for other in stream.presence.roll.others_of(stream) {
            if !other.lane.is_external && clock.frontier(&other.lane).is_none() {
                // As for the stream itself. Where the stream is captured already, its freed memory stays pending.
                let _ = ordering::mark(engine, &other.lane);
                stream.service.publish(Change::Memory);
            }
            stream.presence.routes.join(&other);
        }
        Ok(())
    }

    /// Ends what [`begin`](Self::begin) began.
    pub(crate) fn end(stream: &Registration) {
        // They may be the last owners of memory and of streams: dropped outside locks, after the end.
        let ended: Vec<Routed> = {
            let mut routes = stream.presence.routes.0.lock();
            let ended =
                routes.extract_if(|_, routed| routed.registration.is_of_same_stream(stream));
            ended.map(|(_, routed)| routed).collect()
        };
        for routed in &ended {
            order::end_capture(&stream.service.engine, &routed.registration.lane);
        }
        drop(ended);
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
        let route = &mut routes.get_mut(&stream.lane.id)?.route;
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
