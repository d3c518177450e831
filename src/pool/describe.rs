//! A pool in words.

use super::Pool;
use crate::device::{DeviceAddress, DeviceId, MemoryKind};
use crate::driver::{BlockInfo, Upstream};
use std::fmt::Write;

impl Pool {
    /// One line for people: the pool's name, what its memory is, where something else was asked for, its
    /// bounds, and its device.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// let device = SimDevice::builder().memory(4 << 30).build();
    /// let pool = Pool::builder(device).name("frames").capacity(1 << 30).build()?;
    /// let line = pool.describe();
    /// let pool_of_frames = "pool \"frames\": virtual device memory, at most 1024 MiB in steps of 8 MiB, on ";
    /// assert_eq!(line, format!("{pool_of_frames}{}", pool.describe_device()));
    /// # Ok::<(), weirpool::BuildError>(())
    /// ```
    pub fn describe(&self) -> String {
        let mut line = String::from("pool");
        if let Some(name) = self.name() {
            // Writing to a string does not fail.
            let _ = write!(line, " {name:?}");
        }
        let _ = write!(
            line,
            ": {}, at most {} MiB{}, on {}",
            self.memory(),
            self.capacity() >> 20,
            self.steps(),
            self.describe_device()
        );
        line
    }

    /// What is in use, and, where it is not what was asked for, why.
    fn memory(&self) -> String {
        let settings = &self.service().driver.settings;
        match (settings.upstream, settings.kind) {
            _ if settings.geometry.virtual_memory => "virtual device memory".into(),
            (Upstream::Virtual, _) if settings.is_pooled => {
                "plain device memory (virtual memory is not supported)".into()
            }
            (_, MemoryKind::Device) => "plain device memory".into(),
            (_, kind) => kind.to_string(),
        }
    }

    fn steps(&self) -> String {
        if self.is_pooled() {
            format!(" in steps of {} MiB", self.chunk_bytes() >> 20)
        } else {
            ", not pooled".into()
        }
    }

    /// Returns the block of this pool that a device address lies in, used or not. Takes time in proportion to the
    /// number of blocks, under the heap's lock.
    pub fn block_at(&self, address: impl Into<DeviceAddress>) -> Option<BlockInfo> {
        self.service().driver.block_at(address.into().to_bits())
    }

    /// Returns the pool's name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.presence.name.as_deref()
    }

    /// The device that the pool is over.
    pub fn device_id(&self) -> DeviceId {
        self.service().driver.device.id()
    }

    /// The kind of the pool's memory.
    pub fn memory_kind(&self) -> MemoryKind {
        self.service().driver.settings.kind
    }

    /// Whether what was freed is kept; see [`unpooled`](crate::PoolBuilder::unpooled).
    pub fn is_pooled(&self) -> bool {
        self.service().driver.settings.is_pooled
    }
}
