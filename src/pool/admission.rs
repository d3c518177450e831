//! Who may wait, at run time.

use super::Pool;
use crate::measure::Tag;
use crate::queue::QueueLimit;
use std::time::Duration;

impl Pool {
    /// Sets how many requests may wait for memory at once: a number, or a [`QueueLimit`]. A request that would
    /// have to wait beyond that fails at once, with [`QueueFull`](crate::AllocError::QueueFull). Those who wait
    /// now stay.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, QueueLimit, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).capacity(2 << 20).queue_limit(64).build()?;
    /// # let stream = pool.create_stream()?;
    /// let all = pool.try_allocate(&stream, 2 << 20)?;
    /// pool.set_queue_limit(0); // from now on nobody may begin to wait
    /// let refused = device.block_on(pool.allocate(&stream, 4096));
    /// assert!(matches!(refused, Err(AllocError::QueueFull { waiting: 0, limit: 0, .. })));
    /// pool.set_queue_limit(QueueLimit::bytes(1 << 30));
    /// # drop(all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_queue_limit(&self, limit: impl Into<QueueLimit>) {
        self.service().queue.set_queue_limit(limit.into());
    }

    /// How many may wait at once.
    pub fn queue_limit(&self) -> QueueLimit {
        self.service().queue.queue_limit()
    }

    /// How long a request for so many bytes would wait that came now and said nothing of its waiting, if memory
    /// was short and went on to come back as it does: an estimate, on the device's clock. None before at least
    /// eight requests were served that had to wait.
    ///
    /// It is the bytes of all who would be served before, and its own, over the bytes that those were granted
    /// in a second who waited before, by and large the last 64 of them; time in which nobody waited does not
    /// count, and a standstill counts from its beginning. It knows nothing of what the blocks in use are used
    /// for, nor of weights, overtaking, or who waits for the limit of a tag.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).build()?;
    /// assert_eq!(pool.expected_wait(1 << 20), None); // nobody has waited yet
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expected_wait(&self, bytes: u64) -> Option<Duration> {
        self.service().expected_wait(None, bytes)
    }

    /// Estimates how long a request of `tag` for `bytes` bytes would wait that comes now, over the tag's
    /// [limit](Self::set_tag_limit): until the limit allows it, and then for [memory](Self::expected_wait). `None` before
    /// at least eight requests of the tag waited for the limit and were let in.
    pub fn expected_wait_of(&self, tag: Tag, bytes: u64) -> Option<Duration> {
        self.service().expected_wait(Some(tag), bytes)
    }
}
