//! The future of an allocation: the ladder first, the queue if that gives nothing.

use super::hook::Asking;
use super::notifier::Member;
use super::waiters::{Newcomer, Waiter};
use super::{Charge, Demand, Registration, Service, Terms, Wants};
use crate::device::Alarm;
use crate::driver::{
    Allocation, Allocations, Change, Effort, Expected, HistoryEvent, Parts, Patience, Refusal,
};
use crate::error::AllocError;
use crate::fault::injected;
use crate::heap::Placement;
use crate::lane::{Lane, Miss, Slot, Wanted};
use crate::measure::{LimitReached, Tag};
use crate::rare::Rare;
use crate::sync::Arc;
use crate::trace;
use std::task::{Context, Poll};
use std::time::Duration;

/// Who asks: on which stream, of which pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) lane: &'a Arc<Lane>,
}

impl<'a> From<&'a Registration> for Asker<'a> {
    #[inline]
    fn from(registration: &'a Registration) -> Self {
        Self {
            service: &registration.service,
            lane: &registration.lane,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Acquisition<'a> {
    asker: Asker<'a>,
    /// It was never polled.
    is_new: bool,
    has_waited: bool,
    /// While it is in the queue.
    waiting: Rare<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    waiter: Arc<Waiter>,
    deadline: Option<(Duration, Alarm)>,
    /// Rings when growth is not held back any longer.
    _patience: Option<Alarm>,
    /// The pressure hook, while it is at work for this.
    asking: Option<Asking>,
    span: trace::Waiting,
}

impl<'a> Acquisition<'a> {
    #[inline]
    pub(crate) fn new(asker: Asker<'a>) -> Self {
        Self {
            asker,
            is_new: true,
            has_waited: false,
            waiting: Rare::NONE,
        }
    }

    /// Whether it joined the queue.
    #[inline]
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Whether it was never polled.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// It was never polled, and will not be.
    #[inline]
    pub(crate) fn end(&mut self) {
        debug_assert!(self.is_new && self.waiting.is_none(), "it may wait");
        self.is_new = false;
    }

    /// For one block; of who has no tag, after [asking its lane](take_own).
    #[inline(never)]
    pub(crate) fn poll(
        &mut self,
        demand: &Demand,
        terms: &Terms,
        context: &mut Context<'_>,
    ) -> Poll<Result<Allocation, AllocError>> {
        if !std::mem::take(&mut self.is_new) {
            return self.poll_waiting(context).map_ok(only);
        }
        let denial = match try_now(self.asker, demand, Effort::Poll) {
            Ok(allocation) => return Poll::Ready(Ok(allocation)),
            Err(denial) => denial,
        };
        self.denied(denial, demand, Wants::Block, terms, context)
            .map_ok(only)
    }

    /// For several, in the order of the parts.
    pub(crate) fn poll_all(
        &mut self,
        demand: &Demand,
        parts: &Parts,
        terms: &Terms,
        context: &mut Context<'_>,
    ) -> Poll<Result<Allocations, AllocError>> {
        if !std::mem::take(&mut self.is_new) {
            return self.poll_waiting(context);
        }
        let denial = match try_all_now(self.asker, *demand, parts, Effort::Poll) {
            Ok(allocations) => return Poll::Ready(Ok(allocations)),
            Err(denial) => denial,
        };
        self.denied(denial, demand, Wants::Parts(parts.clone()), terms, context)
    }

    /// There is nothing now: it waits, if that may help.
    fn denied(
        &mut self,
        denial: Denial<'a>,
        demand: &Demand,
        wants: Wants,
        terms: &Terms,
        context: &mut Context<'_>,
    ) -> Poll<Result<Allocations, AllocError>> {
        if self.asker.service.is_in_hook() {
            return Poll::Ready(Err(self.asker.service.refusal_in_hook(denial, demand)));
        }
        let (patience, charge) = match denial {
            Denial::Failed(error) => return Poll::Ready(Err(error)),
            Denial::Short(patience, charge) => (patience, charge),
            Denial::OverLimit(_) => (Expected::default(), None),
        };
        let Asker { service, lane } = self.asker;
        let now = service.driver.device.now();
        let newcomer = Newcomer {
            lane,
            demand: *demand,
            wants,
            due: terms.due(now, &service.rules),
            since: now,
            patience,
            waker: context.waker(),
            limit: terms.limit(),
            charge,
        };
        if let Err(refusal) = self.join(newcomer) {
            return Poll::Ready(Err(refusal));
        }
        self.poll_waiting(context)
    }

    fn join(&mut self, newcomer: Newcomer<'_>) -> Result<(), AllocError> {
        let Asker { service, lane } = self.asker;
        let driver = &service.driver;
        let (now, waker, limit) = (newcomer.since, newcomer.waker, newcomer.limit);
        let asked = newcomer.demand.asked(lane);
        let waiter = service.queue.join(newcomer, &service.rules, &driver.gate)?;
        let alarm = |at| Alarm::new(&driver.device, at, waker);
        let deadline = limit.map(|limit| {
            let at = now.saturating_add(limit);
            (at, alarm(at))
        });
        let is_patient = !waiter.patience.fences.is_empty();
        // The notifier, whose members are kept up to date: the waker of this poll may not be the one that counts.
        let patience = is_patient.then(|| service.notify_at(waiter.patience.until));
        self.has_waited = true;
        self.waiting = Rare::new(Waiting {
            waiter,
            deadline,
            _patience: patience,
            asking: None,
            span: trace::Waiting::new(asked),
        });
        Ok(())
    }

    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<Result<Allocations, AllocError>> {
        let is_waiting = self.waiting.is_some();
        assert!(is_waiting, "an allocation was polled after it was ready");
        let polled = self.look(context);
        if let Poll::Ready(answer) = &polled {
            self.finish(answer.is_ok());
        }
        polled
    }

    /// Looks for a grant, and counts it: it is taken.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<Allocations, AllocError>> {
        let looked = self.look_and_serve(context);
        if let (Poll::Ready(Ok(allocations)), Some(waiting)) = (&looked, &*self.waiting) {
            let waiter = &waiting.waiter;
            match &waiter.wants {
                Wants::Block => count(&waiter.lane, &allocations[0], &waiter.demand),
                Wants::Parts(parts) => count_parts(&waiter.lane, allocations, parts),
            }
        }
        looked
    }

    /// Looks whether something came; if not, serves, and looks again.
    fn look_and_serve(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Allocations, AllocError>> {
        let waiting = self.waiting.as_deref_mut();
        let Waiting {
            waiter,
            deadline,
            asking,
            ..
        } = waiting.expect("only who waits looks");
        let service = self.asker.service;
        let waker = context.waker();
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        // Enlisted first, then looked, or served: what comes in between rings.
        if waiter.is_held() {
            let member = Member::Held(waiter.sort_key.position);
            service.notifier.enlist(member, waker);
            if let Some(refusal) = service.refusal_of(&waiter.demand) {
                return Poll::Ready(Err(refusal));
            }
            if let Some(tag) = waiter.demand.tag {
                service.check_quota(tag);
            }
        } else {
            let member = Member::Waiter(waiter.sort_key.position);
            service.notifier.enlist(member, waker);
            Service::ensure_reclaimer(service);
            Service::serve(service);
            if asking.is_none() {
                *asking = Service::ask(service, waiter);
            }
            if asking.as_mut().is_some_and(|asking| asking.poll(context)) {
                // What it freed is there to be served.
                *asking = None;
            }
        }
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        if let Some((at, alarm)) = deadline {
            let now = service.driver.device.now();
            if now >= *at {
                return Poll::Ready(self.time_out(now));
            }
            // The latest waker is the one to be woken.
            *alarm = Alarm::new(&service.driver.device, *at, waker);
        }
        Poll::Pending
    }

    /// A grant that came in the same moment is taken: the memory is there.
    fn time_out(&mut self, now: Duration) -> Result<Allocations, AllocError> {
        let waiting = self.waiting.as_deref();
        let waiter = &waiting.expect("only who waits times out").waiter;
        if let Some(allocations) = waiter.cancel() {
            return Ok(allocations);
        }
        let shortfall = self.asker.service.exhausted(&waiter.lane, &waiter.demand);
        Err(AllocError::TimedOut {
            waited: now.saturating_sub(waiter.since),
            shortfall: shortfall.into(),
        })
    }

    /// Leaves the queue, whatever the outcome. Returns what was granted and not taken.
    fn finish(&mut self, was_served: bool) -> Option<Allocations> {
        let Waiting { waiter, span, .. } = *self.waiting.take()?;
        let service = self.asker.service;
        let left_over = waiter.cancel();
        let so_long = service.driver.device.now().saturating_sub(waiter.since);
        let waited = was_served.then_some(so_long);
        let left = service.queue.leave(&waiter, waited, &service.driver.gate);
        let spills = left.spills;
        drop(left);
        if let (Some(tag), false, false) = (waiter.demand.tag, was_served, waiter.is_held()) {
            service.uncharge(tag, waiter.demand.request.bytes);
        }
        service.driver.write_down(|| HistoryEvent::Waited {
            stream: waiter.lane.id.of_a_stream(),
            requested: waiter.demand.requested(),
            tag: waiter.demand.tag,
            waited: so_long,
            served: was_served,
        });
        Service::see_off(service, &waiter, spills);
        span.end(waited.map_or(trace::Outcome::Abandoned, trace::Outcome::Served));
        left_over
    }
}

impl Acquisition<'_> {
    /// It waits no longer. What was granted in the meantime goes to others.
    #[cold]
    #[inline(never)]
    pub(crate) fn abandon(&mut self) {
        if let Some(allocations) = self.finish(false) {
            if injected("grant-dropped-with-its-future") {
                return std::mem::forget(allocations);
            }
            let Asker { service, lane } = self.asker;
            service.driver.give_all_back(lane, allocations);
        }
    }
}

