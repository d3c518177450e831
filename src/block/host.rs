//! The host's own use of memory that it sees.

use super::order::Point;
use super::{Access, Block};
use crate::device::HostView;
use crate::error::StreamError;
use crate::queue::Passage;
use bytemuck::{AnyBitPattern, NoUninit};
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

impl Block {
    /// The block's bytes, for the host to read and write where they lie, in memory that it
    /// [sees](crate::device::MemoryKind::is_seen_by_host): ready once all uses so far are complete, on every
    /// stream. While the guard lives nobody else can use the block, and whatever is submitted later comes
    /// after what the host wrote.
    ///
    /// ```
    /// # use weirpool::{Pool, Upstream, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).upstream(Upstream::Pinned).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let mut block = pool.allocate(&stream, 512).await?;
    /// block.host().await?[..4].copy_from_slice(b"weir");
    /// assert_eq!(block.download(&stream, 0..4)?.await?, b"weir");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StreamError::UnseenByHost`] when the pool's memory is the device's alone: copy it, with
    /// [`download`](Self::download) and [`upload`](Self::upload). Otherwise when the device cannot record an
    /// event behind the uses so far, or its work failed.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting and nothing else.
    #[track_caller]
    pub fn host(&mut self) -> impl Future<Output = Result<HostGuard<'_, u8>, StreamError>> + Send {
        let bytes = self.size() as usize;
        self.host_elements(bytes)
    }

    /// The first `count` elements of the block, for which it is large enough, and aligned.
    #[track_caller]
    pub(crate) fn host_elements<T: AnyBitPattern + NoUninit>(
        &mut self,
        count: usize,
    ) -> impl Future<Output = Result<HostGuard<'_, T>, StreamError>> + Send {
        let location = Location::caller();
        let uses = self.uses_of_all();
        async move {
            for mut passage in uses? {
                poll_fn(|context| passage.poll(context)).await?;
            }
            let driver = &self.registration.service.driver;
            let address = self.allocation().address;
            // SAFETY: all uses of the block are complete, and the guard borrows it mutably.
            #[allow(unsafe_code)]
            let view = unsafe { HostView::new(&driver.device, address, count, location) };
            Ok(HostGuard {
                view: driver.noted(view)?,
                block: PhantomData,
            })
        }
    }

    /// The points behind all uses so far.
    fn uses_of_all(&self) -> Result<Vec<Passage>, StreamError> {
        let service = &self.registration.service;
        if !service.driver.settings.kind.is_seen_by_host() {
            return Err(StreamError::UnseenByHost);
        }
        let points = self.points_before(Access::Write, None)?;
        Ok(points.iter().map(Point::passage).collect())
    }
}

/// A block's elements in the hand of the host, which sees its memory: a slice. Made by
/// [`Block::host`] and [`Buffer::host`](crate::Buffer::host).
///
/// It borrows the block, so that nothing else uses it meanwhile; the work that did is complete. On the
/// simulated device the slice is a copy, which is written back when the guard is dropped, if it was changed.
///
/// # Panics
/// When it is dropped, on the simulated device, with what the [ordering checker](crate::guide::testing) found.
#[must_use = "the elements are the host's for as long as it lives"]
pub struct HostGuard<'a, T: NoUninit> {
    view: HostView<T>,
    block: PhantomData<&'a mut Block>,
}

impl<T: NoUninit> Deref for HostGuard<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.view.elements()
    }
}

impl<T: NoUninit> DerefMut for HostGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.view.elements_mut()
    }
}

impl<T: NoUninit> fmt::Debug for HostGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostGuard")
            .field("type", &std::any::type_name::<T>())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
