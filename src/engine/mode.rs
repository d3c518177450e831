//! How memory is asked for, and why there is none.

use super::Lease;
use crate::device::DeviceError;
use crate::error::AllocError;
use crate::heap::Fences;
use crate::measure::Tag;
use std::time::Duration;

/// Which calls may be made for an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Inside a poll: no memory calls where they block.
    Poll,
    /// On a thread that may block: every call.
    Thread,
    /// The caller wants an answer now: every call, and any wait on the device rather than a failure.
    Immediate,
}

/// What a request awaits before new memory is taken for it, where [waiting comes first](crate::WhenShort::WaitFirst).
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience<'a> {
    /// Nothing: the caller does not wait.
    None,
    /// The points that streams are about to pass now.
    Fresh,
    /// The points that streams were about to pass when the request was made.
    Known(&'a Expected),
}

/// The points that a request awaits, and until when, on the device's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) fences: Fences,
    /// From then on the points are overdue, and no longer awaited.
    pub(crate) until: Duration,
}

/// How many chunks of virtual memory the first poll of a request maps at most, at 30 to 50 µs each. To hand them over to
/// a thread takes 30 to 60 µs more, and some 100 µs more if the thread has to be started first.
const CHUNKS_IN_A_POLL: u64 = 4;

/// How memory is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode<'a> {
    pub(super) effort: Effort,
    pub(super) patience: Patience<'a>,
    /// The request waits in the queue, and any thread may serve it.
    pub(super) is_queued: bool,
    /// How many chunks of virtual memory may be mapped although memory calls block: none for a request in the queue,
    /// which may be served inside a free.
    pub(super) chunks: u64,
}

impl Mode<'static> {
    /// Asks for a caller that has just come.
    pub(crate) fn at_once(effort: Effort) -> Self {
        let patience = match effort {
            Effort::Immediate => Patience::None,
            Effort::Poll | Effort::Thread => Patience::Fresh,
        };
        Self {
            effort,
            patience,
            is_queued: false,
            chunks: CHUNKS_IN_A_POLL,
        }
    }
}

impl<'a> Mode<'a> {
    /// Asks a source of capacity for bytes that the bounds lack. Returns whether they may be held now. A request that waits in
    /// the queue gets them later, and one that is about to join it does not ask.
    pub(super) fn borrow(self, lease: &Lease, wanted: u64) -> bool {
        if self.is_queued {
            lease.ask(wanted);
            return false;
        }
        self.effort == Effort::Immediate && lease.ask_and_wait(wanted)
    }

    /// Asks for a request in the queue that awaits those points.
    pub(crate) fn from_queue(effort: Effort, expected: &'a Expected) -> Self {
        Self {
            effort,
            patience: Patience::Known(expected),
            is_queued: true,
            chunks: 0,
        }
    }
}

/// Why there is no memory for a request now: the one answer of searches, reservations and limits. What the request was
/// charged travels beside it.
#[derive(Debug)]
pub(crate) enum NoMemory {
    /// No memory is available now. New memory was not taken because these points are expected soon, if there are any.
    Short(Expected),
    /// New memory would help, and may not be taken here.
    NeedsThread,
    /// The device refuses memory that it has, and nothing of the pool is in use: waiting cannot help.
    Hopeless,
    /// The tag has reached its limit.
    OverLimit(Tag),
    /// The reservation has too little memory, or too fragmented: this many bytes, and this many in its largest block.
    NotReserved { left: u64, largest: u64 },
    /// Waiting would not help.
    Never(AllocError),
}

impl NoMemory {
    /// Returns whether there may be memory later, or with more effort.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Never(_))
    }

    /// Nothing is available, and nothing is expected.
    pub(crate) fn short() -> Self {
        Self::Short(Expected::default())
    }
}

impl From<AllocError> for NoMemory {
    fn from(error: AllocError) -> Self {
        Self::Never(error)
    }
}

impl From<DeviceError> for NoMemory {
    fn from(error: DeviceError) -> Self {
        Self::Never(error.into())
    }
}
