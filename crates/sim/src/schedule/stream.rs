//! One stream's queue, and the state of its head.
//!
//! This module knows other streams only by the points that are waited for.

use crate::label::StreamLabel;
use crate::operation::Operation;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;
use weirpool_device::{RawStream, WatchId};

/// A point in a stream. It is complete once the stream has done more than `index` items. A stream is in order, so a
/// record needs to be nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(super) stream: RawStream,
    /// Distinguishes the streams that have the same name one after another.
    pub(super) generation: u64,
    pub(super) index: u64,
}

/// A value on the device that streams signal and wait for. It is identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlagId(pub(super) usize);

/// An item of a stream.
#[derive(Debug)]
pub(crate) enum Item {
    Operation(Operation),
    Record,
    Wait(Point),
    Signal(FlagId, u64),
    WaitUntil(FlagId, u64),
    /// A value that is dropped, outside the lock, once everything submitted before is complete.
    Release(Released),
}

/// See [`Item::Release`].
pub(crate) struct Released(
    #[expect(dead_code, reason = "held until it is dropped")] pub(crate) Box<dyn Any + Send>,
);

impl fmt::Debug for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Released")
    }
}

/// An event that does not follow from submissions alone: the signal that ended a wait, and the watches that were woken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// The stream's next signal has set the flag.
    Signalled(RawStream, FlagId),
    /// The stream's next wait for the flag is over.
    Waited(RawStream, FlagId),
    /// The watched point is complete.
    WatchCompleted(WatchId),
}

/// An item and the time of its submission.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) item: Item,
    pub(super) at: Duration,
}

/// The reason why the head of the queue is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// None: there is no head, or the stream is on the agenda.
    Open,
    /// The head waits for a point or a value.
    Waiting,
    /// The head stands behind earlier work that is not simulated.
    Behind,
    /// The head waits for a free place.
    Ready,
    /// The head's duration is not over.
    Running,
    /// The head's body runs outside the lock.
    Finishing,
}

/// Something that is notified when a point completes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    Stream(RawStream),
    Watch(WatchId),
}

#[derive(Debug)]
pub(super) struct Stream {
    /// The number of its device.
    pub(super) device: u32,
    pub(super) label: StreamLabel,
    pub(super) generation: u64,
    pub(super) items: VecDeque<Submitted>,
    /// The number of items that are done.
    pub(super) done: u64,
    pub(super) phase: Phase,
    /// The time at which the last operation ended.
    pub(super) free_at: Duration,
    /// The time at which the last wait on the device was passed.
    pub(super) waited_until: Duration,
    pub(super) stall: Duration,
    /// By the index of the awaited item, then in order of arrival.
    pub(super) waiters: BTreeMap<(u64, u64), Waiter>,
    /// The number of owners: one for all handles, and one for the contract. A stream without owners is closed.
    pub(super) owners: u32,
    /// Whether the contract is one of the owners.
    pub(super) has_contract: bool,
}

impl Stream {
    pub(super) fn new(device: u32, label: StreamLabel) -> Self {
        Self {
            device,
            generation: label.number(),
            label,
            items: VecDeque::new(),
            done: 0,
            phase: Phase::Open,
            free_at: Duration::ZERO,
            waited_until: Duration::ZERO,
            stall: Duration::ZERO,
            waiters: BTreeMap::new(),
            owners: 1,
            has_contract: false,
        }
    }

    /// Returns whether items can be submitted.
    pub(super) fn is_open(&self) -> bool {
        self.owners > 0
    }

    /// Returns whether this is an open stream of a device.
    pub(super) fn is_open_on(&self, device: u32) -> bool {
        self.device == device && self.is_open()
    }

    /// Returns the number of items that were ever submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.done + self.items.len() as u64
    }

    /// Returns whether nothing can refer to the stream any more, so that its name is free.
    pub(super) fn is_gone(&self) -> bool {
        !self.is_open() && self.items.is_empty()
    }

    /// Removes and returns the next waiter whose item is done.
    pub(super) fn next_to_tell(&mut self) -> Option<Waiter> {
        let entry = self.waiters.first_entry()?;
        (entry.key().0 < self.done).then(|| entry.remove())
    }

    /// Returns when the operation at the head may start, and the stall that waits caused: how much later that is than
    /// the end of the work before it, its submission, and the work that it stands behind.
    pub(super) fn start_of(
        &self,
        operation: &Operation,
        submitted: Duration,
    ) -> (Duration, Duration) {
        let bound = operation.behind.map_or(submitted, |behind| {
            submitted.saturating_add(behind).saturating_add(self.stall)
        });
        let unhindered = bound.max(self.free_at);
        let start = unhindered.max(self.waited_until);
        (start, start - unhindered)
    }
}
