//! Errors, by the call that returns them. Every message states the problem, the figures, and the remedy.

mod access;
mod alloc;
mod task;

pub use access::AccessError;
pub use alloc::{AllocError, ErrorClass};
pub use task::{EnqueueError, SubmitError, TaskError};

use std::error::Error;
use std::fmt;
use std::time::Duration;
use weirpool_device::DeviceError;
use weirpool_heap::debug_in_units;
use weirpool_heap::units::{Bytes, Counted};
use weirpool_sync::plain::Arc;

/// The reason why a [drain](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.drain) ended before all memory was freed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// Some memory was not freed in time. [`Inspect::snapshot`](https://docs.rs/weirpool/latest/weirpool/struct.Inspect.html#method.snapshot) lists the live blocks.
    #[error(
        "the pool is not drained after {waited:?}{}: {} are in use, {} pending, and {} waiting; \
         `Inspect::snapshot` lists the live blocks",
        of_time(*is_virtual), Bytes(*used), Bytes(*pending), Counted(*waiting as u64, "request")
    )]
    TimedOut {
        /// The time that the drain waited, on the device's clock.
        waited: Duration,
        /// Whether that clock is apart from real time, as a simulated device's is by default. (A runtime's, which a test may
        /// pause, counts as real.)
        is_virtual: bool,
        /// The bytes of live blocks and reservations.
        used: u64,
        /// The bytes freed behind work that is not complete.
        pending: u64,
        /// The number of waiting requests.
        waiting: usize,
    },
    /// The drain would block the thread of a current-thread tokio runtime, and with it the tasks that would free
    /// memory. `.await` it, or call it inside `tokio::task::spawn_blocking`.
    #[error(
        "draining would block the thread of a current-thread tokio runtime, and all of its tasks; .await the drain, or \
         call it inside spawn_blocking"
    )]
    BlocksRuntime,
    /// The device failed, or cannot tell when a stream has passed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

debug_in_units!(enum DrainError { TimedOut { waited, is_virtual, used as bytes, pending as bytes, waiting }, BlocksRuntime, Device(inner) });

/// Says which time a duration is of, where that is not real time.
fn of_time(is_virtual: bool) -> &'static str {
    match is_virtual {
        true => " of virtual time (which the device's `Clock` moves)",
        false => "",
    }
}