impl Drop for Acquisition<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.waiting.is_some() {
            self.abandon();
        }
    }
}

/// Why an allocation got nothing at once.
#[derive(Debug)]
pub(crate) enum Denial<'a> {
    /// Nothing may be had now: who can wait joins the queue, with this patience, and with what its tag
    /// claimed.
    Short(Expected, Option<Charge<'a>>),
    /// Its tag has as much as it may: who can wait does so at the quota queue.
    OverLimit(Tag),
    /// Waiting would not help.
    Failed(AllocError),
}

/// What the stream's lane has, of who has no tag to claim for, and may not have asked it yet.
pub(crate) fn take_own(
    registration: &Registration,
    demand: &Demand,
    miss: Miss,
) -> Option<Allocation> {
    match (demand.tag, miss) {
        (None, Miss::Unasked) => own(registration.into(), &registration.slot, demand),
        (Some(_), _) | (_, Miss::Empty) => None,
    }
}

/// From the lane's `slot`.
fn own<K: ?Sized>(asker: Asker<'_>, slot: &Slot<K>, demand: &Demand) -> Option<Allocation> {
    let Asker { service, lane } = asker;
    let (driver, request) = (&service.driver, demand.request);
    if request.alignment > driver.settings.alignment {
        return None;
    }
    // A tag's limit counts what was asked for.
    let wanted = match demand.tag {
        None => Wanted::Near,
        Some(_) => Wanted::Exactly,
    };
    driver.take_own(lane, slot, request.bytes, demand.rounding, wanted)
}

