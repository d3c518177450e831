//! What can go wrong, by the call that says so.

use crate::device::{DeviceError, MemoryInfo};
use crate::measure::{Tag, fragmentation};
use std::fmt;
use std::time::Duration;

/// How memory stood when a request could not be served; all in bytes.
///
/// `free` counts what any stream could have had, in pieces of at most `largest_free`; `pending` what
/// was given back but may still be touched by running work, including what lanes keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Shortfall {
    /// What was asked for, rounded to the pool's step.
    pub requested: u64,
    /// Free memory.
    pub free: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// Given back, but behind work that is not complete.
    pub pending: u64,
    /// In blocks that somebody owns.
    pub used: u64,
    /// Held from the device: free, pending and used.
    pub reserved: u64,
    /// What may be held at most.
    pub capacity: u64,
    /// Requests that are waiting.
    pub waiting: usize,
    /// How the tag of the request stood, if it has a limit.
    pub tag: Option<TagShortfall>,
    /// What the device says that it has, if it refused memory that the pool may have: others have that, in this
    /// process or in another.
    pub device: Option<MemoryInfo>,
}

/// How a [tag](Tag) with a limit stood when a request for it could not be served; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TagShortfall {
    /// Whose request it was.
    pub tag: Tag,
    /// What it has, and what its requests in the queue were promised.
    pub used: u64,
    /// What it may have.
    pub limit: u64,
}

impl Shortfall {
    /// How much of the free memory is outside the largest free block: 0 (in one piece, or none) to 1.
    pub fn fragmentation(&self) -> f64 {
        fragmentation(self.free, self.largest_free)
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes requested; {} free (largest block {}, fragmentation {:.0} %), {} pending, {} \
             used, {} reserved of a capacity of {}, {} waiting",
            self.requested,
            self.free,
            self.largest_free,
            self.fragmentation() * 100.0,
            self.pending,
            self.used,
            self.reserved,
            self.capacity,
            self.waiting,
        )?;
        if let Some(TagShortfall { tag, used, limit }) = self.tag {
            write!(f, "; {tag} has {used} of the {limit} that it may have")?;
        }
        match self.device {
            Some(MemoryInfo { free, total }) => write!(
                f,
                "; the device refused more, and has {free} of {total} bytes free"
            ),
            None => Ok(()),
        }
    }
}

