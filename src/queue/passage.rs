//! The future of a stream's point: it is ready once the device has passed it.

use super::Service;
use crate::device::DeviceError;
use crate::engine::{ordering, reaping};
use crate::heap::Fences;
use crate::id::Ticket;
use crate::lane::{Lane, Watch};
use crate::sync::Arc;
use crate::worker;
use smallvec::SmallVec;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A wait for one ticket of one stream.
///
/// It is sealed when first polled, and watched from then on: no reclaimer is needed. Dropped, it takes
/// its watch back, and the ticket completes all the same.
#[derive(Debug)]
pub(crate) struct Passage {
    service: Arc<Service>,
    lane: Arc<Lane>,
    ticket: Ticket,
    /// The marker is held for as long as its event is watched: it must not be recorded anew.
    watch: Option<Watch>,
}

impl Passage {
    pub(crate) fn new(service: Arc<Service>, lane: Arc<Lane>, ticket: Ticket) -> Self {
        Self {
            service,
            lane,
            ticket,
            watch: None,
        }
    }

    /// Returns whether the stream has passed the point, as far as the device can tell now.
    ///
    /// # Errors
    /// Returns the device's error.
    pub(crate) fn is_passed(&self) -> Result<bool, DeviceError> {
        reaping::has_passed(&self.service.engine, &self.lane, self.ticket)
    }

    /// Polls for a caller that synchronizes: when it is ready, the pool releases memory above its threshold.
    pub(crate) fn poll_synchronizing(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeviceError>> {
        let polled = self.poll(context);
        if let Poll::Ready(Ok(())) = polled {
            self.service.release_synchronized();
        }
        polled
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        let engine = &self.service.engine;
        if self.is_passed()? {
            self.watch = None;
            return Poll::Ready(Ok(()));
        }
        match ordering::marker_for(engine, &self.lane, self.ticket)? {
            None => Poll::Ready(Ok(())),
            Some(marker) => {
                // If it completes before this line, the watch calls at once.
                self.watch = Some(Watch::new(marker, context.waker()));
                Poll::Pending
            }
        }
    }
}

/// The points of streams after which no work of the device uses a block's memory. It is a future, which is ready once
/// the streams have passed all of them: as `Default`, at once.
///
/// # Errors
/// Returns an error if the device cannot record an event, or reports an error instead of completion. Unless the error is
/// sticky, it can be polled again.
///
/// # Cancel safety
/// Dropping it stops waiting and has no other effect.
#[derive(Debug, Default)]
#[must_use = "work of the device may use the memory until they are over"]
pub struct Passages {
    points: SmallVec<[Passage; 1]>,
    /// Counts foreign memory while work may use it.
    foreign: Option<Box<ForeignBytes>>,
}

impl Passages {
    /// Waits for all fences. Their streams are among `lanes`.
    pub(crate) fn new(service: &Arc<Service>, lanes: &[Arc<Lane>], fences: &Fences) -> Self {
        let mut passages = Self {
            points: SmallVec::new(),
            foreign: None,
        };
        for fence in fences.iter() {
            if let Some(lane) = lanes.iter().find(|lane| lane.id == fence.stream) {
                passages.add(Passage::new(service.clone(), lane.clone(), fence.ticket));
            }
        }
        passages
    }

    /// Counts foreign memory for as long as these exist.
    pub(crate) fn of_foreign(
        mut self,
        service: &Arc<Service>,
        bytes: u64,
        location: Option<&'static Location<'static>>,
    ) -> Self {
        self.foreign = Some(Box::new(ForeignBytes {
            service: service.clone(),
            bytes,
            location,
        }));
        self
    }

    /// Returns where the block was [deallocated](crate::Block::deallocate). A drop does not know its caller.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.foreign.as_ref()?.location
    }

    /// Waits for a further point as well.
    pub(crate) fn add(&mut self, passage: Passage) {
        self.points.push(passage);
    }

    /// Calls `job` once they are over, on a thread of the process that runs one such job at a time. A job may make
    /// device calls, and calls that block. One that panics ends alone.
    ///
    /// If the device is broken, work may run for ever: then the job is never called, and the values that it owns are
    /// leaked. A device that cannot record an event now is asked again: at once a few times, and then from time to time.
    pub fn then(mut self, job: impl FnOnce() + Send + 'static) {
        let job = ManuallyDrop::new(job);
        worker::run(async move {
            if self.are_over().await {
                ManuallyDrop::into_inner(job)();
            }
        });
    }

    /// Waits until they are over, as far as the device can tell. Returns whether they are: not if it is broken, because
    /// the work may still run then.
    async fn are_over(&mut self) -> bool {
        const AT_ONCE: u32 = 3;
        const LONGEST: Duration = Duration::from_secs(1);
        let service = self.points.first().map(|passage| passage.service.clone());
        for round in 0.. {
            match (&mut *self).await {
                Ok(()) => return true,
                Err(error) if error.is_sticky() => return false,
                Err(_) if round < AT_ONCE => {}
                Err(_) => {
                    let service = service.as_ref().expect("a point that is not over");
                    let pause = Duration::from_millis(1 << round.min(10)).min(LONGEST);
                    let at = service.now().saturating_add(pause);
                    let deadline = service.timer.deadline(true);
                    poll_fn(|context| match deadline.has_come(at, context.waker()) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    })
                    .await;
                }
            }
        }
        false
    }

    /// Polls for a caller that synchronizes; see [`Passage::poll_synchronizing`].
    pub(crate) fn poll_synchronizing(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeviceError>> {
        let service = self.points.first().map(|passage| passage.service.clone());
        let polled = Pin::new(self).poll(context);
        if let (Poll::Ready(Ok(())), Some(service)) = (&polled, service) {
            service.release_synchronized();
        }
        polled
    }
}

impl FromIterator<Passage> for Passages {
    fn from_iter<I: IntoIterator<Item = Passage>>(points: I) -> Self {
        Self {
            points: points.into_iter().collect(),
            foreign: None,
        }
    }
}

impl Future for Passages {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(passage) = self.points.last_mut() {
            match passage.poll(context) {
                Poll::Ready(Ok(())) => drop(self.points.pop()),
                unfinished => return unfinished,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Foreign memory of a block that has ended, which counts until work is over.
#[derive(Debug)]
struct ForeignBytes {
    service: Arc<Service>,
    bytes: u64,
    location: Option<&'static Location<'static>>,
}

impl Drop for ForeignBytes {
    fn drop(&mut self) {
        let counters = &self.service.engine.shared.counters;
        counters.foreign_shrank(self.bytes);
    }
}
