//! The errors of requests for memory.

use super::{StreamError, of_time};
use crate::Shortfall;
use std::time::Duration;
use weirpool_device::{DeviceError, DeviceErrorKind};
use weirpool_heap::debug_in_units;
use weirpool_heap::units::Bytes;
use weirpool_queue::{FullQueue, Tag};

/// The reason why a request for memory failed. Nothing was taken, and the pool is as usable as before.
///
/// [`class`](Self::class) says what a service can do about it:
///
/// ```
/// # use weirpool::{AllocError, ErrorClass, Pool, device::sim::SimDevice};
/// # let pool = Pool::builder(SimDevice::new()).capacity(2 << 20).build()?;
/// # let stream = pool.create_stream()?;
/// # let _all = pool.try_allocate(&stream, 2 << 20)?;
/// fn status(error: &AllocError) -> u16 {
///     match error.class() {
///         ErrorClass::Busy { .. } => 503, // with `Retry-After`, if `retry_after` is known
///         ErrorClass::Invalid => 400,
///         _ => 500,
///     }
/// }
/// let error = pool.try_allocate(&stream, 4096).unwrap_err();
/// assert!(error.is_retryable());
/// assert_eq!(status(&error), 503);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The request exceeds the capacity of the pool. Request less, or raise the capacity with
    /// [`Pool::resize`](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.resize).
    #[error(
        "the request of {} can never fit the pool's capacity of {}; request less, or raise the capacity",
        Bytes(*requested), Bytes(*capacity)
    )]
    TooLarge {
        /// The size of the request in bytes.
        requested: u64,
        /// The most bytes that the pool may reserve.
        capacity: u64,
    },
    /// The alignment is not a power of two, or larger than the device's granularity.
    #[error("alignment {alignment} is not a power of two from 1 to {largest}; choose one that is")]
    InvalidAlignment {
        /// The requested alignment in bytes.
        alignment: u64,
        /// The largest possible alignment in bytes.
        largest: u64,
    },
    /// There is not enough memory now, or other requests wait for it already. Await
    /// [`Pool::allocate`](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.allocate), free memory, or raise the capacity.
    #[error("out of memory: {0}; await the allocation, free memory, or raise the capacity")]
    Exhausted(Box<Shortfall>),
    /// The tag holds as much as its limit allows, or other requests of it wait already. Await
    /// [`Pool::allocate`](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.allocate), free memory of the tag, or raise its limit with
    /// [`TagAccount::set_limit`](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_limit).
    #[error(
        "the request of {} for tag {tag} would exceed its limit: {} of {} are held; await the allocation, free memory \
         of the tag, or raise its limit",
        Bytes(*requested), Bytes(*used), Bytes(*limit)
    )]
    LimitReached {
        /// The tag of the request.
        tag: Tag,
        /// The size of the request, rounded up to the pool's step, in bytes.
        requested: u64,
        /// The bytes that the tag holds, and that were promised to its requests in the queue.
        used: u64,
        /// The most bytes that the tag may hold.
        limit: u64,
    },
    /// The request exceeds the limit of its tag. Request less, or raise the limit with
    /// [`TagAccount::set_limit`](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_limit).
    #[error(
        "the request of {} can never fit the limit of tag {tag}, which is {}; request less, or raise the limit",
        Bytes(*requested), Bytes(*limit)
    )]
    OverLimit {
        /// The tag of the request.
        tag: Tag,
        /// The size of the request, rounded up to the pool's step, in bytes.
        requested: u64,
        /// The most bytes that the tag may hold.
        limit: u64,
    },
    /// The timeout or deadline of the request is over. Retry later, allow a longer wait, or raise the capacity.
    #[error(
        "timed out after waiting {waited:?}{} for memory: {shortfall}; retry later, or allow a longer wait",
        of_time(*is_virtual)
    )]
    TimedOut {
        /// The time that the request waited, on the device's clock.
        waited: Duration,
        /// Whether that clock is apart from real time, as a simulated device's is by default. (A runtime's, which a test may
        /// pause, counts as real.)
        is_virtual: bool,
        /// The figures of the pool when the request failed.
        shortfall: Box<Shortfall>,
    },
    /// As many requests wait for memory as the [queue limit](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.queue_limit) allows, or the [queue
    /// limit of their tag](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_queue_limit). Retry later, or raise the limit with
    /// [`Maintain::set_queue_limit`](https://docs.rs/weirpool/latest/weirpool/struct.Maintain.html#method.set_queue_limit).
    #[error("{0}; retry later, or raise the limit (request of {requested})", requested = Bytes(.0.requested))]
    QueueFull(Box<FullQueue>),
    /// The expected wait of the request exceeds its timeout or deadline. Retry later, or allow a longer wait. Only
    /// where the pool [sheds load](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.load_shedding).
    #[error(
        "expected wait {expected:?}{} exceeds the timeout or deadline of {limit:?}; retry later, or allow a longer wait",
        of_time(*is_virtual)
    )]
    Shed {
        /// The expected wait, on the device's clock: an estimate.
        expected: Duration,
        /// The longest wait that the request allows.
        limit: Duration,
        /// Whether that clock is apart from real time, as in [`TimedOut`](Self::TimedOut).
        is_virtual: bool,
    },
    /// No waiting request can be granted, and no memory is on its way back: the waiters hold what the others wait for,
    /// or a block is held for long. Free memory and retry, or [reserve](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.reserve) all that a request needs
    /// up front. Only where the pool [fails deadlocks](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.fail_deadlocks_after).
    #[error(
        "deadlocked: no waiting request can be granted, and no memory is on its way back: {0}; free memory and retry, \
         or reserve up front"
    )]
    Deadlocked(Box<Shortfall>),
    /// The tag holds as much as its limit allows, and its requests hold that memory themselves while they wait for
    /// more. Free memory and retry, [reserve](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.reserve) all that a request needs up front, or raise the
    /// limit with [`TagAccount::set_limit`](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_limit). Only where the pool [fails
    /// deadlocks](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.fail_deadlocks_after).
    #[error(
        "deadlocked at the limit of tag {tag}: the request of {} waits, {} of {} are held by requests that wait for each \
         other; free memory and retry, reserve up front, or raise the limit",
        Bytes(*requested), Bytes(*used), Bytes(*limit)
    )]
    DeadlockedAtLimit {
        /// The tag of the request.
        tag: Tag,
        /// The size of the request, rounded up to the pool's step, in bytes.
        requested: u64,
        /// The bytes that the tag holds.
        used: u64,
        /// The most bytes that the tag may hold.
        limit: u64,
    },
    /// The reservation has less memory left, or not in one piece. Request less, free memory of the reservation, or
    /// [grow](https://docs.rs/weirpool/latest/weirpool/struct.Reservation.html#method.grow) it.
    #[error(
        "the reservation has no contiguous range of {} left: {} are left, {} in one piece; request less, free memory of \
         the reservation, or grow it",
        Bytes(*requested), Bytes(*left), Bytes(*largest)
    )]
    NotReserved {
        /// The size of the request, rounded up to the pool's step, in bytes.
        requested: u64,
        /// The bytes of the reservation that are not allocated.
        left: u64,
        /// The largest piece of them, in bytes.
        largest: u64,
    },
    /// The memory of a capture has too little left in the capture's order, and the pool has no more now. Nothing waits
    /// inside a capture. [Reserve](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.reserve) the memory beforehand, and give the reservation to the
    /// [memory](https://docs.rs/weirpool/latest/weirpool/struct.GraphMemory.html#method.give) of the capture.
    #[error(
        "the capture has no contiguous range of {} left: {} of its {} are left, {} in one piece, and the pool has no more \
         now; a request cannot wait inside a capture: reserve beforehand with `pool.reserve(..)`, and give the \
         reservation to the capture's memory",
        Bytes(*requested), Bytes(*left), Bytes(*size), Bytes(*largest)
    )]
    NotReservedForCapture {
        /// The size of the request, rounded up to the pool's step, in bytes.
        requested: u64,
        /// The bytes that are set aside for the capture.
        size: u64,
        /// The bytes of them that are not allocated.
        left: u64,
        /// The largest piece of those, in bytes.
        largest: u64,
    },
    /// The stream is being captured, and allocates from the memory of its capture only.
    /// [Give](https://docs.rs/weirpool/latest/weirpool/struct.GraphMemory.html#method.give) the reservation to that memory, or allocate from it when the capture is over.
    #[error(
        "the stream is being captured, and allocates from the memory of its capture only; give the reservation to that \
         memory, or call again when the capture is over"
    )]
    StreamCaptured,
    /// A pool that keeps no freed memory cannot set any aside, for a reservation or a capture. Build it without
    /// [`Upstream::Unpooled`](weirpool_segments::Upstream::Unpooled), or over a source of segments that is not
    /// [ordered](weirpool_segments::SegmentProperties::is_ordered).
    #[error(
        "the pool keeps no freed memory, so it cannot set any aside for a reservation or a capture; build it without \
         `Upstream::Unpooled`, or over a source of segments that is not ordered, such as one with \
         `DriverPoolUse::SubAllocated`"
    )]
    NotReservable,
    /// The block cannot [grow](https://docs.rs/weirpool/latest/weirpool/struct.Block.html#method.grow) where it is: the memory, or the addresses, above it are taken.
    /// Allocate a larger block and copy, or allocate with [room](https://docs.rs/weirpool/latest/weirpool/struct.Allocate.html#method.room) from the start; if the room was
    /// refused, ask for less.
    #[error(
        "no room to grow: {} of addresses are available; allocate a larger block and copy, or allocate with room from \
         the start",
        Bytes(*room)
    )]
    NoRoom {
        /// The bytes of addresses that are available.
        room: u64,
    },
    /// The request would block the thread of a current-thread tokio runtime, and so the tasks that would free
    /// memory. `.await` the request, or call it inside `tokio::task::spawn_blocking`.
    #[error(
        "a request of {} would block the thread of a current-thread tokio runtime, and all of its tasks; .await the \
         request, or call it inside spawn_blocking",
        Bytes(*requested)
    )]
    BlocksRuntime {
        /// The size of the request, rounded up to the pool's step, in bytes.
        requested: u64,
    },
    /// The pool [admits no more requests](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.stop_admitting), because its service ends. What reservations hold is
    /// granted as before. Send the request to another server, or later.
    #[error(
        "the pool admits no more requests, because its service ends; send the request to another server, or later"
    )]
    Stopping,
    /// The pool was closed. Live blocks stay valid; no more memory is granted.
    #[error("the pool is closed and grants no more memory; allocate from another pool")]
    Closed,
    /// The stream was registered with another pool. Register it with this one.
    #[error("the stream belongs to another pool; register it with this one")]
    ForeignStream,
    /// The stream could not be registered with the pool, for a call that registers it.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The device failed. If the error is sticky, every later call fails too, and memory that work may still touch is
    /// leaked rather than reused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

