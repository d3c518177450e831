//! Several blocks, awaited together: all or none.

use super::terms::terms;
use super::{Layout, Pool, exhausted};
use crate::block::Block;
use crate::driver::{Allocations, Effort, Part, Parts};
use crate::error::AllocError;
use crate::heap::{Placement, Request};
use crate::measure::Tag;
use crate::queue::{
    Acquisition, Caller, Demand, Denial, Registration, Terms, block_on, try_all_now,
};
use crate::stream::Stream;
use crate::sync::{Arc, plain};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The future of [`Pool::allocate_many`]: a block for each layout, in their order.
///
/// # Errors
/// As [`Allocate`](crate::Allocate), for all of them together; then there is none of them.
///
/// # Cancel safety
/// As [`Allocate`](crate::Allocate).
///
/// # Panics
/// As [`Allocate`](crate::Allocate).
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct AllocateMany<'a> {
    pool: &'a Pool,
    registration: &'a Arc<Registration>,
    allocation: Acquisition<'a>,
    layouts: Box<[Layout]>,
    /// What they come to, once it was polled.
    asked: Option<Asked>,
    tag: Option<Tag>,
    terms: Terms,
    location: &'static Location<'static>,
}

/// Layouts, checked at the quota queue.
#[derive(Debug)]
pub(super) struct Asked {
    /// What all of them are together.
    pub(super) demand: Demand,
    pub(super) parts: Parts,
}

impl Pool {
    /// Allocates a block for each layout, all or none, from one place in the queue.
    ///
    /// A task that takes what it needs one after the other may hold some while it waits for more, and two such
    /// tasks may wait for each other for ever. One that asks for all of it at once cannot; nor can one that
    /// [reserves](Self::reserve) it, where it is not known beforehand what will be needed when.
    ///
    /// ```
    /// # use weirpool::{Layout, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let layouts = [Layout::new(64 << 20), Layout::new(4096).alignment(4096)];
    /// let [cache, table] = pool.allocate_many(&stream, layouts).await?.try_into().unwrap();
    /// assert_eq!((cache.size(), table.address().is_aligned_to(4096)), (64 << 20, true));
    /// # Ok::<(), weirpool::AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn allocate_many<'a, L: Into<Layout>>(
        &'a self,
        stream: &'a Stream,
        layouts: impl IntoIterator<Item = L>,
    ) -> AllocateMany<'a> {
        let registration = stream.registration();
        AllocateMany {
            pool: self,
            registration,
            allocation: Acquisition::new((&**registration).into()),
            layouts: layouts.into_iter().map(Into::into).collect(),
            asked: None,
            tag: None,
            terms: Terms::default(),
            location: Location::caller(),
        }
    }

    /// Checks layouts at the quota queue: what each part is asked for, and what all of them are together.
    pub(super) fn parts_of(
        &self,
        layouts: &[Layout],
        tag: Option<Tag>,
        is_for_everybody: bool,
    ) -> Result<Asked, AllocError> {
        let demands = layouts
            .iter()
            .map(|layout| self.demand_of(layout.bytes, layout.alignment, tag));
        let demands = demands.collect::<Result<Vec<_>, _>>()?;
        let all = demands.iter().map(|demand| Part {
            request: demand.request,
            rounding: demand.rounding,
        });
        let bytes = demands.iter().map(|demand| demand.request.bytes);
        let bytes = bytes.fold(0u64, u64::saturating_add);
        self.expect_capacity_for(bytes)?;
        let parts = Parts {
            all: all.collect::<plain::Arc<[_]>>(),
            is_for_everybody,
            placement: Placement::Anywhere,
        };
        let alignment = 1;
        let demand = Demand {
            request: Request { bytes, alignment },
            rounding: 0,
            tag,
        };
        Ok(Asked { demand, parts })
    }

    /// # Errors
    /// When so many bytes are more than the pool may hold now.
    pub(super) fn expect_capacity_for(&self, requested: u64) -> Result<(), AllocError> {
        let capacity = self.capacity();
        if requested > capacity {
            return Err(AllocError::TooLarge {
                requested,
                capacity,
            });
        }
        Ok(())
    }
}

impl AllocateMany<'_> {
    terms!();

    /// The same now or not at all, as [`Pool::try_allocate`].
    ///
    /// # Errors
    /// As [`Pool::try_allocate`], for all of them together; then there is none of them.
    pub fn try_now(self) -> Result<Vec<Block>, AllocError> {
        let asked = self.asked()?;
        let demand = asked.demand;
        let asker = (&**self.registration).into();
        match try_all_now(asker, demand, &asked.parts, Effort::Immediate) {
            Ok(allocations) => self.blocks(allocations, &asked, false),
            Err(Denial::Failed(error)) => Err(error),
            Err(Denial::Short(..)) => Err(exhausted(self.registration, &demand)),
            Err(Denial::OverLimit(tag)) => {
                let service = self.pool.service();
                Err(service.limit_reached(tag, demand.request.bytes))
            }
        }
    }

    /// Blocks this thread until there is memory: as [`Allocate::blocking`](crate::Allocate::blocking).
    ///
    /// # Errors
    /// As when it is [awaited](Self).
    pub fn blocking(self) -> Result<Vec<Block>, AllocError> {
        let service = &self.registration.service;
        block_on(service, self)
    }

    fn asked(&self) -> Result<Asked, AllocError> {
        self.pool.expect_of(self.registration)?;
        self.pool.parts_of(&self.layouts, self.tag, false)
    }

    fn blocks(
        &self,
        allocations: Allocations,
        asked: &Asked,
        waited: bool,
    ) -> Result<Vec<Block>, AllocError> {
        let location = self.location;
        let caller = Caller { location, waited };
        let parts = &asked.parts.all;
        let blocks = allocations
            .into_iter()
            .zip(&**parts)
            .map(|(allocation, part)| {
                let demand = Demand::of_part(*part, asked.demand.tag);
                Block::new(self.registration, allocation, &demand, caller)
            });
        // All of them first: what is lent has an owner from here on, whatever becomes of the others.
        let blocks: Vec<_> = blocks.collect();
        blocks.into_iter().collect()
    }
}

impl Future for AllocateMany<'_> {
    type Output = Result<Vec<Block>, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let asked = match this.asked.take() {
            Some(asked) => asked,
            None => this.asked()?,
        };
        let Asked { demand, parts } = this.asked.insert(asked);
        // It may be another since.
        this.pool.expect_capacity_for(demand.request.bytes)?;
        let polled = this
            .allocation
            .poll_all(demand, parts, &this.terms, context);
        let allocations = ready!(polled)?;
        let waited = this.allocation.has_waited();
        let asked = this.asked.take().expect("what was asked for just now");
        Poll::Ready(this.blocks(allocations, &asked, waited))
    }
}
