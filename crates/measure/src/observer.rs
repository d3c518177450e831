//! Observers: each fact of a pool, told once.

use crate::{BlockOrigin, ReservationOrigin, Shortfall, Source, WaitOutcome};
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::time::Duration;
use weirpool_device::{DeviceAddress, DeviceError};
use weirpool_heap::debug_in_units;
use weirpool_heap::id::StreamId;
use weirpool_queue::Tag;

/// Is told what happens in a pool. Set with [`PoolBuilder::observer`](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.observer).
///
/// Observers are called while no lock of the pool is held, on the thread on which it happened, one after the other. They
/// may call the pool, and cause further facts, which they are told as well. They keep that thread's call waiting. A panic of
/// an observer changes nothing for the pool or for other observers.
///
/// A pool with an observer takes a slower path for each allocation and each free, and tells of all of them. Without one,
/// it runs the same instructions as if there were no observers.
pub trait Observer: Any + fmt::Debug + Send + Sync {
    /// Is told of an event.
    fn event(&self, event: &Event<'_>);

    /// Returns where the live block at an address comes from, if the observer remembers: for [`BlockInfo`](crate::BlockInfo)
    /// and the reports of deadlocks.
    fn origin_of(&self, _address: DeviceAddress) -> Option<BlockOrigin> {
        None
    }

    /// Returns where a live reservation comes from, if the observer remembers.
    fn origin_of_reservation(&self, _reservation: u64) -> Option<ReservationOrigin> {
        None
    }
}

/// A fact, with its number and its time.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The number within the pool, from 1. Threads may tell of events in another order than that of their numbers, but those
    /// of one block are told in order. Mapped and released memory is numbered in the order in which it changed; see
    /// [`Snapshot::events`](crate::Snapshot::events).
    pub number: u64,
    /// On the device's clock.
    pub time: Duration,
    /// What happened.
    pub fact: Fact<'a>,
    pub(crate) figures: Figures<'a>,
}

/// The figures of an event: taken with it, or when an observer asks.
pub(crate) enum Figures<'a> {
    None,
    Taken(Memory),
    Of(&'a dyn Fn() -> Memory),
}

impl fmt::Debug for Figures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Figures")
    }
}

impl Event<'_> {
    /// Returns the state of the memory after the event, if it is one of memory. It may take the heap's lock.
    pub fn memory(&self) -> Option<Memory> {
        match self.figures {
            Figures::None => None,
            Figures::Taken(memory) => Some(memory),
            Figures::Of(read) => Some(read()),
        }
    }
}

/// The state of a pool's memory outside of blocks and caches at one moment, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Held from the device.
    pub reserved: u64,
    /// Freed to the heap, but behind work that is not known to be complete.
    pub pending: u64,
    /// Freed to the heap, and complete.
    pub free: u64,
}

debug_in_units!(struct Memory { reserved as bytes, pending as bytes, free as bytes });

