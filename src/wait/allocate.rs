//! The future of an allocation: the ladder first, the queue if that gives nothing.

use super::queue::{Newcomer, Waiter};
use super::{Claim, Demand, Registration, Service};
use crate::device::Alarm;
use crate::engine::bell::Member;
use crate::engine::{Effort, Expected, HistoryEvent, Lent, Patience, Refusal};
use crate::error::AllocError;
use crate::measure::{LimitReached, Tag};
use crate::sync::Arc;
use crate::trace;
use std::task::{Context, Poll};
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Allocation<'a> {
    registration: &'a Arc<Registration>,
    stage: Stage,
    has_waited: bool,
}

#[derive(Debug)]
enum Stage {
    New,
    Waiting {
        waiter: Arc<Waiter>,
        deadline: Option<(Duration, Alarm)>,
        /// Rings when growth is not held back any longer.
        _patience: Option<Alarm>,
        span: trace::Waiting,
    },
    Done,
}

impl<'a> Allocation<'a> {
    pub(crate) fn new(registration: &'a Arc<Registration>) -> Self {
        Self {
            registration,
            stage: Stage::New,
            has_waited: false,
        }
    }

    /// Whether it joined the queue.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    pub(crate) fn registration(&self) -> &'a Arc<Registration> {
        self.registration
    }

    pub(crate) fn poll(
        &mut self,
        demand: &Demand,
        timeout: Option<Duration>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Lent, AllocError>> {
        let polled = match &self.stage {
            Stage::New => match try_now(self.registration, *demand, Effort::Poll) {
                Ok(lent) => Poll::Ready(Ok(lent)),
                Err(Denial::Failed(error)) => Poll::Ready(Err(error)),
                Err(Denial::Short(patience, claim)) => {
                    self.join(demand, patience, claim, timeout, context)
                }
                Err(Denial::OverLimit(_)) => {
                    self.join(demand, Expected::default(), None, timeout, context)
                }
            },
            Stage::Waiting { .. } => self.look(context),
            Stage::Done => panic!("an allocation was polled after it was ready"),
        };
        if let Poll::Ready(answer) = &polled {
            self.finish(answer.is_ok());
        }
        polled
    }

    fn join(
        &mut self,
        demand: &Demand,
        patience: Expected,
        claim: Option<Claim<'a>>,
        timeout: Option<Duration>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Lent, AllocError>> {
        let service = &self.registration.service;
        let engine = &service.engine;
        let now = engine.device.now();
        let waker = context.waker();
        let newcomer = Newcomer {
            lane: &self.registration.lane,
            demand: *demand,
            since: now,
            patience,
            waker,
            claim,
        };
        let waiter = service.queue.join(newcomer, &engine.gate);
        let deadline = timeout.map(|timeout| {
            let at = now.saturating_add(timeout);
            (at, Alarm::new(&engine.device, at, waker))
        });
        let patience = (!waiter.patience.fences.is_empty())
            .then(|| Alarm::new(&engine.device, waiter.patience.until, waker));
        let span = trace::Waiting::new(demand.asked(&self.registration.lane));
        self.has_waited = true;
        self.stage = Stage::Waiting {
            waiter,
            deadline,
            _patience: patience,
            span,
        };
        self.look(context)
    }

    /// Looks for a grant, and counts it: it is taken.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<Lent, AllocError>> {
        let looked = self.look_and_serve(context);
        if let (Poll::Ready(Ok(lent)), Stage::Waiting { waiter, .. }) = (&looked, &self.stage) {
            let rounding = waiter.demand.rounding;
            waiter.lane.count_from_above(lent.bytes, rounding);
        }
        looked
    }

    /// Looks whether something came; if not, serves, and looks again.
    fn look_and_serve(&mut self, context: &mut Context<'_>) -> Poll<Result<Lent, AllocError>> {
        let Stage::Waiting {
            waiter, deadline, ..
        } = &mut self.stage
        else {
            unreachable!("only who waits looks");
        };
        let service = &self.registration.service;
        let waker = context.waker();
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        // Enlisted first, then looked, or served: what comes in between rings.
        if waiter.is_held() {
            let member = Member::Held(waiter.place);
            service.engine.bell.enlist(member, waker);
            if let Some(refusal) = service.refusal_of(&waiter.demand) {
                return Poll::Ready(Err(refusal));
            }
        } else {
            let member = Member::Waiter(waiter.place);
            service.engine.bell.enlist(member, waker);
            Service::ensure_reclaimer(service);
            Service::serve(service);
        }
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        if let Some((at, alarm)) = deadline {
            let now = service.engine.device.now();
            if now >= *at {
                return Poll::Ready(self.time_out(now));
            }
            // The latest waker is the one to be woken.
            *alarm = Alarm::new(&service.engine.device, *at, waker);
        }
        Poll::Pending
    }

    /// A grant that came in the same moment is taken: the memory is there.
    fn time_out(&mut self, now: Duration) -> Result<Lent, AllocError> {
        let Stage::Waiting { waiter, .. } = &self.stage else {
            unreachable!("only who waits times out");
        };
        if let Some(lent) = waiter.cancel() {
            return Ok(lent);
        }
        let service = &self.registration.service;
        let shortfall = service.exhausted(&waiter.lane, &waiter.demand);
        Err(AllocError::TimedOut {
            waited: now.saturating_sub(waiter.since),
            shortfall,
        })
    }

    /// Leaves the queue, whatever the outcome. Returns what was granted and not taken.
    fn finish(&mut self, was_served: bool) -> Option<Lent> {
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let Stage::Waiting { waiter, span, .. } = stage else {
            return None;
        };
        let service = &self.registration.service;
        let left_over = waiter.cancel();
        let so_long = service.engine.device.now().saturating_sub(waiter.since);
        let waited = was_served.then_some(so_long);
        drop(service.queue.leave(&waiter, waited, &service.engine.gate));
        if let (Some(tag), false, false) = (waiter.demand.tag, was_served, waiter.is_held()) {
            service.disclaim(tag, waiter.demand.request.bytes);
        }
        service.engine.write_down(|| HistoryEvent::Waited {
            stream: waiter.lane.id,
            requested: waiter.demand.requested(),
            tag: waiter.demand.tag,
            waited: so_long,
            served: was_served,
        });
        Service::see_off(service, &waiter, was_served);
        span.end(waited.map_or(trace::Outcome::Abandoned, trace::Outcome::Served));
        left_over
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        if let Some(lent) = self.finish(false) {
            let Registration { service, lane, .. } = &**self.registration;
            service.engine.give_back(lane, lent);
        }
    }
}

