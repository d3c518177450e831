//! The reuse ladder: where memory for an allocation comes from, cheapest first.

use super::memory::For;
use super::patience::{Expected, Patience};
use super::postponed::Postponed;
use super::{Engine, HistoryEvent, Rung, tally};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::id::{StreamId, Ticket};
use crate::lane::{Kept, Lane, Miss, Slot, Stash, Use, Wanted};
use crate::ledger::policy::{Donor, Order, Taker, WaitLimit};
use crate::ledger::{
    BlockId, Clock, Fence, Fences, Fit, Forecast, Grant, Growth, Place, Plan, Request, View,
};
use crate::sync::Arc;
use crate::trace;
use std::cell::{Cell, RefCell};
use std::time::Duration;

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

/// A block out of the ledger, on its way to its user.
#[derive(Debug)]
#[must_use = "a block that is dropped here is memory lost"]
pub(crate) struct Lent {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The point of the stream behind which the memory's earlier life lies; zero if it was complete.
    pub(crate) after: Ticket,
    pub(crate) rung: Rung,
}

impl Lent {
    #[inline(always)]
    fn of_lane(kept: Kept) -> Self {
        Self {
            id: kept.id,
            address: kept.address,
            bytes: kept.bytes,
            after: kept.ticket,
            rung: Rung::Lane,
        }
    }

    /// The same, for who looks on.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Self {
        Self { ..*self }
    }

    /// As it is freed, with what was not asked for of its bytes.
    #[inline(always)]
    pub(crate) fn as_used(&self, rounding: u32) -> Use {
        Use {
            id: self.id,
            address: self.address,
            bytes: self.bytes,
            rounding,
        }
    }
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

/// A rung, as something to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// Rungs 2 and 3: what the ledger knows to be free, of this stream, or ordered before it; where asking may find
    /// what fits much better, only what fits well.
    Known,
    /// Rung 2: the same after asking what has completed, however it fits.
    Harvested,
    /// Rung 2: the same after taking what other lanes keep, and sealing it.
    Gathered,
    /// Rung 4: join, remap, or take more from the device.
    Grown,
    /// Rung 2 and rung 4 once more, after taking what was left to other lanes.
    Robbed,
    /// Rung 5: a wait on the device, within the limit.
    DeviceWait,
    /// The same rungs after asking once more where an event may have been seen late.
    Late,
    /// Rung 6: release free segments, have other pools do so, and grow again.
    Trimmed,
    /// Rung 5 once more, whatever the limit: rather than to fail.
    AnyDeviceWait,
}

impl Attempt {
    const GROW_FIRST: [Self; 8] = [
        Self::Known,
        Self::Harvested,
        Self::Gathered,
        Self::Grown,
        Self::Robbed,
        Self::DeviceWait,
        Self::Late,
        Self::Trimmed,
    ];

    const WAIT_FIRST: [Self; 7] = [
        Self::Known,
        Self::Harvested,
        Self::DeviceWait,
        Self::Gathered,
        Self::DeviceWait,
        Self::Grown,
        Self::Trimmed,
    ];

    fn ladder(order: Order, effort: Effort) -> impl Iterator<Item = Self> {
        let rungs: &[Self] = match order {
            Order::GrowFirst => &Self::GROW_FIRST,
            Order::WaitFirst => &Self::WAIT_FIRST,
        };
        let last = (effort == Effort::Immediate).then_some(Self::AnyDeviceWait);
        rungs.iter().copied().chain(last)
    }
}

/// One climb: who asks, for what.
pub(super) struct Climb<'a> {
    pub(super) engine: &'a Engine,
    pub(super) lane: &'a Arc<Lane>,
    pub(super) request: Request,
    effort: Effort,
    pub(super) patience: Patience<'a>,
    /// Where it is to lie.
    pub(super) place: Place,
    /// The stream may be given something here: this is a call of its user's, or it is not external.
    may_submit: bool,
    /// The memory must be complete on every stream, not only safe for the lane's.
    pub(super) is_for_everybody: bool,
    /// Waits on the device are submitted later, all together.
    postponed: Option<&'a Postponed>,
    /// What the lane's stream comes after, as far as the policy lets it count.
    after: Clock,
    /// There is a block that fits, and was passed by: it is much larger.
    pub(super) is_loose: Cell<bool>,
    /// New bytes that the device refused last, if it did.
    pub(super) refused: Cell<u64>,
    /// How much lanes had been robbed of when this gathered.
    taken_back: Cell<u64>,
    /// Up to where streams were asked.
    pub(super) asked: RefCell<Clock>,
    /// What the earlier life of what was lent had left.
    fences: Cell<Fences>,
}