/// What happened. Sizes are in bytes; names are those of [streams](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html#method.named), if they have one.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum Fact<'a> {
    /// A request of this many bytes is about to hand out its block. A request that is dropped between its grant and that
    /// moment is told as [cancelled](Self::Waited) alone.
    Granted {
        address: DeviceAddress,
        size: u64,
        requested: u64,
        stream: StreamId,
        tag: Option<Tag>,
        source: Source,
        /// Whether the request waited in the queue.
        waited: bool,
        site: &'static Location<'static>,
    },
    /// A block is about to grow in place by this many bytes: those that were requested, rounded up.
    Extended {
        address: DeviceAddress,
        bytes: u64,
        stream: StreamId,
        site: &'static Location<'static>,
    },
    /// A block is about to be freed. Its memory cannot have been granted again.
    Freed {
        address: DeviceAddress,
        size: u64,
        /// Its own stream: the one that it was allocated on, or moved to last.
        stream: StreamId,
        /// Further streams that it was used on, in the order of their first use.
        further: &'a [StreamId],
        /// The tag that it was charged to. A block of a reservation has none: its tag is charged for the reservation.
        tag: Option<Tag>,
        /// Where it was deallocated. A drop does not know its caller.
        site: Option<&'static Location<'static>>,
    },
    /// A reservation was made, or split off.
    Reserved {
        reservation: u64,
        tag: Option<Tag>,
        site: &'static Location<'static>,
    },
    /// A reservation is about to end.
    Disbanded { reservation: u64 },
    /// Memory was taken from the device: a segment, or chunks that were mapped next to each other.
    Grown {
        address: DeviceAddress,
        bytes: u64,
        chunks: u64,
    },
    /// Free chunks were mapped elsewhere.
    Remapped {
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
        chunks: u64,
    },
    /// Free memory was released to the device: by a trim, or because it could not be mapped elsewhere.
    Released { address: DeviceAddress, bytes: u64 },
    /// Evictable memory was freed for others.
    Evicted { bytes: u64 },
    /// The pool reserves more than its soft cap: told once until it is within the cap again.
    SoftCapExceeded { reserved: u64, soft_cap: u64 },
    /// Streams turned out to be further, which may have freed memory.
    Reaped { streams: usize },
    /// A stream was made to wait on the device for another's memory.
    DeviceWait {
        stream: StreamId,
        name: Option<&'a str>,
        donor: StreamId,
        donor_name: Option<&'a str>,
    },
    /// Work was submitted.
    Submitted {
        stream: StreamId,
        name: Option<&'a str>,
        /// The [name](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html#method.task) of the work.
        task: Option<&'a Cow<'static, str>>,
        site: &'static Location<'static>,
    },
    /// A host task was dropped before its end, or panicked, and its stream went on.
    HostTaskAbandoned {
        stream: StreamId,
        name: Option<&'a str>,
        task: Option<&'a str>,
    },
    /// A request joined the queue. The stream is that of the block; `None` for a reservation or a charge.
    Waiting {
        stream: Option<StreamId>,
        name: Option<&'a str>,
        bytes: u64,
        tag: Option<Tag>,
    },
    /// A request left the queue: the one of which the event `since` tells.
    Waited {
        since: u64,
        stream: Option<StreamId>,
        requested: u64,
        tag: Option<Tag>,
        waited: Duration,
        outcome: WaitOutcome,
    },
    /// A request failed because memory was short, or timed out.
    OutOfMemory {
        stream: Option<StreamId>,
        shortfall: &'a Shortfall,
    },
    /// No waiting request can be served, and no memory is on its way back: told once for each deadlock.
    Deadlocked {
        /// The shortfall of the first of them.
        shortfall: &'a Shortfall,
        /// Whether the requests wait for the limit of a tag.
        at_limit: bool,
        /// The largest holders of memory: tags, and locations in the source that an observer knows.
        holders: &'a str,
    },
    /// A stream was registered.
    StreamRegistered {
        stream: StreamId,
        name: Option<&'a str>,
    },
    /// A stream got its name.
    StreamNamed {
        stream: StreamId,
        name: Option<&'a str>,
    },
    /// A stream is gone, and its memory is complete.
    StreamGone {
        stream: StreamId,
        name: Option<&'a str>,
    },
    /// The pool [admits no more requests](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.stop_admitting).
    Stopping,
    /// The pool was closed.
    Closed,
    /// Blocks and reservations have owners when their pool is closed, told once; or blocks were granted to futures that
    /// were forgotten, told when the pool ends.
    Leaked {
        blocks: usize,
        reservations: usize,
        bytes: u64,
        /// Whether their futures were forgotten.
        forgotten: bool,
    },
    /// The device failed. A sticky error ends the pool, and is told once.
    DeviceFailed { error: &'a DeviceError },
    /// The [source of the capacity](https://docs.rs/weirpool/latest/weirpool/extend/trait.CapacitySource.html) panicked.
    SourcePanicked,
    /// A task's waker panicked when it was called.
    WakerPanicked,
}