/// The reason why a pool could not be built, or a setting not changed.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The capacity is less than the device's granularity, or one chunk of the pool.
    #[error(
        "a capacity of {} is less than the minimum of {}; raise the capacity",
        Bytes(*capacity), Bytes(*granularity)
    )]
    CapacityTooSmall {
        /// The requested capacity in bytes.
        capacity: u64,
        /// The least possible capacity in bytes.
        granularity: u64,
    },
    /// The capacity is not a valid fraction of the device's memory: it must be more than 0, and up to 1.
    #[error(
        "a capacity of {fraction} of the device's memory is out of range; choose more than 0 and up to 1"
    )]
    InvalidCapacityFraction {
        /// The requested fraction.
        fraction: f64,
    },
    /// The initial size exceeds the capacity.
    #[error(
        "an initial size of {} exceeds the capacity of {}; lower the size or raise the capacity",
        Bytes(*initial), Bytes(*capacity)
    )]
    InitialOverCapacity {
        /// The requested initial size in bytes.
        initial: u64,
        /// The most bytes that the pool may reserve.
        capacity: u64,
    },
    /// The release threshold is not a valid fraction of the device's memory: it must be from 0 to 1.
    #[error(
        "a release threshold of {fraction} of the device's memory is out of range; choose 0 to 1"
    )]
    InvalidFraction {
        /// The requested fraction.
        fraction: f64,
    },
    /// The share of the time for [remapping](weirpool_heap::Remapping) is out of range: it must be more than 0, and up to 1.
    /// [`Remapping::Never`](weirpool_heap::Remapping::Never) allows none, and
    /// [`Remapping::Always`](weirpool_heap::Remapping::Always) has no bound.
    #[error(
        "a share of {share} of the time for remapping is out of range; choose more than 0 and up to 1, \
         `Remapping::Never` for none, or `Remapping::Always` for no bound"
    )]
    InvalidShare {
        /// The requested share.
        share: f64,
    },
    /// The chunk size is not a positive multiple of the device's granularity.
    #[error(
        "a chunk size of {chunk_bytes} bytes is not a positive multiple of the device's granularity of {granularity} \
         bytes; choose a multiple"
    )]
    InvalidChunk {
        /// The requested size in bytes.
        chunk_bytes: u64,
        /// The device's granularity in bytes.
        granularity: u64,
    },
    /// The alignment is not a power of two, or larger than the device's step.
    #[error("alignment {alignment} is not a power of two from 1 to {largest}; choose one that is")]
    InvalidAlignment {
        /// The requested alignment in bytes.
        alignment: u64,
        /// The largest possible alignment in bytes.
        largest: u64,
    },
    /// The growth of the pool is not valid.
    #[error("invalid growth for a capacity of {}: {reason}", Bytes(*capacity))]
    InvalidGrowth {
        /// The most bytes that the pool may reserve.
        capacity: u64,
        /// The reason, and what to choose.
        reason: &'static str,
    },
    /// Two settings exclude each other.
    #[error("`{one}` and `{other}` exclude each other; leave one of them out")]
    Conflict {
        /// A setting.
        one: &'static str,
        /// Another setting.
        other: &'static str,
    },
    /// The device lacks a feature that has no substitute. Build the pool over another
    /// [upstream](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.upstream).
    #[error("{feature} is not supported by {device}; build the pool over another upstream")]
    Unsupported {
        /// The feature.
        feature: &'static str,
        /// The device's description line.
        device: String,
    },
    /// The [source of segments](weirpool_segments::SegmentSource) is of another device. Create it on the device of the pool.
    #[error("the source of segments is not one of {device}; create it on that device")]
    ForeignSegments {
        /// The device's description line.
        device: String,
    },
    /// A living pool of this process has the name. Choose another, or find that pool among [all](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.all).
    #[error("the name {name:?} is taken by a living pool; choose another name, or find that pool")]
    NameTaken {
        /// The requested name.
        name: String,
    },
    /// The name is empty. Leave it out, or choose one.
    #[error("the pool's name is empty; leave it out, or choose one")]
    EmptyName,
    /// The [source of the capacity](https://docs.rs/weirpool/latest/weirpool/extend/trait.CapacitySource.html) has none for the pool; see its error.
    #[error("no capacity for this pool: {0}")]
    CapacitySource(SourceError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The error of a [source of capacity](crate::BuildError::CapacitySource).
#[derive(Clone)]
pub struct SourceError(Arc<dyn Error + Send + Sync>);

impl SourceError {
    /// Returns the source's own error.
    pub fn get(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl From<Box<dyn Error + Send + Sync>> for SourceError {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        Self(error.into())
    }
}

/// Two errors are equal if they are the same.
impl PartialEq for SourceError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SourceError {}

impl fmt::Debug for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

debug_in_units!(enum BuildError { CapacityTooSmall { capacity as bytes, granularity as bytes }, InvalidCapacityFraction { fraction }, InitialOverCapacity { initial as bytes, capacity as bytes }, InvalidFraction { fraction }, InvalidShare { share }, InvalidChunk { chunk_bytes as bytes, granularity as bytes }, InvalidAlignment { alignment as bytes, largest as bytes }, InvalidGrowth { capacity as bytes, reason }, Conflict { one, other }, Unsupported { feature, device }, ForeignSegments { device }, NameTaken { name }, EmptyName, CapacitySource(inner), Device(inner) });

/// The reason why a stream could not be registered, or used with a block or an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream belongs to another device, which has no access to the pool's memory.
    #[error(
        "the stream belongs to another device, which has no access to the pool's memory; enable it with \
         `pool.peers().enable`, copy with `copy_to`, or use a stream of the pool's device"
    )]
    ForeignDevice,
    /// Another thread gives or takes back the access of the stream's device.
    #[error(
        "the access of the stream's device to the pool's memory is being changed; call again when that has ended"
    )]
    AccessChanging,
    /// The stream, or the event, is of another pool than the memory or the graph. Register the device's stream with that
    /// pool as well, and use the memory, or [note the use](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html#method.record_use), on the registration there; or
    /// [copy](https://docs.rs/weirpool/latest/weirpool/struct.Block.html#method.copy_to). The text names the stream, the memory and both pools, where the memory is a block.
    #[error(
        "the stream is of another pool than the memory{0}; register the device's stream with the memory's pool as well, and \
         `submit` or `record_use` there, or copy with `copy_to`"
    )]
    ForeignPool(Box<str>),
    /// The reservation is of another pool than the memory of graphs that it is to be given to. Reserve from that pool.
    #[error("the reservation is of another pool; reserve from the pool of the memory of graphs")]
    ForeignReservation,
    /// The stream is the host, and the pool's memory is the device's alone. Build the pool over an
    /// [`Upstream`](weirpool_segments::Upstream) that the host sees.
    #[error(
        "the host does not see the pool's memory; build the pool over memory that it sees, or copy"
    )]
    UnseenByHost,
    /// The pool's memory is the host's alone: only the [host's stream](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.host_stream) can use it.
    #[error(
        "the device does not see the pool's memory; use the host's stream, or another upstream"
    )]
    UnseenByDevice,
    /// The memory of the block is [absent](https://docs.rs/weirpool/latest/weirpool/extend/struct.Absence.html): suspended by its owner.
    #[error(
        "the memory of {memory:?} is suspended; resume it, and hold it resident for as long as work uses it"
    )]
    Absent {
        /// The name of the memory.
        memory: Arc<str>,
    },
    /// The pool is [closed](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.close): it begins no capture, and launches no graph.
    #[error("the pool is closed; capture and launch graphs before the pool is closed")]
    Closed,
    /// The stream takes no wait on the device, and the host cannot wait instead: this is a task of a current-thread tokio
    /// runtime, and all of the runtime's tasks would wait as well, perhaps one that ends the earlier use among them.
    #[error(
        "the stream takes no wait on the device, and to wait here would block the thread of a current-thread tokio \
         runtime, and all of its tasks; await the earlier uses of the block first, or call from `spawn_blocking`"
    )]
    BlocksRuntime,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The reason why bytes were not copied or filled, or a part of a block not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The range is not within the block.
    #[error(
        "bytes {start}..{end} are not within a block of {size} bytes; choose a range within it"
    )]
    OutOfBounds {
        /// The first byte of the range, counted from the block's first byte.
        start: u64,
        /// The byte after the range's last one.
        end: u64,
        /// The bytes of the block.
        size: u64,
    },
    /// The stream may not use the block.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The copy is made in a capture, and the stream's device has no access to both blocks: a copy that is staged
    /// through the host cannot be part of a graph.
    #[error(
        "a copy between devices without access can be captured for plain memory alone; enable access before the capture \
         begins (`pool.peers().enable`), copy between blocks of pools with `Upstream::Device` that were allocated before \
         it, or copy outside of the capture"
    )]
    NoAccessInCapture,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