/// Streams that take turns come back within so long for a large block: they are left it while more memory can be
/// taken from the device. Would the next one be given it, none would have its own at its turn.
const AT_HAND: Duration = Duration::from_micros(200);

/// No stream.
const NOBODY: StreamId = StreamId(0);

impl Engine {
    /// Rung 1: what the stream freed, from its lane.
    pub(crate) fn take_own<K: ?Sized>(
        &self,
        lane: &Lane,
        slot: &Slot<K>,
        bytes: u64,
        rounding: u32,
        wanted: Wanted,
    ) -> Option<Lent> {
        let kept = lane.take(slot, bytes, rounding, wanted, &self.gate);
        kept.map(Lent::of_lane)
    }

    /// The same in the plain case, with what an earlier block left in the lane's `slot`, if one did.
    ///
    /// # Errors
    /// When there is nothing, or it is not the plain case.
    #[inline(always)]
    pub(crate) fn take_own_at_once<O>(
        &self,
        lane: &Lane,
        slot: &Slot<Stash<O>>,
        bytes: u64,
        rounding: u32,
    ) -> Result<(Lent, Option<O>), Miss> {
        let (kept, left) = lane.take_at_once(slot, bytes, rounding, &self.gate)?;
        Ok((Lent::of_lane(kept), left))
    }

    /// The rungs above the lane, in the order of the policy; the first that gives ends it.
    ///
    /// # Errors
    /// When no rung gives. The ledger is then as it was, but for what was harvested and gathered.
    pub(crate) fn climb(
        &self,
        lane: &Arc<Lane>,
        request: Request,
        effort: Effort,
        patience: Patience<'_>,
    ) -> Result<Lent, Refusal> {
        let (lent, _) =
            self.climb_uncounted(lane, (request, Place::Anywhere), effort, patience, None)?;
        self.tally.count(lent.rung);
        Ok(lent)
    }

    /// The same, as a part of more: it counts once all is there. With what the memory's earlier life had left,
    /// for who puts it back. Where waits are postponed, it is to be used once these are submitted.
    ///
    /// # Errors
    /// As [`climb`](Self::climb).
    pub(super) fn climb_uncounted(
        &self,
        lane: &Arc<Lane>,
        (request, place): (Request, Place),
        effort: Effort,
        patience: Patience<'_>,
        postponed: Option<&Postponed>,
    ) -> Result<(Lent, Fences), Refusal> {
        let may_submit = may_submit(lane, patience);
        let mut after = if may_submit {
            self.what_counts(lane)
        } else {
            Clock::default()
        };
        if let Some(postponed) = postponed.filter(|_| self.settings.reuse.follow_event_dependencies)
        {
            postponed.count_in(&mut after);
        }
        let climb = Climb::new(self, lane, request, effort, after)?;
        if !self.settings.is_pooled {
            let lent = self.allocate_unpooled(lane, request, effort)?;
            return Ok((lent, Fences::default()));
        }
        Climb {
            patience,
            place,
            may_submit,
            postponed,
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
    ) -> Result<(Lent, Fences), Refusal> {
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
        engine: &'a Engine,
        lane: &'a Arc<Lane>,
        request: Request,
        effort: Effort,
        after: Clock,
    ) -> Result<Self, Refusal> {
        if let Some(error) = engine.fault() {
            return Err(error.into());
        }
        Ok(Self {
            engine,
            lane,
            request,
            effort,
            patience: Patience::None,
            place: Place::Anywhere,
            may_submit: true,
            is_for_everybody: false,
            postponed: None,
            after,
            is_loose: Cell::new(false),
            refused: Cell::new(0),
            taken_back: Cell::new(0),
            asked: RefCell::default(),
            fences: Cell::default(),
        })
    }
}

impl Climb<'_> {
    fn climb(&self) -> Result<(Lent, Fences), Refusal> {
        self.look_for_room()?;
        if self.lane.owes_seal() {
            // What is on its shelf is not what it takes. A failure is noted; the next one tries again.
            let _ = self.engine.seal_for_others(self.lane);
        }
        for attempt in Attempt::ladder(self.engine.settings.order, self.effort) {
            if let Some(lent) = self.attempt(attempt)? {
                return Ok((lent, self.fences.take()));
            }
        }
        Err(Refusal::Short(Expected::default()))
    }

