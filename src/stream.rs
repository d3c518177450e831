//! A registered stream, and points in it that can be awaited.

use crate::device::{Device, DeviceError, DeviceErrorKind, RawStream};
use crate::engine::{Change, ordering};
use crate::error::StreamError;
use crate::handles::CapturedPoint;
use crate::handles::{Presence, Registration};
use crate::id::StreamId;
use crate::lane::{Marker, refused};
use crate::measure::StreamStatistics;
use crate::observe::parts;
use crate::queue::{Passage, block_on_unless_in_task};
use crate::seam::Fact;
use crate::sync::{Arc, plain};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A stream of the device that is registered with a pool: an in-order executor of device work, and the order in which
/// memory is allocated and freed.
///
/// Work is [submitted](Self::submit) with the memory that it uses, and is a [`Task`](crate::Task): a future of its end.
/// The host takes part in the order by [`run`](Self::run) and [`spawn`](Self::spawn), and [`synchronize`](Self::synchronize) waits for all
/// work submitted so far.
///
/// This is a handle, and cheap to clone. The pool keeps the device's stream usable while any clone or block of it
/// lives, and until all memory that was freed on it is complete.
pub struct Stream {
    pub(crate) registration: Arc<Registration>,
}

impl Clone for Stream {
    fn clone(&self) -> Self {
        Self::from_registration(self.registration.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.registration.count_handle_dropped();
    }
}

impl Stream {
    pub(crate) fn from_registration(registration: Arc<Registration>) -> Self {
        registration.count_handle();
        Self { registration }
    }

    /// Returns the stream's id within the pool, which no other stream of the pool ever has.
    pub fn id(&self) -> StreamId {
        self.registration.lane.id
    }

    /// Gives the stream a name, which statistics, histories, snapshots, traces and exports show beside its
    /// [id](Self::id). A stream keeps the first name it gets: one that the device gave it, or that an earlier call did.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// let stream = pool.register(&device.create_stream())?.named("decode");
    /// let _block = pool.try_allocate(&stream, 4096)?;
    /// assert_eq!(stream.statistics().name.as_deref(), Some("decode"));
    /// assert!(pool.inspect().snapshot().to_string().contains(" decode (S1)"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        let lane = &self.registration.lane;
        if lane.name.set(name.into().into()).is_ok() {
            let (stream, name) = (lane.id, lane.name());
            if let (Some(observers), Some(name)) = (&self.registration.observers, name) {
                observers.named(lane, name);
            }
            let announcer = &self.registration.service.engine.store.announcer;
            announcer.tell(|| Fact::StreamNamed { stream, name });
        }
        self
    }

