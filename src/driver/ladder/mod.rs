//! The reuse ladder: where memory for an allocation comes from, cheapest first.
//!
//! | file | about |
//! |---|---|
//! | `source` | the sources by their names |
//! | `attempt` | what is tried, and in which order |
//! | `own` | what the stream itself freed |
//! | `flush_others` | what the heap knows to be free, as it is, and with what lanes keep |
//! | `asking` | what is asked of the device before memory is taken elsewhere |
//! | `fetch` | what is put together: moved, new, or waited for on the device |
//! | `budget` | whether free memory is moved, or more is taken |
//! | `patience` | what is awaited before new memory is taken |
//! | `view` | what a climb sees of the heap, and when the rest is expected |
//! | `lend` | how a grant becomes a loan |

mod asking;
mod attempt;
mod budget;
mod fetch;
mod flush;
mod lend;
mod own;
mod patience;
mod source;
mod view;

pub(crate) use lend::Allocation;
pub(crate) use patience::{Expected, Patience};
pub use source::Source;
pub(super) use view::find;

use super::Driver;
use super::deferred_waits::DeferredWaits;
use crate::device::DeviceError;
use crate::heap::policy::WaitLimit;
use crate::heap::{Clock, Fences, Placement, Request};
use crate::lane::Lane;
use crate::sync::Arc;
use attempt::Attempt;
use std::cell::{Cell, RefCell};

/// How far an allocation may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Inside a poll: no memory calls where they block.
    Poll,
    /// On a thread of its own.
    Thread,
    /// Anything rather than fail: the caller asked for an answer now.
    Immediate,
}

/// Why the ladder ended without a grant.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Nothing that may be had now. Growth is held back by what is expected, if anything is: it may do.
    Short(Expected),
    /// Growing would help, and may not be done here.
    NeedsThread,
    /// Where it is to lie others are; there are so many bytes of addresses, no more.
    NoRoom(u64),
    /// The device failed.
    Device(DeviceError),
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// One climb: who asks, for what.
pub(super) struct Climb<'a> {
    pub(super) driver: &'a Driver,
    pub(super) lane: &'a Arc<Lane>,
    pub(super) request: Request,
    effort: Effort,
    patience: Patience<'a>,
    /// Where it is to lie.
    placement: Placement,
    /// The stream may be given something here: this is a call of its user's, or it is not external.
    may_submit: bool,
    /// The memory must be complete on every stream, not only safe for the lane's.
    is_for_everybody: bool,
    /// Waits on the device are submitted later, all together.
    deferred_waits: Option<&'a DeferredWaits>,
    /// What the lane's stream comes after, as far as the policy lets it count.
    after: Clock,
    /// There is a block that fits, and was passed by: it is much larger.
    is_loose_fit: Cell<bool>,
    /// New bytes that the device refused last, if it did.
    refused: Cell<u64>,
    /// How much lanes had been robbed of when this gathered.
    taken_back: Cell<u64>,
    /// Up to where streams were asked.
    asked: RefCell<Clock>,
    /// What the earlier life of what was lent had left.
    fences: Cell<Fences>,
}

impl Driver {
    /// The sources above the lane, in the order of the policy; the first that gives ends it.
    ///
    /// # Errors
    /// When no source gives. The heap is then as it was, but for what was reaped and gathered.
    pub(crate) fn climb(
        &self,
        lane: &Arc<Lane>,
        request: Request,
        effort: Effort,
        patience: Patience<'_>,
    ) -> Result<Allocation, Refusal> {
        let (allocation, _) =
            self.climb_uncounted(lane, (request, Placement::Anywhere), effort, patience, None)?;
        self.counters.count(allocation.source);
        Ok(allocation)
    }

    /// The same, as a part of more: it counts once all is there. With what the memory's earlier life had left,
    /// for who puts it back. Where waits are postponed, it is to be used once these are submitted.
    ///
    /// # Errors
    /// As [`climb`](Self::climb).
    pub(super) fn climb_uncounted(
        &self,
        lane: &Arc<Lane>,
        (request, placement): (Request, Placement),
        effort: Effort,
        patience: Patience<'_>,
        deferred_waits: Option<&DeferredWaits>,
    ) -> Result<(Allocation, Fences), Refusal> {
        let may_submit = may_submit(lane, patience);
        let mut after = if may_submit {
            self.what_counts(lane)
        } else {
            Clock::default()
        };
        if let Some(deferred_waits) =
            deferred_waits.filter(|_| self.settings.reuse.follow_event_dependencies)
        {
            deferred_waits.count_in(&mut after);
        }
        let climb = Climb::new(self, lane, request, effort, after)?;
        if !self.settings.is_pooled {
            let allocation = self.allocate_unpooled(lane, request, effort)?;
            return Ok((allocation, Fences::default()));
        }
        Climb {
            patience,
            placement,
            may_submit,
            deferred_waits,
            ..climb
        }
        .climb()
    }

