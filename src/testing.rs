//! Checks of a pool from outside, for tests of code that uses one.
//!
//! ```
//! use weirpool::testing::Invariants;
//! use weirpool::{Pool, device::sim::SimDevice};
//!
//! let device = SimDevice::new();
//! let pool = Pool::builder(device.clone()).build()?;
//! let stream = pool.create_stream()?;
//! let block = pool.try_allocate(&stream, 4096)?;
//! assert!(pool.check().is_ok());
//! assert!(pool.check_conserved().is_err(), "a block lives");
//! drop(block);
//! pool.check_conserved().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::pool::Pool;
use crate::stream::Stream;

/// Gives each thread that uses the stream a cache of its own, as threads get once they have met at the stream often enough.
pub fn give_threads_caches(stream: &Stream) {
    stream.registration().lane.cache.share();
}

/// The invariants of a pool, as executable checks. Each check takes time in proportion to the number of blocks,
/// under the heap's lock.
pub trait Invariants {
    /// Checks the invariants that hold at every moment: blocks tile their segments, and bytes are conserved.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold.
    fn check(&self) -> Result<(), String>;

    /// Flushes the caches, checks the invariants, and checks that every block was given back. Waits up to 10 s for other
    /// threads that map, release or evict memory, as the pool's maintenance does, or that serve waiting requests.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold, or the bytes that are still in use.
    fn check_conserved(&self) -> Result<(), String>;
}

impl Invariants for Pool {
    fn check(&self) -> Result<(), String> {
        self.service().engine.store.check()
    }

    fn check_conserved(&self) -> Result<(), String> {
        let service = self.service();
        service.engine.check_conserved(|| service.is_serving())
    }
}
