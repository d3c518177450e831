//! One stream's queue and what holds its head back.
//!
//! Knows nothing of other streams but the points it waits for.

use crate::label::StreamLabel;
use crate::operation::Operation;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use weirpool_device::{RawStream, WatchId};

/// A point in a stream: complete once the stream has done more than `index` items. Since a stream
/// is in order, this is all that a record needs to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(super) stream: RawStream,
    /// Which of the streams that bear this name one after another.
    pub(super) generation: u64,
    pub(super) index: u64,
}

/// A value on the device that streams signal and wait for, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlagId(pub(super) usize);

/// What a stream is given to do.
#[derive(Debug)]
pub(crate) enum Item {
    Operation(Operation),
    Record,
    Wait(Point),
    Signal(FlagId, u64),
    WaitUntil(FlagId, u64),
}

/// What happened that no submission tells: which signal ended which wait, and whom the device told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// The stream's next signal set the flag.
    Signalled(RawStream, FlagId),
    /// The stream's next wait for the flag is over.
    Waited(RawStream, FlagId),
    /// What was watched is complete.
    Rang(WatchId),
}

/// An item and when it was submitted.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) item: Item,
    pub(super) at: Duration,
}

/// What holds the head of the queue back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing: there is no head, or the stream is on the agenda.
    Open,
    /// The point or the value that the head waits for.
    Waiting,
    /// The earlier work that the head stands behind.
    Behind,
    /// The lack of a place.
    Ready,
    /// The head's own duration.
    Running,
    /// The head's body, running outside the lock.
    Finishing,
}

/// Who is told when a point completes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    Stream(RawStream),
    Watch(WatchId),
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) label: StreamLabel,
    pub(super) generation: u64,
    pub(super) items: VecDeque<Submitted>,
    /// How many items were ever done.
    pub(super) done: u64,
    pub(super) phase: Phase,
    /// When the last operation ended.
    pub(super) free_at: Duration,
    /// When the last wait on the device was passed.
    pub(super) waited_until: Duration,
    pub(super) stall: Duration,
    /// By the index of the awaited item, then in order of arrival.
    pub(super) waiters: BTreeMap<(u64, u64), Waiter>,
    /// Owners: the handles together, and the contract. Without any the stream is closed.
    pub(super) owners: u32,
    /// Whether the contract is one of them.
    pub(super) has_contract: bool,
}

impl Stream {
    pub(super) fn new(label: StreamLabel) -> Self {
        Self {
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

    /// Whether something may be submitted.
    pub(super) fn is_open(&self) -> bool {
        self.owners > 0
    }

    /// How many items were ever submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.done + self.items.len() as u64
    }

    /// Whether nothing can refer to the stream any more, so that its name is free.
    pub(super) fn is_gone(&self) -> bool {
        !self.is_open() && self.items.is_empty()
    }

    /// Takes the next waiter whose item is done.
    pub(super) fn next_to_tell(&mut self) -> Option<Waiter> {
        let entry = self.waiters.first_entry()?;
        (entry.key().0 < self.done).then(|| entry.remove())
    }

    /// When the operation at the head may start, and the stall that waits gave it: what it starts
    /// later than the end of the work before it, its submission, and the work it stands behind.
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