    /// The same, for memory that is complete on every stream.
    ///
    /// # Errors
    /// As [`climb`](Self::climb).
    pub(super) fn climb_for_everybody(
        &self,
        lane: &Arc<Lane>,
        request: Request,
        effort: Effort,
        patience: Patience<'_>,
    ) -> Result<(Allocation, Fences), Refusal> {
        let climb = Climb::new(self, lane, request, effort, Clock::default())?;
        let is_for_everybody = true;
        Climb {
            patience,
            is_for_everybody,
            ..climb
        }
        .climb()
    }

    fn what_counts(&self, lane: &Lane) -> Clock {
        if self.settings.reuse.follow_event_dependencies {
            lane.timeline.clock()
        } else {
            Clock::default()
        }
    }
}

/// Whoever serves the queue may come when the owner of an external stream has let go of it. So its requests get what
/// nothing need be submitted for: what is complete, or the stream's own.
pub(super) fn may_submit(lane: &Lane, patience: Patience<'_>) -> bool {
    !lane.is_external || !matches!(patience, Patience::For(_))
}

impl<'a> Climb<'a> {
    /// One without patience, for a stream that comes after those points.
    ///
    /// # Errors
    /// The sticky error that ended the pool, if one did.
    pub(super) fn new(
        driver: &'a Driver,
        lane: &'a Arc<Lane>,
        request: Request,
        effort: Effort,
        after: Clock,
    ) -> Result<Self, Refusal> {
        if let Some(error) = driver.fault() {
            return Err(error.into());
        }
        Ok(Self {
            driver,
            lane,
            request,
            effort,
            patience: Patience::None,
            placement: Placement::Anywhere,
            may_submit: true,
            is_for_everybody: false,
            deferred_waits: None,
            after,
            is_loose_fit: Cell::new(false),
            refused: Cell::new(0),
            taken_back: Cell::new(0),
            asked: RefCell::default(),
            fences: Cell::default(),
        })
    }
}

impl Climb<'_> {
    fn climb(&self) -> Result<(Allocation, Fences), Refusal> {
        self.look_for_room()?;
        if self.lane.cache.owes_seal() {
            // What is on its large-block cache is not what it takes. A failure is noted; the next one tries again.
            let _ = self.driver.seal_for_others(self.lane);
        }
        for attempt in Attempt::ladder(self.driver.settings.order, self.effort) {
            if let Some(allocation) = self.attempt(attempt)? {
                return Ok((allocation, self.fences.take()));
            }
        }
        Err(Refusal::Short(Expected::default()))
    }

    /// # Errors
    /// When waiting would not help, since others are there.
    fn look_for_room(&self) -> Result<(), Refusal> {
        if self.placement == Placement::Anywhere {
            return Ok(());
        }
        let is_room = || {
            let heap = self.driver.heap.lock();
            heap.is_room(self.request, self.placement)
        };
        if is_room() {
            return Ok(());
        }
        // What is only kept is in nobody's way.
        self.driver.flush_lanes();
        if is_room() {
            return Ok(());
        }
        Err(Refusal::NoRoom(
            self.driver.heap.lock().room(self.placement),
        ))
    }

    fn attempt(&self, attempt: Attempt) -> Result<Option<Allocation>, Refusal> {
        let limit = self.driver.settings.wait_limit;
        match attempt {
            Attempt::Known if self.may_ask() => Ok(self.good_fit()),
            Attempt::Known => Ok(self.known()),
            Attempt::Reaped if self.may_ask() => self.reaped(),
            Attempt::Reaped => Ok(None),
            Attempt::Flushed => self.flushed(),
            Attempt::Grown => self.grown(),
            Attempt::FlushedAll => self.flushed_all(),
            Attempt::DeviceWait => self.device_wait(limit),
            Attempt::Late => self.late(),
            Attempt::Trimmed => self.trimmed(),
            Attempt::AnyDeviceWait => self.device_wait(WaitLimit::Unlimited),
        }
    }

    /// Whether others' work may be seen to be complete by asking: by policy, and always for who waits,
    /// since waiting is synchronizing.
    fn may_ask(&self) -> bool {
        let is_queued = matches!(self.patience, Patience::For(_));
        self.driver.settings.reuse.opportunistic || is_queued
    }

    /// Whether memory calls may be made here.
    fn may_call(&self) -> bool {
        self.driver.may_call(self.effort)
    }

    pub(super) fn may_wait(&self) -> bool {
        !self.is_for_everybody
            && self.may_submit
            && self.driver.capabilities.device_side_waits
            && self.lane.takes_waits
            && self.driver.settings.reuse.internal_dependencies
    }
}