    /// Returns the stream's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.registration.lane.name()
    }

    /// Returns the device's own name of the stream.
    pub fn raw(&self) -> RawStream {
        self.registration.lane.raw
    }

    /// Returns the stream's device, which may be another one than [its pool's](crate::Pool::device).
    pub fn device(&self) -> &plain::Arc<dyn Device> {
        self.registration.stream_device()
    }

    /// Returns the current figures of this stream.
    pub fn statistics(&self) -> StreamStatistics {
        let Registration { service, lane, .. } = &*self.registration;
        parts::of_stream(&service.engine, lane)
    }

    pub(crate) fn is_of(&self, pool: &plain::Arc<Presence>) -> bool {
        plain::Arc::ptr_eq(&self.registration.presence, pool)
    }

    /// Returns whether only the pool holds the device's stream: no later call can name it.
    pub fn is_abandoned(&self) -> bool {
        let Registration { lane, service, .. } = &*self.registration;
        lane.is_abandoned(&**lane.device(&service.engine.shared.device))
    }

    /// Returns whether the stream is unused: it has no block, request or other handle.
    pub fn is_idle(&self) -> bool {
        self.registration.drop_references();
        Arc::strong_count(&self.registration) == 1
    }

    /// # Errors
    /// Returns an error if this stream cannot wait for events of the other's device.
    pub(crate) fn expect_beside(&self, other: &Registration) -> Result<(), StreamError> {
        let Registration { service, lane, .. } = &*self.registration;
        let device = lane.device(&service.engine.shared.device);
        let other = other.lane.device(&other.service.engine.shared.device).id();
        let peers = device.peer_access();
        let is_beside = device.id() == other || peers.is_some_and(|peers| peers.is_beside(other));
        is_beside.then_some(()).ok_or(StreamError::ForeignDevice)
    }

    pub(crate) fn is_of_pool(&self, other: &Registration) -> bool {
        plain::Arc::ptr_eq(&self.registration.presence, &other.presence)
    }

    /// Returns an event behind all work submitted to the stream so far. In a [capture](crate::Capture) it is a point of the
    /// graph: other streams can [wait](Self::wait) for it there, and it cannot be awaited.
    ///
    /// # Errors
    /// Returns an error if the device cannot record one.
    pub fn event(&self) -> Result<Event, DeviceError> {
        let Registration { service, lane, .. } = &*self.registration;
        if let Some(point) = CapturedPoint::of(&self.registration)? {
            return Ok(Event::captured(self.registration.clone(), point));
        }
        let marker = ordering::mark_for_user(&service.engine, lane)?;
        Ok(Event::recorded(self.registration.clone(), marker))
    }

    /// Makes later work of this stream start after `event`, by a wait on the device that does not block the host. From
    /// then on the pool may reuse memory that was freed before the event on this stream.
    ///
    /// The event may be of another pool's stream, also on another device of the same host. It orders work; no memory
    /// moves between pools.
    ///
    /// An event of a captured stream orders work in the graph. A stream that is not being captured joins the capture by
    /// waiting for it, and allocates from the memory of the capture until that is over.
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignDevice`] if the event is of a device that shares no events with this stream's, or
    /// the device's error; the streams are not ordered then.
    pub fn wait(&self, event: &Event) -> Result<(), StreamError> {
        let Registration { service, lane, .. } = &*self.registration;
        let marker = match &event.at {
            At::Recorded(marker) => marker,
            At::Captured(_) if !self.is_of_pool(&event.registration) => {
                return Err(refused("wait").into());
            }
            At::Captured(point) => return Ok(point.order(&self.registration)?),
        };
        if !self.is_of_pool(&event.registration) {
            self.expect_beside(&event.registration)?;
            ordering::order_behind_other_pool(&service.engine.shared, lane, marker)?;
            return Ok(());
        }
        ordering::order_behind(&service.engine, lane, marker)?;
        service.publish(Change::Order(lane.id));
        Ok(())
    }

    /// Waits until all work submitted to the stream so far is complete.
    ///
    /// # Errors
    /// Returns an error if the device cannot record, or its work failed.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting and nothing else.
    pub fn synchronize(&self) -> Completion {
        Completion(self.event().and_then(|event| event.passage()))
    }

    /// Records an event behind the memory that was freed on the stream so far, unless one covers it already. See
    /// [`Sealing`](crate::Sealing).
    ///
    /// # Errors
    /// Returns an error if the device call fails; the memory stays pending.
    pub fn seal(&self) -> Result<(), DeviceError> {
        let Registration { service, lane, .. } = &*self.registration;
        ordering::seal(&service.engine, lane)?;
        service.publish(Change::Memory);
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.registration.lane.label();
        write!(f, "Stream({label})")
    }
}

/// A point in a stream. It is complete once the device has passed it. Await it (or a reference to it), or make another
/// stream [wait](Stream::wait) for it.
#[derive(Clone)]
pub struct Event {
    pub(crate) registration: Arc<Registration>,
    at: At,
}

#[derive(Clone)]
enum At {
    Recorded(Arc<Marker>),
    /// In a capture, whose work does not run.
    Captured(plain::Arc<CapturedPoint>),
}

impl Event {
    pub(crate) fn recorded(registration: Arc<Registration>, marker: Arc<Marker>) -> Self {
        Self {
            registration,
            at: At::Recorded(marker),
        }
    }

    pub(crate) fn captured(registration: Arc<Registration>, point: CapturedPoint) -> Self {
        Self {
            registration,
            at: At::Captured(plain::Arc::new(point)),
        }
    }

    /// Returns the marker of the point.
    ///
    /// # Errors
    /// Returns an error if the point is in a capture: no event is recorded there.
    pub(crate) fn marker(&self) -> Result<&Arc<Marker>, DeviceError> {
        match &self.at {
            At::Recorded(marker) => Ok(marker),
            At::Captured(_) => Err(refused("query")),
        }
    }

    /// Makes a stream come after the point, unless it is known to do so already.
    ///
    /// # Errors
    /// Returns an error if the device cannot order the stream.
    pub(crate) fn bring_behind(&self, on: &Arc<Registration>) -> Result<(), DeviceError> {
        let engine = &on.service.engine;
        match &self.at {
            At::Recorded(marker)
                if plain::Arc::ptr_eq(&on.presence, &self.registration.presence) =>
            {
                ordering::bring_behind(engine, &on.lane, &self.registration.lane, marker)
            }
            At::Recorded(marker) => {
                ordering::order_behind_other_pool(&engine.shared, &on.lane, marker)
            }
            At::Captured(point) => point.order(on),
        }
    }

    /// Returns whether the device has passed the point.
    ///
    /// # Errors
    /// Returns the device's error. An error never means "not yet".
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        self.passage()?.is_passed()
    }

    fn stream_id(&self) -> StreamId {
        self.registration.lane.id
    }

    /// Returns a future's state that waits for the point.
    ///
    /// # Errors
    /// Returns the error of [`marker`](Self::marker).
    pub(crate) fn passage(&self) -> Result<Passage, DeviceError> {
        Ok(self.registration.passage(self.marker()?.ticket))
    }

    /// Makes a stream come after the point. Where it takes no wait, the host waits.
    ///
    /// # Errors
    /// Returns an error if the device cannot tell when the point is passed, or if the host must not wait here.
    pub(crate) fn come_before(&self, on: &Arc<Registration>) -> Result<(), StreamError> {
        match self.bring_behind(on) {
            Err(error) if error.kind() == DeviceErrorKind::Unsupported => {
                let mut passage = self.passage()?;
                let mut passed = std::future::poll_fn(|context| passage.poll(context));
                let passed =
                    block_on_unless_in_task(&mut passed).ok_or(StreamError::BlocksRuntime)?;
                Ok(passed?)
            }
            ordered => Ok(ordered?),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_tuple("Event");
        all.field(&self.stream_id());
        match &self.at {
            At::Recorded(marker) => all.field(&marker.ticket).finish(),
            At::Captured(_) => all.field(&"captured").finish(),
        }
    }
}

impl IntoFuture for Event {
    type Output = Result<(), DeviceError>;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        Completion(self.passage())
    }
}

impl IntoFuture for &Event {
    type Output = Result<(), DeviceError>;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        Completion(self.passage())
    }
}

/// The future of an [`Event`], and of [`Stream::synchronize`]: it waits for the point at which it was created, not first
/// polled.
///
/// # Cancel safety
/// Dropping it stops the waiting and nothing else.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Completion(Result<Passage, DeviceError>);

impl Future for Completion {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(passage) => passage.poll_synchronizing(context),
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}
