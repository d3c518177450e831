//! The account of a tag with a pool: its limit, its weight in the queue, and its figures.

use super::Pool;
use crate::measure::{Tag, TagStatistics};
use crate::observe::parts;
use crate::queue::{QueueLimit, serving};
use std::time::Duration;

/// The account of a [`Tag`] with a pool; of [`Pool::tag`].
///
/// ```
/// # use weirpool::{Pool, Tag, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// let guest = Tag::new("guest");
/// let pool = Pool::builder(device.clone()).build()?;
/// pool.tag(guest).set_limit(Some(64 << 20));
/// # let stream = pool.create_stream()?;
/// let block = pool.allocate(&stream, 1 << 20).tag(guest).try_now()?;
/// assert_eq!(pool.tag(guest).statistics().limit, Some(64 << 20));
/// assert_eq!(pool.tag(guest).statistics().used.current, 1 << 20);
/// # drop(block);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TagAccount<'a> {
    pool: &'a Pool,
    tag: Tag,
}

impl<'a> TagAccount<'a> {
    pub(super) fn new(pool: &'a Pool, tag: Tag) -> Self {
        Self { pool, tag }
    }

    /// Returns the tag's current figures in this pool.
    pub fn statistics(&self) -> TagStatistics {
        parts::of_tag(self.pool.service(), self.tag)
    }

    /// Sets the most bytes that the tag may hold at once; with `None`, any number. Live blocks count, and requests
    /// that were admitted to the queue.
    ///
    /// A request that would exceed the limit is throttled: it waits outside the queue until enough of the tag's memory
    /// was freed. It delays no other request, except for later ones of the same tag. Then it takes the queue position
    /// of its arrival. A `try_now` fails with [`LimitReached`](crate::AllocError::LimitReached), and a request that is
    /// larger than the limit with [`OverLimit`](crate::AllocError::OverLimit).
    ///
    /// A higher limit admits the throttled requests that it allows at once. A lower one takes nothing back: no request
    /// of the tag is admitted until enough was freed, and waiting requests larger than the limit fail. RMM's
    /// `limiting_resource_adaptor` and PyTorch's `set_per_process_memory_fraction` do the same for a whole process.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, Tag, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let guest = Tag::new("guest");
    /// let pool = Pool::builder(device.clone()).build()?;
    /// pool.tag(guest).set_limit(Some(64 << 20));
    /// # let stream = pool.create_stream()?;
    /// let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
    /// let block = allocate(48 << 20).try_now()?;
    /// assert!(matches!(allocate(32 << 20).try_now(), Err(AllocError::LimitReached { .. })));
    /// assert!(matches!(allocate(65 << 20).try_now(), Err(AllocError::OverLimit { .. })));
    ///
    /// # device.block_on(async {
    /// let waiting = allocate(32 << 20); // until the block is freed, or the limit is raised:
    /// pool.tag(guest).set_limit(Some(96 << 20));
    /// let more = waiting.await?;
    /// # drop((block, more));
    /// # Ok::<(), AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_limit(&self, limit: Option<u64>) {
        serving::set_tag_limit(self.pool.service(), self.tag, limit);
    }

    /// Sets how many requests of the tag may wait at once, for its limit and for memory together. A request beyond that
    /// fails at once, with [`QueueFull`](crate::AllocError::QueueFull).
    ///
    /// With `None`, the default, as many may wait for the tag's limit as [the pool's queue limit](super::Maintain::set_queue_limit)
    /// allows, and the tag has its [share](QueueLimit) of the pool's queue. Requests that wait for the limit of their tag do
    /// not count for the pool's queue limit. So a flood of one tenant does not get the requests of others refused.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, Tag, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let guest = Tag::new("guest: few may wait");
    /// let pool = Pool::builder(device.clone()).build()?;
    /// pool.tag(guest).set_limit(Some(4 << 20));
    /// pool.tag(guest).set_queue_limit(Some(0.into())); // its requests never wait
    /// # let stream = pool.create_stream()?;
    /// let all = device.block_on(pool.allocate(&stream, 4 << 20).tag(guest))?;
    /// let refused = device.block_on(pool.allocate(&stream, 4096).tag(guest));
    /// assert!(matches!(refused, Err(AllocError::QueueFull(full)) if full.limit == 0));
    /// # drop(all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_queue_limit(&self, limit: Option<QueueLimit>) {
        let members = &mut *self.pool.service().queue.lock();
        members.queue.set_limit_of(self.tag, limit);
    }

    /// Estimates how long a request of the tag for `bytes` bytes that arrives now would wait over the tag's
    /// [limit](Self::set_limit): until the limit allows it, and then for [memory](super::Inspect::expected_wait), at the tag's
    /// weight. `None` before at least eight requests of the tag waited for the limit and were admitted.
    pub fn expected_wait(&self, bytes: u64) -> Option<Duration> {
        let tag = Some(self.tag);
        self.pool.service().expected_wait(tag, tag, bytes)
    }

    /// Sets the weight of the tag in the queue; with 0, the default, it has none.
    ///
    /// Requests wait first come, first served. A tag with a weight takes turns instead, with the other weighted tags,
    /// and with all tags without a weight, which together have a weight of 1. While several of them have requests
    /// waiting, each gets bytes in proportion to its weight (start-time fair queueing); within a tag, first come is
    /// first served. A tenant's flood of requests therefore delays another tenant by about one request, and not by the
    /// flood. Turns cost nothing while no request waits. Memory that a tag holds for long is bounded by its
    /// [limit](Self::set_limit).
    ///
    /// ```
    /// # use weirpool::{Pool, Tag, device::sim::SimDevice};
    /// # use std::task::{Context, Waker};
    /// # let device = SimDevice::new();
    /// let [paying, free] = ["paying", "free of charge"].map(Tag::new);
    /// let pool = Pool::builder(device.clone())
    ///     .capacity(2 << 20)
    ///     .build()?;
    /// pool.tag(free).set_weight(1);
    /// pool.tag(paying).set_weight(3);
    /// # let stream = pool.create_stream()?;
    /// let block = pool.try_allocate(&stream, 2 << 20)?; // the whole capacity
    /// let wait_for = |tag| Box::pin(pool.allocate(&stream, 2 << 20).tag(tag));
    /// # let context = &mut Context::from_waker(Waker::noop());
    /// let mut flood: Vec<_> = (0..100).map(|_| wait_for(free)).collect();
    /// let mut one = wait_for(paying);
    /// # for waiting in &mut flood { assert!(waiting.as_mut().poll(context).is_pending()); }
    /// # assert!(one.as_mut().poll(context).is_pending());
    /// drop(block);
    /// # let first = flood.remove(0);
    /// drop(device.block_on(first)?); // the first of its tag, and it came before
    /// drop(device.block_on(one)?); // ahead of the rest of the flood
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_weight(&self, weight: u32) {
        self.pool.service().queue.set_weight(self.tag, weight);
    }
}