debug_in_units!(enum AllocError { TooLarge { requested as bytes, capacity as bytes }, InvalidAlignment { alignment as bytes, largest as bytes }, Exhausted(inner), LimitReached { tag, requested as bytes, used as bytes, limit as bytes }, OverLimit { tag, requested as bytes, limit as bytes }, TimedOut { waited, is_virtual, shortfall }, QueueFull(inner), Shed { expected, limit, is_virtual }, Deadlocked(inner), DeadlockedAtLimit { tag, requested as bytes, used as bytes, limit as bytes }, NotReserved { requested as bytes, left as bytes, largest as bytes }, NotReservedForCapture { requested as bytes, size as bytes, left as bytes, largest as bytes }, StreamCaptured, NotReservable, NoRoom { room as bytes }, BlocksRuntime { requested as bytes }, Stopping, Closed, ForeignStream, Stream(inner), Device(inner) });

/// What a caller can do about an [`AllocError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Memory is short at the moment: the same request may succeed later.
    Busy {
        /// The time after which a retry is likely to succeed, if it can be estimated.
        retry_after: Option<Duration>,
    },
    /// The request can never succeed as it is: change it, or the pool's settings.
    Invalid,
    /// The pool ends or was closed, or its device failed: it will grant no such request.
    Unavailable,
}