/// The ladder without the queue: for who does not wait, and for the first poll of who does. Who has no tag has
/// [asked its lane](take_own) before.
///
/// What is lent was claimed by the tag it is for: whoever ends it disclaims that.
///
/// # Errors
/// When nothing may be had now, or ever.
pub(crate) fn try_now<'a>(
    asker: Asker<'a>,
    demand: &Demand,
    effort: Effort,
) -> Result<Allocation, Denial<'a>> {
    let charge = charge(asker, demand)?;
    if charge.is_some() {
        if let Some(allocation) = own(asker, asker.lane.slot(), demand) {
            Charge::keep(charge);
            return Ok(allocation);
        }
    }
    try_above_the_lane(asker, demand, effort, charge)
}

/// The same for several at once; lanes are not asked.
///
/// # Errors
/// When not all of them may be had now, or ever.
pub(crate) fn try_all_now<'a>(
    asker: Asker<'a>,
    demand: Demand,
    parts: &Parts,
    effort: Effort,
) -> Result<Allocations, Denial<'a>> {
    let charge = charge(asker, &demand)?;
    let allocations = climb_or_deny(asker, effort, charge, |lane, patience| {
        let driver = &asker.service.driver;
        driver.climb_all(lane, parts, effort, patience)
    })?;
    count_parts(asker.lane, &allocations, parts);
    Ok(allocations)
}

