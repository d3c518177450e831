//! Copies between host and device, awaited.

use crate::device::{DeviceError, Transfer};
use crate::handles::Registration;
use crate::lane::WatchedTransfer;
use crate::sync::Arc;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A copy that was submitted to a stream.
struct Copy {
    registration: Arc<Registration>,
    transfer: WatchedTransfer,
}

impl Copy {
    fn new(registration: Arc<Registration>, transfer: Box<dyn Transfer>) -> Self {
        let device = registration
            .lane
            .device(&registration.service.engine.shared.device);
        Self {
            transfer: WatchedTransfer::new(device, transfer),
            registration,
        }
    }

    fn poll<R>(
        &mut self,
        context: &mut Context<'_>,
        take: impl FnOnce(&mut dyn Transfer) -> Result<Option<R>, DeviceError>,
    ) -> Poll<Result<R, DeviceError>> {
        let engine = &self.registration.service.engine;
        if let Some(taken) = engine.shared.noted(take(self.transfer.unwatched()))? {
            self.registration.service.release_synchronized();
            return Poll::Ready(Ok(taken));
        }
        // If the copy completes before this line, the watch wakes at once.
        self.transfer.watch(context.waker());
        Poll::Pending
    }
}

impl fmt::Debug for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copy({})", self.registration.lane.label())
    }
}

/// The future of a copy to the device, or between blocks: ready when the copy is complete, or captured. Made by
/// [`Block::upload`](crate::Block::upload) and [`Block::copy_to`](crate::Block::copy_to).
///
/// # Errors
/// Returns the device's error.
///
/// # Cancel safety
/// Dropping it stops the waiting. The copy still takes place.
#[derive(Debug)]
#[must_use = "awaiting it is optional: work submitted to the stream later comes after the copy"]
pub struct Upload(Option<Copy>);

/// The future of a copy to the host: returns the bytes. Made by [`Block::download`](crate::Block::download).
///
/// # Errors
/// Returns the device's error.
///
/// # Cancel safety
/// Dropping it stops waiting; the memory that the copy needs stays until the copy is complete.
#[derive(Debug)]
#[must_use = "awaiting it returns the bytes"]
pub struct Download(Copy);

impl Upload {
    pub(crate) fn new(registration: Arc<Registration>, transfer: Box<dyn Transfer>) -> Self {
        Self(Some(Copy::new(registration, transfer)))
    }

    /// Returns the future of a copy that is part of a graph.
    pub(crate) fn captured() -> Self {
        Self(None)
    }
}

impl Download {
    pub(crate) fn new(registration: Arc<Registration>, transfer: Box<dyn Transfer>) -> Self {
        Self(Copy::new(registration, transfer))
    }

    /// Returns the future of the elements that the bytes are. Bytes behind the last whole element are left out.
    pub fn elements<T>(self) -> Elements<T> {
        Elements {
            download: self,
            elements: PhantomData,
        }
    }

    /// Waits for the bytes, and copies them into the caller's memory. That memory is written by a poll of this future,
    /// and never by the device.
    pub(crate) async fn copy_to(mut self, into: &mut [u8]) -> Result<(), DeviceError> {
        let mut copy = |transfer: &mut dyn Transfer| Ok(transfer.copy_to(into)?.then_some(()));
        poll_fn(|context| self.0.poll(context, &mut copy)).await
    }
}

/// The future of a copy of elements to the host: returns the elements. Made by
/// [`Buffer::download`](crate::Buffer::download). Errors and cancellation are those of [`Download`].
#[derive(Debug)]
#[must_use = "awaiting it returns the elements"]
pub struct Elements<T> {
    download: Download,
    elements: PhantomData<fn() -> T>,
}

impl<T: bytemuck::AnyBitPattern> Future for Elements<T> {
    type Output = Result<Vec<T>, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let bytes = Pin::new(&mut self.download).poll(context);
        bytes.map_ok(|bytes| {
            let each = bytes.chunks_exact(size_of::<T>().max(1));
            each.map(bytemuck::pod_read_unaligned).collect()
        })
    }
}

impl Future for Upload {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // `None`: the copy is part of a graph.
        let Some(copy) = &mut self.0 else {
            return Poll::Ready(Ok(()));
        };
        copy.poll(context, |transfer| transfer.bytes()).map_ok(drop)
    }
}

impl Future for Download {
    type Output = Result<Vec<u8>, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context, |transfer| transfer.bytes())
    }
}
