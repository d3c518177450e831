//! What tags may have, and how they take turns.

use super::Pool;
use crate::measure::Tag;
use crate::queue::{QueueLimit, Service};

impl Pool {
    /// Sets how many bytes `tag` may have of this pool at once; with `None`, any number.
    ///
    /// A request that would go over it waits until enough of that tag was freed, outside the queue: it
    /// keeps no other request waiting, and later requests of the same tag come after it. Then it takes the
    /// place in the queue that it has by its coming. A `try_allocate` fails with
    /// [`LimitReached`](crate::AllocError::LimitReached), and what is larger than the limit with
    /// [`OverLimit`](crate::AllocError::OverLimit). What counts is the bytes of live blocks and of requests
    /// that were let into the queue.
    ///
    /// A higher limit lets in at once whom it allows. A lower one takes nothing back: until enough was freed,
    /// nobody of the tag is let in; and who waits for more than it fails. RMM's
    /// `limiting_resource_adaptor` and PyTorch's `set_per_process_memory_fraction` are the like for all of
    /// a process.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, Tag, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let guest = Tag::new("guest");
    /// let pool = Pool::builder(device.clone()).tag_limit(guest, 64 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// let allocate = |bytes| pool.allocate(&stream, bytes).tag(guest);
    /// let block = allocate(48 << 20).try_now()?;
    /// assert!(matches!(allocate(32 << 20).try_now(), Err(AllocError::LimitReached { .. })));
    /// assert!(matches!(allocate(65 << 20).try_now(), Err(AllocError::OverLimit { .. })));
    ///
    /// # device.block_on(async {
    /// let waiting = allocate(32 << 20); // until the block is freed, or there may be more:
    /// pool.set_tag_limit(guest, Some(96 << 20));
    /// let more = waiting.await?;
    /// # drop((block, more));
    /// # Ok::<(), AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_tag_limit(&self, tag: Tag, limit: Option<u64>) {
        Service::set_tag_limit(self.service(), tag, limit);
    }

    /// Sets how many requests of `tag` may wait for its limit at once; with `None`, as many as may
    /// [wait for memory](Self::set_queue_limit), which is the default. A request beyond that fails at once, with
    /// [`QueueFull`](crate::AllocError::QueueFull).
    ///
    /// Requests that wait for the limit of their tag do not count for the pool's queue limit: a flood of one tenant
    /// does not refuse the requests of others.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, Tag, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let guest = Tag::new("guest: few may wait");
    /// let pool = Pool::builder(device.clone()).tag_limit(guest, 4 << 20).build()?;
    /// pool.set_tag_queue_limit(guest, Some(0.into())); // its requests never wait for its limit
    /// # let stream = pool.create_stream()?;
    /// let all = device.block_on(pool.allocate(&stream, 4 << 20).tag(guest))?;
    /// let refused = device.block_on(pool.allocate(&stream, 4096).tag(guest));
    /// assert!(matches!(refused, Err(AllocError::QueueFull { limit: 0, .. })));
    /// # drop(all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_tag_queue_limit(&self, tag: Tag, limit: Option<QueueLimit>) {
        self.service().queue.set_tag_queue_limit(tag, limit);
    }

    /// How many requests of `tag` may wait for its limit at once.
    pub fn tag_queue_limit(&self, tag: Tag) -> QueueLimit {
        self.service().queue.tag_queue_limit(tag)
    }

    /// How many bytes `tag` may have of this pool at once, if that is limited.
    pub fn tag_limit(&self, tag: Tag) -> Option<u64> {
        self.service().queue.accounts.get(tag)?.limit()
    }

    /// Sets the weight of `tag` in the queue; with 0 it has none, as at the beginning.
    ///
    /// Requests wait first come, first served. A tag with a weight takes turns instead with all that have
    /// none, which together have a weight of 1, and with the other tags of a weight: while several have
    /// requests waiting, each gets bytes in proportion to its weight (start-time fair queueing), and
    /// within a tag the first come is the first served. So a tenant's flood of requests delays another's by
    /// about one request, and not by the flood. Turns are given to requests that wait, and cost nothing while
    /// nobody does; what a tag holds for long is bounded by its [limit](Self::set_tag_limit).
    ///
    /// ```
    /// # use weirpool::{Pool, Tag, device::sim::SimDevice};
    /// # use std::task::{Context, Waker};
    /// # let device = SimDevice::new();
    /// let [paying, free] = ["paying", "free of charge"].map(Tag::new);
    /// let pool = Pool::builder(device.clone())
    ///     .capacity(2 << 20)
    ///     .tag_weight(paying, 3)
    ///     .tag_weight(free, 1)
    ///     .build()?;
    /// # let stream = pool.create_stream()?;
    /// let block = pool.try_allocate(&stream, 2 << 20)?; // all there is
    /// let wait_for = |tag| Box::pin(pool.allocate(&stream, 2 << 20).tag(tag));
    /// # let context = &mut Context::from_waker(Waker::noop());
    /// let mut flood: Vec<_> = (0..100).map(|_| wait_for(free)).collect();
    /// let mut one = wait_for(paying);
    /// # for waiting in &mut flood { assert!(waiting.as_mut().poll(context).is_pending()); }
    /// # assert!(one.as_mut().poll(context).is_pending());
    /// drop(block);
    /// # let first = flood.remove(0);
    /// drop(device.block_on(first)?); // was its flow's first, and came before
    /// drop(device.block_on(one)?); // and not after the flood
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_tag_weight(&self, tag: Tag, weight: u32) {
        self.service().queue.accounts.of(tag).set_weight(weight);
    }

    /// The weight of `tag` in the queue; 0 if it has none.
    pub fn tag_weight(&self, tag: Tag) -> u32 {
        let account = self.service().queue.accounts.get(tag);
        let weight = account.and_then(|account| account.weight());
        weight.map_or(0, std::num::NonZeroU32::get)
    }
}