impl AllocError {
    /// Returns what a caller can do about the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Exhausted(shortfall) | Self::TimedOut { shortfall, .. } => ErrorClass::Busy {
                retry_after: shortfall.expected_wait,
            },
            Self::QueueFull(full) => ErrorClass::Busy {
                retry_after: full.expected_wait,
            },
            Self::Shed {
                expected, limit, ..
            } => ErrorClass::Busy {
                retry_after: Some(expected.saturating_sub(*limit)),
            },
            Self::LimitReached { .. }
            | Self::Deadlocked(_)
            | Self::DeadlockedAtLimit { .. }
            | Self::NotReserved { .. }
            | Self::NotReservedForCapture { .. } => ErrorClass::Busy { retry_after: None },
            Self::Device(error) | Self::Stream(StreamError::Device(error)) => of_device(error),
            Self::TooLarge { .. }
            | Self::InvalidAlignment { .. }
            | Self::OverLimit { .. }
            | Self::NotReservable
            | Self::StreamCaptured
            | Self::NoRoom { .. }
            | Self::BlocksRuntime { .. }
            | Self::ForeignStream
            | Self::Stream(_) => ErrorClass::Invalid,
            Self::Stopping | Self::Closed => ErrorClass::Unavailable,
        }
    }

    /// Returns whether the same request may succeed later: whether the error is of the class
    /// [`Busy`](ErrorClass::Busy).
    pub fn is_retryable(&self) -> bool {
        matches!(self.class(), ErrorClass::Busy { .. })
    }

    /// Returns the time after which a retry is likely to succeed, if the error is retryable and the time can be
    /// estimated.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.class() {
            ErrorClass::Busy { retry_after } => retry_after,
            ErrorClass::Invalid | ErrorClass::Unavailable => None,
        }
    }
}