    /// # Errors
    /// When waiting would not help, since others are there.
    fn look_for_room(&self) -> Result<(), Refusal> {
        if self.place == Place::Anywhere {
            return Ok(());
        }
        let is_room = || {
            let ledger = self.engine.ledger.lock();
            ledger.is_room(self.request, self.place)
        };
        if is_room() {
            return Ok(());
        }
        // What is only kept is in nobody's way.
        self.engine.drain_lanes();
        if is_room() {
            return Ok(());
        }
        Err(Refusal::NoRoom(self.engine.ledger.lock().room(self.place)))
    }

    fn attempt(&self, attempt: Attempt) -> Result<Option<Lent>, Refusal> {
        let limit = self.engine.settings.wait_limit;
        match attempt {
            Attempt::Known if self.may_ask() => Ok(self.snug()),
            Attempt::Known => Ok(self.known()),
            Attempt::Harvested if self.may_ask() => self.harvested(),
            Attempt::Harvested => Ok(None),
            Attempt::Gathered => self.gathered(),
            Attempt::Grown => self.grown(),
            Attempt::Robbed => self.robbed(),
            Attempt::DeviceWait => self.device_wait(limit),
            Attempt::Late => self.late(),
            Attempt::Trimmed => self.trimmed(),
            Attempt::AnyDeviceWait => self.device_wait(WaitLimit::Unlimited),
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            stream: if self.is_for_everybody {
                NOBODY
            } else {
                self.lane.id
            },
            after: &self.after,
            waits: None,
            place: self.place,
        }
    }

    pub(super) fn known(&self) -> Option<Lent> {
        let grant = self.engine.ledger.lock().take(self.request, &self.view())?;
        Some(self.lend(grant, Rung::Free))
    }

    /// The same, unless it would break up a large piece: what fits better may have completed unnoticed.
    fn snug(&self) -> Option<Lent> {
        let fit = {
            let mut ledger = self.engine.ledger.lock();
            ledger.take_snug(self.request, &self.view())
        };
        match fit {
            Fit::Snug(grant) => return Some(self.lend(grant, Rung::Free)),
            Fit::Loose => self.is_loose.set(true),
            Fit::None => {}
        }
        None
    }

    /// Whether others' work may be seen to be complete by asking: by policy, and always for who waits,
    /// since waiting is synchronizing.
    pub(super) fn may_ask(&self) -> bool {
        let is_queued = matches!(self.patience, Patience::For(_));
        self.engine.settings.reuse.opportunistic || is_queued
    }

    /// What lanes keep counts for nobody else until it is gathered; what they freed without an event
    /// is never seen complete. Without the opportunistic policy only the drained blocks count.
    fn gathered(&self) -> Result<Option<Lent>, Refusal> {
        match self.engine.settings.order {
            Order::GrowFirst => self.engine.drain_lanes_older(AT_HAND),
            Order::WaitFirst => self.engine.drain_lanes(),
        }
        self.taken_back.set(self.engine.totals().taken_back);
        self.gathered_known()
    }

    fn gathered_known(&self) -> Result<Option<Lent>, Refusal> {
        if self.may_ask() {
            self.engine.seal_lanes()?;
            self.harvest()?;
        }
        Ok(self.known())
    }

    /// What streams were left for their next turn, once there is nothing else; whoever takes it back: another that did
    /// since this one gathered may have left some of it.
    fn robbed(&self) -> Result<Option<Lent>, Refusal> {
        self.engine.drain_lanes();
        if self.engine.totals().taken_back == self.taken_back.get() {
            return Ok(None);
        }
        match self.gathered_known()? {
            Some(lent) => Ok(Some(lent)),
            None => self.grown(),
        }
    }

    /// Growing. Where waiting comes first, what the stream may wait for is part of the span, and new
    /// memory is taken only once what was on its way has come and does not do.
    pub(super) fn grown(&self) -> Result<Option<Lent>, Refusal> {
        let settings = &self.engine.settings;
        let waits = (settings.order == Order::WaitFirst).then_some(settings.wait_limit);
        let waits = waits.filter(|_| self.may_wait());
        let held_back_by = self.held_back_by();
        let is_held_back = !held_back_by.fences.is_empty();
        let growth = match () {
            () if !self.may_call() => Growth::None,
            () if is_held_back => self.growth_held_back(waits),
            () => self.growth(),
        };
        if let Some(lent) = self.fetch(waits, growth)? {
            return Ok(Some(lent));
        }
        if is_held_back {
            return Err(Refusal::Short(held_back_by));
        }
        if growth == Growth::None && self.could_grow() {
            return Err(Refusal::NeedsThread);
        }
        Ok(None)
    }

