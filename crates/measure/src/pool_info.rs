//! The description and the health of a pool.

use std::fmt;
use std::time::Duration;
use weirpool_device::{DeviceError, MemoryKind};
use weirpool_heap::debug_in_units;
use weirpool_heap::units::Bytes;
use weirpool_queue::QueueLimit;
use weirpool_segments::Upstream;

/// The description of a pool, from [`Inspect::describe`](https://docs.rs/weirpool/latest/weirpool/struct.Inspect.html#method.describe). Its `Display` form is one line of text.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// let device = SimDevice::builder().memory(4 << 30).build();
/// let pool = Pool::builder(device).name("frames").capacity(1 << 30).build()?;
/// let description = pool.inspect().describe();
/// assert_eq!((description.is_virtual, description.chunk_bytes), (true, 8 << 20));
/// let line = "pool \"frames\": virtual device memory, up to 1.0 GiB in chunks of 8.0 MiB, on ";
/// assert_eq!(description.to_string(), format!("{line}{}", description.device));
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolDescription {
    /// The pool's name, if it has one.
    pub name: Option<String>,
    /// The device's description line.
    pub device: String,
    /// The memory that was requested of the device.
    pub upstream: Upstream,
    /// The kind of the memory.
    pub memory_kind: MemoryKind,
    /// The owner of the memory, if it comes from a [source of segments](https://docs.rs/weirpool/latest/weirpool/extend/trait.SegmentSource.html).
    pub segment_owner: Option<&'static str>,
    /// Whether each allocation and free is passed on to that source, in the order of its stream.
    pub is_passed_through: bool,
    /// Whether free chunks can be mapped elsewhere, so that they make one piece.
    pub is_virtual: bool,
    /// Whether freed memory is kept; see [`Upstream::Unpooled`].
    pub is_pooled: bool,
    /// The most bytes that the pool may reserve from the device.
    pub capacity: u64,
    /// The size of chunks in bytes: the step in which the pool grows, remaps and trims.
    pub chunk_bytes: u64,
    /// The number of reserved bytes above which the pool gives free memory back without being asked; `u64::MAX` where it
    /// keeps all.
    pub release_threshold: u64,
    /// How many requests may wait at once.
    pub queue_limit: QueueLimit,
}

debug_in_units!(struct PoolDescription { name, device, upstream, memory_kind, segment_owner, is_passed_through, is_virtual, is_pooled, capacity as bytes, chunk_bytes as bytes, release_threshold as bytes, queue_limit });

impl PoolDescription {
    /// Describes a pool over virtual memory that keeps freed memory and has no name.
    #[doc(hidden)]
    pub fn of(device: String, upstream: Upstream, memory_kind: MemoryKind) -> Self {
        Self {
            name: None,
            device,
            upstream,
            memory_kind,
            segment_owner: None,
            is_passed_through: false,
            is_virtual: true,
            is_pooled: true,
            capacity: 0,
            chunk_bytes: 0,
            release_threshold: u64::MAX,
            queue_limit: QueueLimit::NONE,
        }
    }

    /// Describes the memory, with the reason if it is not the requested kind.
    fn memory(&self) -> String {
        if let Some(owner) = self.segment_owner {
            return format!("{} of {owner}", self.memory_kind);
        }
        match (self.upstream, self.memory_kind) {
            _ if self.is_virtual => "virtual device memory".into(),
            (Upstream::Virtual, _) => {
                "plain device memory (virtual memory is not supported)".into()
            }
            (_, MemoryKind::Device) => "plain device memory".into(),
            (_, kind) => kind.to_string(),
        }
    }
}

impl fmt::Display for PoolDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pool")?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        write!(f, ": {}, up to {}", self.memory(), Bytes(self.capacity))?;
        match (self.is_pooled, self.is_passed_through) {
            (_, true) => f.write_str(", passed through to it")?,
            (true, _) => write!(f, " in chunks of {}", Bytes(self.chunk_bytes))?,
            (false, _) => f.write_str(", not pooled")?,
        }
        write!(f, ", on {}", self.device)
    }
}

/// The health of a pool, from [`Inspect::health`](https://docs.rs/weirpool/latest/weirpool/struct.Inspect.html#method.health). Its `Display` form is one line of text.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// let pool = Pool::builder(SimDevice::new()).build()?;
/// assert!(pool.inspect().health().is_serving());
/// pool.stop_admitting();
/// let health = pool.inspect().health();
/// assert!(health.is_stopping && !health.is_closed && !health.is_serving());
/// assert_eq!(health.to_string(), "stopping; no requests waiting");
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// The sticky error of the device that ended the pool. Every request fails with it.
    pub fault: Option<DeviceError>,
    /// The pool [admits no more requests](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.stop_admitting), or was closed.
    pub is_stopping: bool,
    /// The pool was closed: every request fails with [`Closed`](https://docs.rs/weirpool/latest/weirpool/enum.AllocError.html#variant.Closed).
    pub is_closed: bool,
    /// A [drain](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.drain) is in progress.
    pub is_draining: bool,
    /// What keeps the [source of the capacity](https://docs.rs/weirpool/latest/weirpool/extend/trait.CapacitySource.html) from working: the pool goes on within its
    /// bounds.
    pub source_trouble: Option<String>,
    /// Requests that wait, in the queue or for the limit of a tag.
    pub waiting: usize,
    /// The time that the oldest of them has waited so far, on the device's clock.
    pub oldest_wait: Option<Duration>,
}

impl Health {
    /// Returns whether new requests can be granted: the device works, and the pool neither ends nor is closed.
    pub fn is_serving(&self) -> bool {
        self.fault.is_none() && !self.is_stopping
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            Some(fault) => write!(f, "broken: {fault}")?,
            None if self.is_closed => f.write_str("closed")?,
            None if self.is_stopping => f.write_str("stopping")?,
            None => f.write_str("serving")?,
        }
        if self.is_draining {
            f.write_str(", draining")?;
        }
        if let Some(trouble) = &self.source_trouble {
            write!(f, ", {trouble}")?;
        }
        match (self.waiting, self.oldest_wait) {
            (0, _) | (_, None) => f.write_str("; no requests waiting"),
            (waiting, Some(oldest)) => write!(f, "; {waiting} waiting, for up to {oldest:?}"),
        }
    }
}