fn of_device(error: &DeviceError) -> ErrorClass {
    match error.kind() {
        DeviceErrorKind::Sticky => ErrorClass::Unavailable,
        DeviceErrorKind::Unsupported | DeviceErrorKind::InvalidArgument => ErrorClass::Invalid,
        // The call failed; others may succeed.
        _ => ErrorClass::Busy { retry_after: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shed_request_may_retry_once_the_queue_is_short_enough() {
        let [expected, limit] = [1200, 1000].map(Duration::from_millis);
        let error = AllocError::Shed {
            expected,
            limit,
            is_virtual: false,
        };
        assert_eq!(error.retry_after(), Some(Duration::from_millis(200)));
        let text = "expected wait 1.2s exceeds the timeout or deadline of 1s; retry later, or allow a longer wait";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn class_separates_errors_of_the_moment_from_others() {
        let device = |kind| AllocError::Device(DeviceError::new("create", kind, "test"));
        assert!(device(DeviceErrorKind::OutOfMemory).is_retryable());
        let sticky = device(DeviceErrorKind::Sticky);
        assert_eq!(sticky.class(), ErrorClass::Unavailable);
        assert_eq!(AllocError::Closed.class(), ErrorClass::Unavailable);
        let too_large = AllocError::TooLarge {
            requested: 2 << 20,
            capacity: 1 << 20,
        };
        assert_eq!(too_large.class(), ErrorClass::Invalid);
    }
}
