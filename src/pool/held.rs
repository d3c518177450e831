//! What a pool holds from the device: how much it may be, and what of it goes back or becomes one piece.

use super::{Pool, builder};
use crate::device::DeviceError;
use crate::driver::Change;
use crate::error::BuildError;
use crate::heap::policy::ReleaseThreshold;
use crate::queue::Service;

impl Pool {
    /// What the pool may hold from the device at most, in bytes.
    pub fn capacity(&self) -> u64 {
        self.service().driver.capacity()
    }

    /// Sets what the pool may hold from the device at most, in bytes; rounded down to whole handles, and to
    /// what the device has. Returns what it is now.
    ///
    /// More of it serves who waits for memory at once. Less of it fails who waits for more than that; what
    /// is held above it is released if it is free, and the rest a while after it comes back (see
    /// [`maintenance_interval`](crate::PoolBuilder::maintenance_interval)).
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).capacity(64 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// assert_eq!(pool.resize(32 << 20)?, 32 << 20);
    /// let refused = pool.try_allocate(&stream, 48 << 20);
    /// assert!(matches!(refused, Err(AllocError::TooLarge { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::CapacityTooSmall`] for less than a handle; the device's error when it cannot reserve
    /// addresses, and nothing changed, or cannot release memory.
    pub fn resize(&self, bytes: u64) -> Result<u64, BuildError> {
        let driver = &self.service().driver;
        let total = driver.device.memory_info(driver.settings.kind)?.total;
        let handle = self.chunk_bytes();
        let capacity = bytes.min(total) / handle * handle;
        if capacity == 0 {
            return Err(BuildError::CapacityTooSmall {
                capacity: bytes,
                granularity: handle,
            });
        }
        let resized = driver.resize(capacity);
        // Even if memory could not be released: who waits for more than the capacity is told.
        Service::serve(self.service());
        self.service().publish(Change::Terms);
        resized?;
        Ok(capacity)
    }

    /// The size of the physical handles, in bytes: the step in which the pool grows, remaps and trims.
    pub fn chunk_bytes(&self) -> u64 {
        self.service().driver.settings.geometry.chunk_bytes
    }

    /// Gives free memory back to the device until `bytes` are reserved, or no more is free. Takes back
    /// what lanes keep first. Returns the bytes released. Memory in use or pending stays.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let used = pool.try_allocate(&stream, 32 << 20)?;
    /// drop(pool.try_allocate(&stream, 64 << 20)?);
    /// assert_eq!(pool.trim_to(0)?, 64 << 20);
    /// assert_eq!(pool.statistics().reserved.current, used.size());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the device cannot; what it released before counts.
    pub fn trim_to(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.service().driver.trim(bytes)
    }

    /// Makes all that is free one piece, with what lanes keep: by mapping it together, without copying, or
    /// where memory is plain, by releasing free segments and taking one as large. Memory in use or pending
    /// stays where it is. Returns the bytes of the largest free piece. Umpire's name for it.
    ///
    /// May take a while, and where memory is plain wait for the device. What is moved counts as taken for
    /// that time: a `try_allocate` elsewhere may fail.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(64 << 20).handle_bytes(2 << 20).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let blocks: Vec<_> = (0..8).map(|_| pool.try_allocate(&stream, 2 << 20)).collect::<Result<_, _>>()?;
    /// let kept: Vec<_> = blocks.into_iter().step_by(2).collect(); // every other one is freed
    /// assert_eq!(pool.coalesce()?, 4 * (2 << 20));
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the device cannot; nothing is lost.
    pub fn coalesce(&self) -> Result<u64, DeviceError> {
        self.service().driver.coalesce()
    }

    /// Sets how much the pool may hold before it gives free memory back by itself.
    #[doc(alias = "cudaMemPoolAttrReleaseThreshold")]
    #[doc(alias = "hipMemPoolAttrReleaseThreshold")]
    #[doc(alias = "set_mempool_release_threshold")]
    ///
    /// # Errors
    /// When it is a fraction that is none, or the device cannot tell how much memory it has.
    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) -> Result<(), BuildError> {
        builder::check_threshold(threshold)?;
        let driver = &self.service().driver;
        let total = driver.device.memory_info(driver.settings.kind)?.total;
        driver.set_release_threshold(threshold.bytes(total));
        Ok(())
    }

    /// How much the pool may hold before it gives free memory back by itself, in bytes; `u64::MAX` where it
    /// keeps all.
    pub fn release_threshold(&self) -> u64 {
        self.service().driver.maintenance.threshold()
    }
}
