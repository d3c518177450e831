//! The two halves of a request: an attempt without waiting ([`try_now`], [`try_all_now`]), and a position in the queue
//! ([`Waiting`]). The future that combines them is [`Request`](crate::Request), in the layer above.

use super::hook::Asking;
use super::throttled::{self, TagStandstill};
use super::waiter::{Unclaimed, Waiter, outcome_of};
use super::waiters::{JoinRefused, Joined, Newcomer};
use super::{Charge, Demand, Service, Terms, Wants};
use crate::engine::{
    Allocation, Allocations, Change, Effort, Expected, HistoryEvent, Mode, Parts, Refusal,
};
use crate::error::AllocError;
use crate::fault::injected;
use crate::heap::Placement;
use crate::id::ReservationId;
use crate::lane::{Event, Fit, Lane, Miss};
use crate::measure::{LimitReached, Tag, WaitOutcome};
use crate::rare::Rare;
use crate::sync::Arc;
use crate::timer::Deadline;
use crate::trace;
use std::fmt;
use std::panic::Location;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The stream and the pool that a request is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) lane: &'a Arc<Lane>,
}

/// What a request asks for: one block that the demand describes, or several parts whose sum it is.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) demand: Demand,
    pub(crate) wants: Wants,
}

/// The place in the source, and the scope, in which a waiting request was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// The reservation in whose scope it was made.
    pub(crate) scope: Option<ReservationId>,
    pub(crate) location: &'static Location<'static>,
}

/// Memory that a waiting request was granted, with its demand.
#[derive(Debug)]
#[must_use = "granted memory that is dropped is lost"]
pub(crate) struct Grant {
    pub(crate) ask: Ask,
    pub(crate) allocations: Allocations,
}

/// The result of drawing from a reservation for a request that waits.
#[derive(Debug)]
pub(crate) enum Late<T> {
    Drawn(T),
    /// The reservation has enough, in pieces that are too small now.
    InPieces,
    /// The reservation has too little.
    Short,
}

/// A request's position in the queue, while it has one; see the [module](self).
///
/// It does not keep the pool alive, so that a forgotten request does not either: the request owns or borrows a handle
/// of the pool, and passes the service to every call. It must be [abandoned](Self::abandon) before it is dropped.
pub(crate) struct Waiting(Rare<Membership>);

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.as_deref().map(|membership| membership.waiter.since);
        f.debug_tuple("WaitingSince").field(&since).finish()
    }
}

struct Membership {
    waiter: Arc<Waiter>,
    deadline: Option<(Duration, Deadline)>,
    /// How long nothing of the tag was freed, if the request is throttled.
    standstill: Option<TagStandstill>,
    /// The pressure hook, while it works for this request.
    asking: Option<Asking>,
    span: trace::Waiting,
}

impl Waiting {
    pub(crate) const NONE: Self = Self(Rare::NONE);

    /// Joins the queue with a request that was denied, if waiting may help. [`poll`](Self::poll) it next.
    ///
    /// # Errors
    /// Returns an error if waiting would not help, or the request is not admitted.
    pub(crate) fn join(
        &mut self,
        asker: Asker<'_>,
        denial: Denial<'_>,
        ask: Ask,
        terms: &Terms,
        made: Made,
        waker: &Waker,
    ) -> Result<(), AllocError> {
        let Asker { service, lane } = asker;
        if service.is_in_hook() {
            return Err(denial.into_error(asker, &ask.demand));
        }
        let (patience, charge) = match denial {
            Denial::Failed(error) => return Err(error),
            Denial::Short(patience, charge) => (patience, charge),
            Denial::OverLimit(_) => (Expected::default(), None),
        };
        let engine = &service.engine;
        let (now, limit) = (engine.shared.device.now(), terms.limit());
        let asked = ask.demand.asked(lane);
        let newcomer = Newcomer {
            lane,
            demand: ask.demand,
            wants: ask.wants,
            due: terms.due(now, &service.rules),
            since: now,
            patience,
            waker,
            scope: made.scope,
            location: made.location,
            limit,
            charge,
        };
        let joined = service
            .queue
            .join(newcomer, &service.rules, &engine.shared.gate);
        let Joined {
            waiter,
            moved,
            displaced,
        } = joined.map_err(|JoinRefused { error, charged }| {
            if let Some((tag, bytes)) = charged {
                service.uncharge(tag, bytes);
            }
            error
        })?;
        service.notify_of_joined(&waiter, moved);
        service.end_displaced(displaced);
        let deadline = limit.map(|limit| (now.saturating_add(limit), service.timer.deadline()));
        self.0 = Rare::new(Membership {
            waiter,
            deadline,
            standstill: None,
            asking: None,
            span: trace::Waiting::new(asked, lane.name()),
        });
        Ok(())
    }