#[inline]
fn charge<'a>(asker: Asker<'a>, demand: &Demand) -> Result<Option<Charge<'a>>, Denial<'a>> {
    match demand.tag {
        None => Ok(None),
        Some(tag) => claim_for(asker, demand, tag).map(Some),
    }
}

fn claim_for<'a>(asker: Asker<'a>, demand: &Demand, tag: Tag) -> Result<Charge<'a>, Denial<'a>> {
    let charged = Charge::of(asker.service, demand, tag);
    charged.map_err(|LimitReached| {
        let never = asker.service.refusal_of(demand);
        never.map_or(Denial::OverLimit(tag), Denial::Failed)
    })
}

#[cold]
fn try_above_the_lane<'a>(
    asker: Asker<'a>,
    demand: &Demand,
    effort: Effort,
    charge: Option<Charge<'a>>,
) -> Result<Allocation, Denial<'a>> {
    let allocation = climb_or_deny(asker, effort, charge, |lane, patience| {
        let driver = &asker.service.driver;
        driver.climb(lane, demand.request, effort, patience)
    })?;
    // The lane counts what it gives itself while it is locked.
    count(asker.lane, &allocation, demand);
    Ok(allocation)
}

/// Climbs, if nobody comes first; what was claimed goes with what is lent.
fn climb_or_deny<'a, T>(
    asker: Asker<'a>,
    effort: Effort,
    charge: Option<Charge<'a>>,
    climb: impl FnOnce(&Arc<Lane>, Patience<'_>) -> Result<T, Refusal>,
) -> Result<T, Denial<'a>> {
    let Asker { service, lane } = asker;
    if let Some(refusal) = service.refusal() {
        return Err(Denial::Failed(refusal));
    }
    // Who comes while others wait goes behind them, however much is free.
    if !service.driver.is_granting() && !service.is_in_hook() {
        return Err(Denial::Short(Expected::default(), charge));
    }
    let patience = match effort {
        Effort::Immediate => Patience::None,
        Effort::Poll | Effort::Thread => Patience::Fresh,
    };
    let climbed = climb(lane, patience);
    // What was claimed or reaped on the way may be what another waits for.
    service.publish(Change::Memory);
    match climbed {
        Ok(allocation) => {
            Charge::keep(charge);
            Ok(allocation)
        }
        Err(Refusal::Short(patience)) => Err(Denial::Short(patience, charge)),
        Err(Refusal::NeedsThread) => Err(Denial::Short(Expected::default(), charge)),
        Err(Refusal::Device(error)) => Err(Denial::Failed(error.into())),
        Err(Refusal::NoRoom(room)) => Err(Denial::Failed(AllocError::NoRoom { room })),
    }
}

/// What was granted above a lane is counted by it.
fn count(lane: &Lane, allocation: &Allocation, demand: &Demand) {
    lane.count_from_above(allocation.bytes, demand.rounding_of(allocation.bytes));
}

fn count_parts(lane: &Lane, allocations: &Allocations, parts: &Parts) {
    if let Placement::Above(..) = parts.placement {
        let extensions = allocations.iter().zip(&*parts.all);
        return extensions
            .for_each(|(allocation, part)| lane.count_growth(allocation.bytes, part.rounding));
    }
    for (allocation, part) in allocations.iter().zip(&*parts.all) {
        count(lane, allocation, &Demand::of_part(*part, None));
    }
}

fn only(mut allocations: Allocations) -> Allocation {
    debug_assert_eq!(allocations.len(), 1);
    allocations.pop().expect("one was asked for")
}
