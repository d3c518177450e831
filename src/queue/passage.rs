//! The future of a stream's point: it is ready once the device has passed it.

use super::Service;
use crate::device::{DeviceError, Watch};
use crate::engine::{ordering, reaping};
use crate::heap::Fences;
use crate::id::Ticket;
use crate::lane::{Lane, Marker};
use crate::sync::Arc;
use smallvec::SmallVec;
use std::task::{Context, Poll};

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
    watch: Option<Watch<Marker>>,
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
        reaping::has_passed(
            &self.service.engine.shared,
            &self.service.engine.store,
            &self.lane,
            self.ticket,
        )
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
        match ordering::marker_for(&engine.streams, &engine.shared, &self.lane, self.ticket)? {
            None => Poll::Ready(Ok(())),
            Some(marker) => {
                // If it completes before this line, the watch calls at once.
                self.watch = Some(Watch::new(marker, context.waker()));
                Poll::Pending
            }
        }
    }
}

/// A wait for several tickets: those of a deallocation.
#[derive(Debug)]
pub(crate) struct Passages(SmallVec<[Passage; 1]>);

impl Passages {
    /// Waits for all fences. Their streams are among `lanes`.
    pub(crate) fn new(service: &Arc<Service>, lanes: &[Arc<Lane>], fences: &Fences) -> Self {
        let lane_of = |stream| lanes.iter().find(|lane| lane.id == stream);
        let passages = fences.iter().filter_map(|fence| {
            let lane = lane_of(fence.stream)?;
            Some(Passage::new(service.clone(), lane.clone(), fence.ticket))
        });
        Self(passages.collect())
    }

    /// Waits for a further point as well.
    pub(crate) fn add(&mut self, passage: Passage) {
        self.0.push(passage);
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        while let Some(passage) = self.0.last_mut() {
            match passage.poll(context) {
                Poll::Ready(Ok(())) => drop(self.0.pop()),
                unfinished => return unfinished,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Polls for a caller that synchronizes; see [`Passage::poll_synchronizing`].
    pub(crate) fn poll_synchronizing(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), DeviceError>> {
        let service = self.0.first().map(|passage| passage.service.clone());
        let polled = self.poll(context);
        if let (Poll::Ready(Ok(())), Some(service)) = (&polled, service) {
            service.release_synchronized();
        }
        polled
    }
}