    fn could_grow(&self) -> bool {
        let ledger = self.engine.ledger.lock();
        ledger.could_grow(self.request, &self.view())
    }

    /// Whether memory calls may be made here.
    pub(super) fn may_call(&self) -> bool {
        self.engine.may_call(self.effort)
    }

    /// Where memory cannot be mapped elsewhere, a free segment of the wrong size is in the way. Where the
    /// device refuses, what other pools keep is.
    fn trimmed(&self) -> Result<Option<Lent>, Refusal> {
        if !self.may_call() {
            return Ok(None);
        }
        if !self.engine.settings.geometry.virtual_memory && self.engine.trim_to(0)? > 0 {
            self.refused.set(0);
            if let Some(lent) = self.fetch(None, Growth::Allowed)? {
                return Ok(Some(lent));
            }
        }
        if self.refused.get() == 0 || !self.engine.make_way_for(self.request.bytes) {
            return Ok(None);
        }
        Ok(self.fetch(None, Growth::Allowed)?)
    }

    pub(super) fn device_wait(&self, limit: WaitLimit) -> Result<Option<Lent>, Refusal> {
        if !self.may_wait() {
            return Ok(None);
        }
        let taken = self.with_waits(Some(limit), |view| {
            self.engine.ledger.lock().take(self.request, view)
        });
        match taken {
            Some(grant) => Ok(self.lend_in_order(grant, Rung::Free)?),
            None => Ok(self.fetch(Some(limit), Growth::None)?),
        }
    }

    pub(super) fn may_wait(&self) -> bool {
        !self.is_for_everybody
            && self.may_submit
            && self.engine.capabilities.device_side_waits
            && self.lane.takes_waits
            && self.engine.settings.reuse.internal_dependencies
    }

    /// Puts a span together, with the device's help if it may grow. What the device has no new memory for is moved.
    /// `waits` only if the stream may wait at all.
    fn fetch(&self, waits: Option<WaitLimit>, growth: Growth) -> Result<Option<Lent>, DeviceError> {
        let lent = self.fetch_so(waits, growth)?;
        if lent.is_none() && self.could_do_with_less(waits, growth) {
            return self.fetch_so(waits, Growth::Allowed);
        }
        Ok(lent)
    }

    fn fetch_so(
        &self,
        waits: Option<WaitLimit>,
        growth: Growth,
    ) -> Result<Option<Lent>, DeviceError> {
        let plan = self.with_waits(waits, |view| {
            self.engine.ledger.lock().plan(self.request, view, growth)
        });
        let Some(plan) = plan else {
            return Ok(None);
        };
        self.carry_out(plan, For::Stream(self.lane.id))
    }