    /// Tries to draw from the reservation in whose scope the waiting request was made. If that succeeds, the request
    /// leaves the queue.
    pub(crate) fn draw<T>(
        &mut self,
        service: &Arc<Service>,
        draw: impl FnOnce(&Demand) -> Late<T>,
    ) -> Option<T> {
        let waiter = &self.0.as_deref()?.waiter;
        waiter.scope?;
        waiter.expect_pieces(true);
        match draw(&waiter.demand) {
            Late::Drawn(drawn) => {
                self.finish(service, true);
                return Some(drawn);
            }
            Late::InPieces => {}
            Late::Short => waiter.expect_pieces(false),
        }
        None
    }

    /// Returns the answer, if there is one. Otherwise serves the queue, and looks again.
    ///
    /// # Panics
    /// When no request waits here.
    pub(crate) fn poll(
        &mut self,
        service: &Arc<Service>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Grant, AllocError>> {
        let membership = self.0.as_deref_mut();
        let membership = membership.expect("a request was polled after it was ready");
        let polled = membership.look(service, context);
        let Poll::Ready(answer) = polled else {
            return Poll::Pending;
        };
        let waiter = membership.waiter.clone();
        if let Ok(allocations) = &answer {
            match &waiter.wants {
                Wants::Block => count(&waiter.lane, &allocations[0], &waiter.demand),
                Wants::Parts(parts) => count_parts(&waiter.lane, allocations, parts),
            }
        }
        if let Err(error) = &answer {
            waiter.record_unserved(outcome_of(error));
        }
        self.finish(service, answer.is_ok());
        Poll::Ready(answer.map(|allocations| {
            let ask = Ask {
                demand: waiter.demand,
                wants: waiter.wants.clone(),
            };
            Grant { ask, allocations }
        }))
    }

    /// Returns the size of the waiting request in bytes, rounded up to the pool's step; 0 if none waits.
    #[cold]
    pub(crate) fn requested(&self) -> u64 {
        let membership = self.0.as_deref();
        membership.map_or(0, |membership| membership.waiter.demand.request.bytes)
    }

    /// Returns whether the request is in the queue, or was granted and has not taken the grant.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves the queue, if the request is in it. A grant that the request did not take goes to others.
    #[cold]
    #[inline(never)]
    pub(crate) fn abandon(&mut self, service: &Arc<Service>) {
        self.finish(service, false);
    }

    /// Leaves the queue, whatever the outcome. A grant that the request did not take goes to others.
    fn finish(&mut self, service: &Arc<Service>, was_served: bool) {
        let Some(membership) = self.0.take() else {
            return;
        };
        let Membership {
            waiter,
            asking,
            span,
            ..
        } = *membership;
        let left_over = waiter.cancel();
        let left_over = left_over.map(|found| Unclaimed::new(service, &waiter.lane, found));
        let time_waited = service.now().saturating_sub(waiter.since);
        let waited = was_served.then_some(time_waited);
        let outcome = match was_served {
            true => WaitOutcome::Served,
            false => waiter.unserved(),
        };
        Service::depart(service, &waiter, waited);
        service.engine.store.write_down(|| HistoryEvent::Waited {
            stream: waiter.lane.id.of_a_stream(),
            requested: waiter.demand.requested(),
            tag: waiter.demand.tag,
            waited: time_waited,
            outcome,
        });
        span.end(outcome, time_waited);
        if let Some(asking) = asking {
            asking.end(service);
        }
        if injected("grant-dropped-with-its-future") {
            return std::mem::forget(left_over);
        }
        drop(left_over);
    }
}

impl Membership {
    /// Looks for an answer. If there is none, serves the queue if anything changed, and looks again.
    fn look(
        &mut self,
        service: &Arc<Service>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Allocations, AllocError>> {
        let Self { waiter, asking, .. } = self;
        let waker = context.waker();
        // Stores the waker before it looks at memory: a change in between calls it.
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        if let Some(refusal) = service.refusal_of(&waiter.demand) {
            return Poll::Ready(Err(refusal));
        }
        if waiter.is_aside() {
            service.bring_back(waiter);
        }
        match waiter.demand.tag.filter(|_| waiter.is_throttled()) {
            Some(tag) => {
                // Memory may have become evictable before this request was throttled.
                service.relieve(tag);
                let standstill = &mut self.standstill;
                if let Some(error) = throttled::look(service, waiter, tag, standstill, waker) {
                    return Poll::Ready(Err(error));
                }
                service.hooked.offer_if_first(waiter, tag, &service.queue);
                if waiter.scope.is_some() {
                    // Starts the watches on streams.
                    Service::serve_candidate(service);
                }
            }
            None => {
                self.standstill = None;
                Service::ensure_reclaimer(service);
                Service::serve(service);
            }
        }
        if asking.is_none() {
            *asking = service.hooked.ask(service, waiter);
        }
        let is_over = |asking: &mut Asking| asking.poll(context);
        if let Some(asking) = asking.take_if(is_over) {
            // This serves memory that the hook freed.
            asking.end(service);
        }
        if let Some(answer) = waiter.take(waker) {
            return Poll::Ready(answer);
        }
        match &self.deadline {
            // The task may have another waker by now.
            Some((at, deadline)) if deadline.has_come(*at, waker) => {
                Poll::Ready(self.time_out(service))
            }
            _ => Poll::Pending,
        }
    }

    /// Ends the wait, unless a grant came in the same moment: that is taken.
    fn time_out(&mut self, service: &Service) -> Result<Allocations, AllocError> {
        let waiter = &self.waiter;
        // Before the cancellation: after that, another thread may see the request leave.
        waiter.record_unserved(WaitOutcome::TimedOut);
        if let Some(found) = waiter.cancel() {
            return Ok(found);
        }
        let shortfall = service.exhausted(&waiter.lane, &waiter.demand);
        Err(AllocError::TimedOut {
            waited: service.now().saturating_sub(waiter.since),
            shortfall: shortfall.into(),
        })
    }
}

/// Why an attempt got no memory.
#[derive(Debug)]
pub(crate) enum Denial<'a> {
    /// There is not enough now. A request that can wait joins the queue with this patience and charge.
    Short(Expected, Option<Charge<'a>>),
    /// Its tag has reached its limit. A request that can wait joins the quota queue.
    OverLimit(Tag),
    /// Waiting would not help.
    Failed(AllocError),
}

impl Denial<'_> {
    /// Returns the error of a request that does not wait.
    #[cold]
    pub(crate) fn into_error(self, asker: Asker<'_>, demand: &Demand) -> AllocError {
        let Asker { service, lane } = asker;
        match self {
            Self::Failed(error) => error,
            Self::Short(..) => AllocError::Exhausted(service.exhausted(lane, demand).into()),
            Self::OverLimit(tag) => service.limit_reached(tag, demand.request.bytes),
        }
    }
}

/// Takes a block from the stream's cache for a request without a tag, unless the cache was searched already.
#[inline]
pub(crate) fn take_own(asker: Asker<'_>, demand: &Demand, miss: Miss) -> Option<Allocation> {
    match (demand.tag, miss) {
        (None, Miss::NotSearched) => own(asker, demand),
        (Some(_), _) | (_, Miss::Empty) => None,
    }
}

fn own(asker: Asker<'_>, demand: &Demand) -> Option<Allocation> {
    let Asker { service, lane } = asker;
    let (engine, request) = (&service.engine, demand.request);
    if request.alignment > engine.shared.settings.alignment {
        return None;
    }
    // The size of the request is charged to a tag, so the block must have that size.
    let fit = match demand.tag {
        None => Fit::Near,
        Some(_) => Fit::Exact,
    };
    let cached = lane.cache.take(request.bytes, demand.rounding, fit);
    cached.map(Allocation::of_cache)
}

/// Tries every source but the queue: for a request that does not wait, and for the first poll of one that does. A
/// request without a tag has [searched its cache](take_own) before.
///
/// The memory is charged to the tag of the request. The code that frees it uncharges it.
///
/// # Errors
/// Returns an error if there is not enough now, or there never will be.
#[inline]
pub(crate) fn try_now<'a>(
    asker: Asker<'a>,
    demand: &Demand,
    effort: Effort,
) -> Result<Allocation, Denial<'a>> {
    let charge = charge(asker, demand)?;
    if charge.is_some()
        && let Some(allocation) = own(asker, demand)
    {
        Charge::keep(charge);
        return Ok(allocation);
    }
    try_above_the_lane(asker, demand, effort, charge)
}