/// Why an allocation got nothing at once.
#[derive(Debug)]
pub(crate) enum Denial<'a> {
    /// Nothing may be had now: who can wait joins the queue, with this patience, and with what its tag
    /// claimed.
    Short(Expected, Option<Claim<'a>>),
    /// Its tag has as much as it may: who can wait does so at the door.
    OverLimit(Tag),
    /// Waiting would not help.
    Failed(AllocError),
}

/// The ladder without the queue: for who does not wait, and for the first poll of who does.
///
/// # Errors
/// When nothing may be had now, or ever.
///
/// What is lent was claimed by the tag it is for: whoever ends it disclaims that.
#[inline]
pub(crate) fn try_now(
    registration: &Registration,
    demand: Demand,
    effort: Effort,
) -> Result<Lent, Denial<'_>> {
    let Some(tag) = demand.tag else {
        return try_claimed(registration, demand, effort, None);
    };
    match Claim::of(&registration.service, &demand, tag) {
        Ok(claim) => try_claimed(registration, demand, effort, Some(claim)),
        Err(LimitReached) => {
            let never = registration.service.refusal_of(&demand);
            Err(never.map_or(Denial::OverLimit(tag), Denial::Failed))
        }
    }
}

#[inline]
fn try_claimed<'a>(
    registration: &'a Registration,
    demand: Demand,
    effort: Effort,
    claim: Option<Claim<'a>>,
) -> Result<Lent, Denial<'a>> {
    let engine = &registration.service.engine;
    let Demand { request, .. } = demand;
    if request.alignment <= engine.settings.alignment {
        let lane = &registration.lane;
        if let Some(lent) = engine.take_own(lane, request.bytes, demand.rounding) {
            claim.map(Claim::keep);
            return Ok(lent);
        }
    }
    try_above_the_lane(registration, demand, effort, claim)
}

#[cold]
fn try_above_the_lane<'a>(
    registration: &'a Registration,
    demand: Demand,
    effort: Effort,
    claim: Option<Claim<'a>>,
) -> Result<Lent, Denial<'a>> {
    let service = &registration.service;
    if let Some(refusal) = service.refusal() {
        return Err(Denial::Failed(refusal));
    }
    // Who comes while others wait goes behind them, however much is free.
    if !service.engine.is_open() {
        return Err(Denial::Short(Expected::default(), claim));
    }
    let patience = match effort {
        Effort::Immediate => Patience::None,
        Effort::Poll | Effort::Thread => Patience::Fresh,
    };
    let climbed = service
        .engine
        .climb(&registration.lane, demand.request, effort, patience);
    // What was claimed or harvested on the way may be what another waits for.
    service.engine.ring_if_awaited();
    match climbed {
        Ok(lent) => {
            // The lane counts what it gives itself while it is locked.
            let lane = &registration.lane;
            lane.count_from_above(lent.bytes, demand.rounding);
            claim.map(Claim::keep);
            Ok(lent)
        }
        Err(Refusal::Short(patience)) => Err(Denial::Short(patience, claim)),
        Err(Refusal::NeedsThread) => Err(Denial::Short(Expected::default(), claim)),
        Err(Refusal::Device(error)) => Err(Denial::Failed(error.into())),
    }
}