    /// Carries a plan out for the stream, or for a hoard. None, if the device has no memory for it.
    pub(super) fn carry_out(&self, plan: Plan, whom: For) -> Result<Option<Lent>, DeviceError> {
        // Mapping what there is may need some, too.
        let new = plan.new_bytes().max(1);
        match self.engine.carry_out(plan, whom) {
            Ok(Some(grant)) => self.lend_in_order(grant, Rung::Grown),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
                self.refused.set(new);
                self.engine.pressure.note(true);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Looks with a view in which the stream may be made to wait within the limit.
    pub(super) fn with_waits<R>(
        &self,
        limit: Option<WaitLimit>,
        look: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let Some(limit) = limit else {
            return look(&self.view());
        };
        let taker = self.taker();
        let forecast = |lane: &Lane, fence| limit.forecast(donor_of(lane, fence), taker);
        self.with_forecasts(
            |lane, fence| {
                lane.can_be_awaited(fence.ticket)
                    .then(|| forecast(lane, fence))?
            },
            look,
        )
    }

    /// Looks with a view in which there are further fences that the asker may have, and when they are expected.
    pub(super) fn with_forecasts<R>(
        &self,
        forecast: impl Fn(&Lane, Fence) -> Option<Forecast>,
        look: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let lanes = self.engine.lanes();
        let waits = |fence: Fence| match find(&lanes, fence) {
            Some(lane) => forecast(lane, fence),
            // A stream without a lane is gone, and complete, though the ledger may not have heard of it yet; or it came
            // after this look, and is found when its point is to be waited for.
            None => Some(Forecast::default()),
        };
        look(&View {
            waits: Some(&waits),
            ..self.view()
        })
    }

    pub(super) fn taker(&self) -> Taker {
        let now = self.engine.device.now();
        let timeline = &self.lane.timeline;
        let tail = timeline
            .newest()
            .map_or(now, |_| now.saturating_add(timeline.latency()));
        Taker { now, tail }
    }

    /// Lends a grant once the stream comes after all of its fences, by a wait where it does not yet. There
    /// is none where a stream takes no event or no wait now, being captured: the memory is not to be had.
    pub(super) fn lend_in_order(
        &self,
        grant: Grant,
        rung: Rung,
    ) -> Result<Option<Lent>, DeviceError> {
        if let Some(postponed) = self.postponed {
            let view = self.view();
            let is_behind = |fence: &Fence| !view.is_ordered(*fence);
            let waits = postponed.add(grant.fences.iter().filter(is_behind));
            let rung = if waits { Rung::DeviceWait } else { rung };
            return Ok(Some(self.lend(grant, rung)));
        }
        match self.order_after(&grant) {
            Ok(true) => Ok(Some(self.lend(grant, Rung::DeviceWait))),
            Ok(false) => Ok(Some(self.lend(grant, rung))),
            Err(error) => {
                // Nothing is lost: the block is pending as before.
                self.engine.ledger.lock().give_back(grant.id, grant.fences);
                match error.kind() {
                    DeviceErrorKind::Unsupported => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }

    /// Makes the stream wait, on the device, for every fence that it does not come after yet. Says
    /// whether there was one.
    fn order_after(&self, grant: &Grant) -> Result<bool, DeviceError> {
        let lanes = self.engine.lanes();
        let view = self.view();
        let mut has_waited = false;
        for fence in grant.fences.iter().filter(|fence| !view.is_ordered(*fence)) {
            if let Some(donor) = find(&lanes, fence) {
                has_waited |= self.engine.wait_for(self.lane, donor, fence.ticket)?;
            }
        }
        Ok(has_waited)
    }

    /// A grant becomes a loan, which remembers behind which point of the stream it is safe.
    pub(super) fn lend(&self, grant: Grant, rung: Rung) -> Lent {
        let is_own = |fence: Fence| fence.stream == self.lane.id;
        let (after, rung) = match grant.fences.single() {
            _ if grant.fences.is_empty() => (Ticket::ZERO, rung),
            Some(fence) if is_own(fence) => (fence.ticket, rung.or(Rung::SameStream)),
            _ if self.may_submit && self.postponed.is_none() => {
                let point = self.engine.present_point(self.lane);
                (point, rung.or(Rung::Ordered))
            }
            _ => (self.lane.open_ticket(), rung.or(Rung::Ordered)),
        };
        self.fences.set(grant.fences);
        Lent {
            id: grant.id,
            address: grant.address,
            bytes: grant.bytes,
            after,
            rung,
        }
    }
}

impl Rung {
    /// What the ledger had is named by why it was safe; what had to be fetched, by how.
    fn or(self, why: Self) -> Self {
        if self == Self::Free { why } else { self }
    }
}

/// The lane of a fence; a stream that is gone has no lane, and all its work is complete.
pub(super) fn find(lanes: &[Arc<Lane>], fence: Fence) -> Option<&Arc<Lane>> {
    let at = lanes
        .binary_search_by_key(&fence.stream, |lane| lane.id)
        .ok()?;
    Some(&lanes[at])
}

pub(super) fn donor_of(lane: &Lane, fence: Fence) -> Donor {
    let marker = lane.timeline.covering(fence.ticket);
    Donor {
        sealed_at: marker.as_ref().map(|marker| marker.sealed_at),
        expected_at: marker.as_ref().map(|marker| marker.expected_at),
        number: marker.map_or(u64::MAX, |marker| marker.number()),
        latency: lane.timeline.latency(),
    }
}

impl Engine {
    /// Makes `lane`'s stream wait for a point of `donor`'s, on the device, unless it is complete.
    ///
    /// # Errors
    /// When the device cannot; the order is then not counted on.
    pub(super) fn wait_for(
        &self,
        lane: &Lane,
        donor: &Lane,
        ticket: Ticket,
    ) -> Result<bool, DeviceError> {
        let marker = self.noted(donor.marker_for(ticket, &*self.device, &self.events))?;
        let Some(marker) = marker else {
            return Ok(false);
        };
        self.order_behind(lane, &marker)?;
        tally::add(&self.tally.device_waits, 1);
        trace::device_wait(lane.id, donor.id);
        self.write_down(|| HistoryEvent::DeviceWait {
            stream: lane.id,
            donor: donor.id,
        });
        Ok(true)
    }
}