/// Tries every source but the queue and caches, for several blocks.
///
/// # Errors
/// Returns an error if there is not enough for all of them now, or there never will be.
pub(crate) fn try_all_now<'a>(
    asker: Asker<'a>,
    demand: Demand,
    parts: &Parts,
    effort: Effort,
) -> Result<Allocations, Denial<'a>> {
    let charge = charge(asker, &demand)?;
    let allocations = search_or_deny(asker, effort, charge, |lane, mode| {
        asker.service.engine.search_all(lane, parts, mode)
    })?;
    count_parts(asker.lane, &allocations, parts);
    Ok(allocations)
}

#[inline]
fn charge<'a>(asker: Asker<'a>, demand: &Demand) -> Result<Option<Charge<'a>>, Denial<'a>> {
    match demand.tag {
        None => Ok(None),
        Some(tag) => charge_or_deny(asker, demand, tag).map(Some),
    }
}

fn charge_or_deny<'a>(
    asker: Asker<'a>,
    demand: &Demand,
    tag: Tag,
) -> Result<Charge<'a>, Denial<'a>> {
    let service = asker.service;
    let mut charged = Charge::of(service, demand, tag);
    let account = service.queue.accounts.of(tag);
    // Memory that is evicted while requests of the tag are throttled is theirs.
    while charged.is_err()
        && !account.is_throttling()
        && service.refusal().is_none()
        && service.evict_for(tag, demand.request.bytes)
    {
        charged = Charge::of(service, demand, tag);
    }
    charged.map_err(|LimitReached| {
        let never = asker.service.refusal_of(demand);
        never.map_or(Denial::OverLimit(tag), Denial::Failed)
    })
}

