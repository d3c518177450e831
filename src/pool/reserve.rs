//! Reserving, awaited.

use super::allocate_many::Asked;
use super::reservation::Reservation;
use super::terms::terms;
use super::{Layout, Pool};
use crate::driver::{Allocations, Effort};
use crate::error::AllocError;
use crate::measure::Tag;
use crate::queue::{Acquisition, Asker, Denial, Terms, block_on, try_all_now};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The future of [`Pool::reserve`] and [`Pool::reserve_many`]: a [`Reservation`], once there is memory for it.
///
/// # Errors
/// As [`Allocate`](crate::Allocate), and [`AllocError::NotReservable`] where nothing is pooled.
///
/// # Cancel safety
/// As [`Allocate`](crate::Allocate).
///
/// # Panics
/// When polled after it was ready.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Reserve<'a> {
    pool: &'a Pool,
    allocation: Acquisition<'a>,
    layouts: Box<[Layout]>,
    /// What they come to, once it was polled.
    asked: Option<Asked>,
    /// Its memory is in whole handles, as far as its size is.
    is_whole: bool,
    tag: Option<Tag>,
    terms: Terms,
    location: &'static Location<'static>,
}

impl Pool {
    /// Sets `bytes` aside, in one piece that is complete on every stream, waiting for them if they are not
    /// free. Where memory is virtual and they are as many, it begins with one of the pool's
    /// [handles](crate::PoolBuilder::chunk_bytes). See [`Reservation`] for what can be relied on.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let (stream, other) = (pool.create_stream()?, pool.create_stream()?);
    /// # device.block_on(async {
    /// let reservation = pool.reserve(96 << 20).await?; // all that the request will need
    /// let prompt = reservation.allocate(&stream, 64 << 20)?; // does not wait, and does not fail
    /// let cache = reservation.allocate(&other, 32 << 20)?;
    /// drop(prompt);
    /// let again = reservation.allocate(&stream, 16 << 20)?; // what was freed is there again
    /// # drop((cache, again));
    /// # Ok::<(), weirpool::AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Reserve<'_> {
        Reserve {
            is_whole: true,
            ..self.reserve_many([bytes])
        }
    }

    /// The same with a piece for each layout, so that each of them can be allocated at any time, whatever else
    /// was allocated and freed.
    ///
    /// ```
    /// # use weirpool::{Layout, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// let layouts = [Layout::new(1 << 20), Layout::new(6000).alignment(4096)];
    /// let reservation = pool.reserve_many(layouts).try_now()?;
    /// let table = reservation.allocate(&stream, layouts[1])?;
    /// # drop(table);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn reserve_many<L: Into<Layout>>(
        &self,
        layouts: impl IntoIterator<Item = L>,
    ) -> Reserve<'_> {
        Reserve {
            pool: self,
            allocation: Acquisition::new(self.asker()),
            layouts: layouts.into_iter().map(Into::into).collect(),
            asked: None,
            is_whole: false,
            tag: None,
            terms: Terms::default(),
            location: Location::caller(),
        }
    }

    fn asker(&self) -> Asker<'_> {
        let service = self.service();
        Asker {
            service,
            lane: &service.driver.nobody,
        }
    }
}

impl Reserve<'_> {
    terms!();

    /// The same for that tag, on those terms, asked for there.
    #[cfg(feature = "tower")]
    pub(crate) fn with(
        self,
        tag: Option<Tag>,
        terms: Terms,
        location: &'static Location<'static>,
    ) -> Self {
        Self {
            tag,
            terms,
            location,
            ..self
        }
    }

    /// The same now or not at all, as [`Pool::try_allocate`].
    ///
    /// # Errors
    /// As [`Pool::try_allocate`].
    pub fn try_now(self) -> Result<Reservation, AllocError> {
        let Asked { demand, parts } = self.asked()?;
        let service = self.pool.service();
        match try_all_now(self.pool.asker(), demand, &parts, Effort::Immediate) {
            Ok(allocations) => Ok(self.reservation(allocations, demand.tag)),
            Err(Denial::Failed(error)) => Err(error),
            Err(Denial::Short(..)) => {
                let shortfall = service.exhausted(&service.driver.nobody, &demand);
                Err(AllocError::Exhausted(shortfall.into()))
            }
            Err(Denial::OverLimit(tag)) => Err(service.limit_reached(tag, demand.request.bytes)),
        }
    }

    /// Blocks this thread until there is memory: as [`Allocate::blocking`](crate::Allocate::blocking).
    ///
    /// # Errors
    /// As when it is [awaited](Self).
    pub fn blocking(self) -> Result<Reservation, AllocError> {
        let service = self.pool.service();
        block_on(service, self)
    }

    fn asked(&self) -> Result<Asked, AllocError> {
        let settings = &self.pool.service().driver.settings;
        if !settings.is_pooled {
            return Err(AllocError::NotReservable);
        }
        let mut asked = self.pool.parts_of(&self.layouts, self.tag, true)?;
        if self.is_whole && settings.geometry.virtual_memory {
            asked.parts.align_to_chunks(settings.geometry.chunk_bytes);
        }
        Ok(asked)
    }

    fn reservation(&self, allocations: Allocations, tag: Option<Tag>) -> Reservation {
        Reservation::new(self.pool, allocations, tag, self.location)
    }

    pub(super) fn poll_allocations(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Allocations, AllocError>> {
        let asked = match self.asked.take() {
            Some(asked) => asked,
            None => self.asked()?,
        };
        let Asked { demand, parts } = self.asked.insert(asked);
        // It may be another since.
        self.pool.expect_capacity_for(demand.request.bytes)?;
        self.allocation
            .poll_all(demand, parts, &self.terms, context)
    }
}

impl Future for Reserve<'_> {
    type Output = Result<Reservation, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let allocations = ready!(self.poll_allocations(context))?;
        let tag = self.asked.as_ref().and_then(|asked| asked.demand.tag);
        Poll::Ready(Ok(self.reservation(allocations, tag)))
    }
}