/// Why an allocation failed. Nothing was taken, and the pool is as usable as before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The request can never fit: waiting would not help. Ask for less, or build the pool with a
    /// larger capacity.
    #[error("{requested} bytes can never fit a pool with a capacity of {capacity} bytes")]
    TooLarge {
        /// What was asked for, in bytes.
        requested: u64,
        /// What the pool may hold at most, in bytes.
        capacity: u64,
    },
    /// The alignment is not a power of two, or larger than the pool can keep.
    #[error("alignment {alignment} is not a power of two from 1 to {largest}")]
    InvalidAlignment {
        /// What was asked for, in bytes.
        alignment: u64,
        /// The largest possible, in bytes.
        largest: u64,
    },
    /// There is not enough memory now, or others are waiting for it already. Await
    /// [`Pool::allocate`](crate::Pool::allocate), free something, or raise the capacity.
    #[error("out of memory: {0}")]
    Exhausted(Box<Shortfall>),
    /// The tag has as much as it may, or others of it are waiting for that already. Await
    /// [`Pool::allocate`](crate::Pool::allocate), free something of that tag, or raise its limit with
    /// [`Pool::set_tag_limit`](crate::Pool::set_tag_limit).
    #[error(
        "{requested} bytes requested for {tag}, which has {used} of the {limit} bytes that it may have"
    )]
    LimitReached {
        /// For whom.
        tag: Tag,
        /// What was asked for, rounded to the pool's step, in bytes.
        requested: u64,
        /// What it has, and what others of its requests were promised, in bytes.
        used: u64,
        /// What it may have, in bytes.
        limit: u64,
    },
    /// The request is larger than all that its tag may have: waiting would not help. Ask for less, or raise
    /// the limit with [`Pool::set_tag_limit`](crate::Pool::set_tag_limit).
    #[error("{requested} bytes can never be had by {tag}, which may have {limit} bytes")]
    OverLimit {
        /// For whom.
        tag: Tag,
        /// What was asked for, rounded to the pool's step, in bytes.
        requested: u64,
        /// What it may have, in bytes.
        limit: u64,
    },
    /// The wait was longer than allowed.
    #[error("timed out after waiting {waited:?} for memory: {shortfall}")]
    TimedOut {
        /// On the device's clock.
        waited: Duration,
        /// How memory stood at the end.
        shortfall: Box<Shortfall>,
    },
    /// As many wait for memory as [may](crate::PoolBuilder::queue_limit). Turn the client away, try again later,
    /// or raise the limit with [`Pool::set_queue_limit`](crate::Pool::set_queue_limit).
    #[error(
        "{requested} bytes cannot be had now, and {waiting} requests wait already for {waiting_bytes} bytes; \
         {limit} may, for {limit_bytes}"
    )]
    QueueFull {
        /// What was asked for, rounded to the pool's step, in bytes.
        requested: u64,
        /// Requests that wait.
        waiting: usize,
        /// Requests that may wait.
        limit: usize,
        /// What is waited for, in bytes.
        waiting_bytes: u64,
        /// What may be waited for, in bytes.
        limit_bytes: u64,
        /// How long the queue takes to grant a request of this size, as far as can be told: an estimate.
        retry_after: Option<Duration>,
    },
    /// The request would probably have waited for longer than its timeout or deadline allows. Turn the client
    /// away, or try again later. Only where the pool [sheds load](crate::PoolBuilder::load_shedding).
    #[error("memory would come after {expected:?}, and may be waited for {limit:?}")]
    Shed {
        /// What the wait was expected to be, on the device's clock: an estimate.
        expected: Duration,
        /// What it may be.
        limit: Duration,
    },
    /// Nothing is on its way back, and nobody who waits can be served: those who wait hold what the others
    /// wait for, or somebody else holds it for long. Free what is held and try again, or
    /// [reserve](crate::Pool::reserve) all that a request needs up front. Only where the pool has a
    /// [limit](crate::PoolBuilder::fail_deadlocks_after) for that.
    #[error("nobody who waits can be served, and nothing is on its way back: {0}")]
    Deadlocked(Box<Shortfall>),
    /// The same among those who wait for the limit of a tag: it has as much as it may, and its requests hold that
    /// themselves while they wait for more. Free what is held and try again, [reserve](crate::Pool::reserve) all that
    /// a request needs up front, or raise the limit with [`Pool::set_tag_limit`](crate::Pool::set_tag_limit). Only
    /// where the pool has a [limit](crate::PoolBuilder::fail_deadlocks_after) for deadlocks.
    #[error(
        "{requested} bytes requested for {tag}, which has {used} of the {limit} bytes that it may have, and \
         nothing of that is on its way back: its requests wait for each other"
    )]
    DeadlockedAtLimit {
        /// For whom.
        tag: Tag,
        /// What was asked for, rounded to the pool's step, in bytes.
        requested: u64,
        /// What it has, in bytes.
        used: u64,
        /// What it may have, in bytes.
        limit: u64,
    },
    /// A reservation has not as much left, or not in one piece. Ask for less, free something of it, or
    /// [grow](crate::Reservation::grow) it.
    #[error(
        "{requested} bytes requested of a reservation that has {left} left, {largest} in one piece"
    )]
    NotReserved {
        /// What was asked for, rounded to the pool's step, in bytes.
        requested: u64,
        /// What is set aside and not allocated, in bytes.
        left: u64,
        /// Of that, the largest piece, in bytes.
        largest: u64,
    },
    /// Where nothing is pooled, nothing can be set aside. Build the pool without
    /// [`unpooled`](crate::PoolBuilder::unpooled).
    #[error("a pool that keeps nothing cannot set memory aside")]
    NotReservable,
    /// The block cannot [grow](crate::Block::grow) where it is: others have the memory, or the addresses, above
    /// it. Allocate another one and copy, or allocate it with [room](crate::Allocate::room) to grow into from the
    /// start; if that is what was refused, with less.
    #[error("no room to grow: {room} bytes of addresses are there")]
    NoRoom {
        /// What there is, in bytes.
        room: u64,
    },
    /// The pool was closed. Live blocks stay valid; no more are granted.
    #[error("the pool is closed")]
    Closed,
    /// The stream was registered with another pool. Register it with this one.
    #[error("the stream belongs to another pool")]
    ForeignStream,
    /// The stream could not be registered with the pool, where that was to be done on the way.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The device failed. If the error is sticky, so does everything from now on, and memory that
    /// work may still touch is leaked rather than reused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a [drain](crate::Pool::drain) ended before everything came back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// Not everything came back in time. [`Pool::leaks`](crate::Pool::leaks) names the blocks that live.
    #[error(
        "after {waited:?}, {used} bytes are in use still, {pending} pending, and {waiting} requests waiting"
    )]
    TimedOut {
        /// On the device's clock.
        waited: Duration,
        /// In blocks that somebody owns, or set aside, in bytes.
        used: u64,
        /// Given back, but behind work that is not complete, in bytes.
        pending: u64,
        /// Requests that are waiting.
        waiting: usize,
    },
    /// The device failed, or cannot say when a stream has passed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a pool could not be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The capacity is less than one step of the device's memory.
    #[error("a capacity of {capacity} bytes is less than the device's step of {granularity} bytes")]
    CapacityTooSmall {
        /// What was asked for, in bytes.
        capacity: u64,
        /// The least possible, in bytes.
        granularity: u64,
    },
    /// The pool would begin larger than it may become.
    #[error("an initial size of {initial} bytes is over the capacity of {capacity} bytes")]
    InitialOverCapacity {
        /// What was asked for, in bytes.
        initial: u64,
        /// What the pool may hold at most, in bytes.
        capacity: u64,
    },
    /// A release threshold must be a fraction from 0 to 1.
    #[error("a release threshold of {fraction} of the device's memory is not between 0 and 1")]
    InvalidFraction {
        /// What was asked for.
        fraction: f64,
    },
    /// A share of the time for [remapping](crate::Remapping) must be more than 0, and 1 at most. None of it is
    /// [`Remapping::Never`](crate::Remapping::Never), and no bound [`Remapping::Always`](crate::Remapping::Always).
    #[error(
        "a share of {share} of the time for remapping is not more than 0 and at most 1: \
         none is `Remapping::Never`, and no bound `Remapping::Always`"
    )]
    InvalidShare {
        /// What was asked for.
        share: f64,
    },
    /// Handles must be a multiple of the device's step.
    #[error("handles of {chunk_bytes} bytes are not a positive multiple of {granularity} bytes")]
    InvalidHandle {
        /// What was asked for, in bytes.
        chunk_bytes: u64,
        /// The device's step, in bytes.
        granularity: u64,
    },
    /// The alignment is not a power of two, or larger than the pool can keep.
    #[error("alignment {alignment} is not a power of two from 1 to {largest}")]
    InvalidAlignment {
        /// What was asked for, in bytes.
        alignment: u64,
        /// The largest possible, in bytes.
        largest: u64,
    },
    /// The pool could not grow like that.
    #[error("a pool with a capacity of {capacity} bytes cannot grow like that: {reason}")]
    InvalidGrowth {
        /// What the pool may hold at most, in bytes.
        capacity: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Two settings exclude each other.
    #[error("`{one}` and `{other}` exclude each other")]
    Conflict {
        /// A setting of the builder.
        one: &'static str,
        /// Another.
        other: &'static str,
    },
    /// The device lacks what the pool was to be built on, and nothing can stand for it. Build it over
    /// another [upstream](crate::PoolBuilder::upstream).
    #[error("{feature} is not supported by {device}: build the pool over another upstream")]
    Unsupported {
        /// What is lacking.
        feature: &'static str,
        /// The device's description line.
        device: String,
    },
    /// A living pool of this process has the name, or it is no name: it is empty.
    #[error("the name {name:?} is taken, or empty")]
    NameTaken {
        /// What was asked for.
        name: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a stream could not be registered, or used with a block or an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream is of another device than the pool.
    #[error("the stream is of another device than the pool")]
    ForeignDevice,
    /// The stream, or the event, was registered with another pool. Register it with this one.
    #[error("the stream belongs to another pool")]
    ForeignPool,
    /// The stream is the host, and the pool's memory the device's alone. Build the pool over an
    /// [`Upstream`](crate::Upstream) that the host sees.
    #[error("the host does not see the pool's memory")]
    UnseenByHost,
    /// The pool's memory is the host's alone: only the [host's stream](crate::Pool::host_stream) can use it.
    #[error("the device does not see the pool's memory")]
    UnseenByDevice,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why nothing was copied between host and device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The range is not one within the block.
    #[error("bytes {start}..{end} are not within a block of {size} bytes")]
    OutOfBounds {
        /// The range's first byte, counted from the block's.
        start: u64,
        /// The byte after the range's last.
        end: u64,
        /// The bytes of the block.
        size: u64,
    },
    /// The stream may not use the block.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