#[inline]
fn try_above_the_lane<'a>(
    asker: Asker<'a>,
    demand: &Demand,
    effort: Effort,
    charge: Option<Charge<'a>>,
) -> Result<Allocation, Denial<'a>> {
    let allocation = search_or_deny(asker, effort, charge, |lane, mode| {
        let engine = &asker.service.engine;
        engine.search(lane, demand.request, mode)
    })?;
    // The cache counts blocks of its own while it is locked.
    count(asker.lane, &allocation, demand);
    Ok(allocation)
}

/// Searches, unless other requests come first. The charge is kept with memory that is found.
#[inline]
fn search_or_deny<'a, T>(
    asker: Asker<'a>,
    effort: Effort,
    charge: Option<Charge<'a>>,
    search: impl FnOnce(&Arc<Lane>, Mode<'_>) -> Result<T, Refusal>,
) -> Result<T, Denial<'a>> {
    let Asker { service, lane } = asker;
    let is_in_hook = service.is_in_hook();
    if !service.engine.shared.is_granting() {
        if let Some(refusal) = service.refusal() {
            return Err(Denial::Failed(refusal));
        }
        // A request that comes while others wait goes behind them, however much is free.
        if !is_in_hook {
            return Err(Denial::Short(Expected::default(), charge));
        }
    }
    let effort = match is_in_hook {
        // It does not wait for a thread either.
        true => Effort::Immediate,
        false => effort,
    };
    let found = search(lane, Mode::at_once(effort));
    // The search may have polled events or flushed caches, and left memory that another request waits for.
    service.publish(Change::Memory);
    match found {
        Ok(allocation) => {
            Charge::keep(charge);
            Ok(allocation)
        }
        Err(Refusal::Short(patience)) => Err(Denial::Short(patience, charge)),
        Err(Refusal::NeedsThread | Refusal::Hopeless) => {
            Err(Denial::Short(Expected::default(), charge))
        }
        Err(Refusal::Device(error)) => Err(Denial::Failed(error.into())),
        Err(Refusal::NoRoom(room)) => Err(Denial::Failed(AllocError::NoRoom { room })),
    }
}

/// Counts a block that did not come from the stream's cache.
fn count(lane: &Lane, allocation: &Allocation, demand: &Demand) {
    let rounding = demand.rounding_of(allocation.bytes);
    lane.cache.count(
        Event::Granted(allocation.source),
        allocation.bytes,
        rounding,
    );
}

fn count_parts(lane: &Lane, allocations: &Allocations, parts: &Parts) {
    if let Placement::Above(..) = parts.placement {
        // A block counts its growth once it has grown.
        return;
    }
    for (allocation, part) in allocations.iter().zip(&*parts.all) {
        count(lane, allocation, &Demand::of_part(*part, None));
    }
}
