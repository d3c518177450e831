//! The host as one of a pool's streams.

use super::Pool;
use crate::device::Host;
use crate::error::StreamError;
use crate::stream::Stream;

impl Pool {
    /// The host as a stream of this pool, whose memory it must see. What the host does between two calls is
    /// the work of this stream, in the order of its calls, and over when it goes on:
    ///
    /// - a block that is allocated on it is the host's to read and write at once, and nobody's work is left
    ///   in it; a block of another stream is so once that stream was awaited and it was told by
    ///   [`Block::used_on`](crate::Block::used_on);
    /// - what is freed on it is complete at once: nothing of it is ever pending, and no event is recorded;
    /// - it cannot be made to wait on the device. What the device still uses is awaited:
    ///   [`Stream::wait`] and `used_on` fail while the event is not complete.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weirpool::device::sim::{Operation, SimDevice};
    /// use weirpool::{Pool, Upstream};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).upstream(Upstream::Managed).build()?;
    /// let (host, work) = (pool.host_stream()?, device.create_stream());
    /// let stream = pool.register(&work)?;
    /// device.block_on(async {
    ///     let block = pool.allocate(&host, 1 << 20).await?;
    ///     device.host_write(block.address(), b"weir")?; // the host's work: no copy
    ///     block.used_on(&stream)?; // comes after it
    ///     work.submit(Operation::new(Duration::from_micros(9)).writes(block.address(), 4));
    ///     stream.synchronize().await?; // the host cannot be made to wait: it awaits
    ///     device.host_read(block.address(), &mut [0; 4])?;
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// As with [`register`](Self::register), each call makes a stream of its own; all of them are the host,
    /// which is ordered by itself. (Umpire's host resource is one stream of execution in the same way.)
    ///
    /// # Errors
    /// [`StreamError::UnseenByHost`] when the pool's memory is the device's alone.
    pub fn host_stream(&self) -> Result<Stream, StreamError> {
        self.register(&Host(self.service().driver.device.id()))
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;
    use crate::device::sim::SimDevice;
    use crate::driver::Upstream;

    #[test]
    fn streams_of_the_host_are_seen_off_by_those_that_come() {
        let builder = Pool::builder(SimDevice::new()).upstream(Upstream::Host);
        let pool = builder.build().unwrap();
        for _ in 0..20 {
            let host = pool.host_stream().unwrap();
            drop(pool.try_allocate(&host, 4096).unwrap());
            assert_eq!(pool.service().driver.lanes().len(), 1);
        }
    }
}
