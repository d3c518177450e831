//! An attempt without waiting: for one block ([`try_now`]) or several ([`try_all_now`]).

use super::{Demand, Service, TagCharge, Wants};
use crate::engine::{Allocation, Allocations, Change, Effort, Expected, Mode, Parts, Refusal};
use crate::error::AllocError;
use crate::heap::Placement;
use crate::lane::{BlockEvent, Fit, Lane, Miss};
use crate::measure::{LimitReached, Tag};
use crate::sync::Arc;

/// The stream and the pool that a request is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) lane: &'a Arc<Lane>,
}

/// Why an attempt got no memory.
#[derive(Debug)]
pub(crate) enum Denial<'a> {
    /// There is not enough now. A request that can wait joins the queue with this patience and charge.
    Short(Expected, Option<TagCharge<'a>>),
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
        TagCharge::keep(charge);
        return Ok(allocation);
    }
    try_above_the_lane(asker, demand, effort, charge)
}

/// Tries every source but the queue and caches, for several blocks or a charge.
///
/// # Errors
/// Returns an error if there is not enough for all of them now, or there never will be.
pub(crate) fn try_all_now<'a>(
    asker: Asker<'a>,
    demand: Demand,
    wants: &Wants,
    effort: Effort,
) -> Result<Allocations, Denial<'a>> {
    let charge = charge(asker, &demand)?;
    let allocations = search_or_deny(asker, effort, charge, |lane, mode| {
        wants.search(&asker.service.engine, lane, demand.request, mode)
    })?;
    if let Wants::Parts(parts) = wants {
        count_parts(asker.lane, &allocations, parts);
    }
    Ok(allocations)
}

#[inline]
fn charge<'a>(asker: Asker<'a>, demand: &Demand) -> Result<Option<TagCharge<'a>>, Denial<'a>> {
    match demand.tag {
        None => Ok(None),
        Some(tag) => charge_or_deny(asker, demand, tag).map(Some),
    }
}

fn charge_or_deny<'a>(
    asker: Asker<'a>,
    demand: &Demand,
    tag: Tag,
) -> Result<TagCharge<'a>, Denial<'a>> {
    let service = asker.service;
    let mut charged = TagCharge::of(service, demand, tag);
    let account = service.queue.accounts.of(tag);
    // Memory that is evicted while requests of the tag are throttled is theirs.
    while charged.is_err()
        && !account.is_throttling()
        && service.refusal().is_none()
        && service.evict_for(tag, demand.request.bytes)
    {
        charged = TagCharge::of(service, demand, tag);
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
    charge: Option<TagCharge<'a>>,
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
    charge: Option<TagCharge<'a>>,
    search: impl FnOnce(&Arc<Lane>, Mode<'_>) -> Result<T, Refusal>,
) -> Result<T, Denial<'a>> {
    let Asker { service, lane } = asker;
    if !service.engine.shared.is_granting() {
        if let Some(refusal) = service.refusal() {
            return Err(Denial::Failed(refusal));
        }
        // A request that comes while others wait goes behind them, however much is free.
        return Err(Denial::Short(Expected::default(), charge));
    }
    let found = search(lane, Mode::at_once(effort));
    // The search may have polled events or flushed caches, and left memory that another request waits for.
    service.publish(Change::Memory);
    match found {
        Ok(allocation) => {
            TagCharge::keep(charge);
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
pub(super) fn count(lane: &Lane, allocation: &Allocation, demand: &Demand) {
    let rounding = demand.rounding_of(allocation.bytes);
    lane.cache.count(
        BlockEvent::Granted(allocation.source),
        allocation.bytes,
        rounding,
    );
}

pub(super) fn count_parts(lane: &Lane, allocations: &Allocations, parts: &Parts) {
    if let Placement::Above(..) = parts.placement {
        // A block counts its growth once it has grown.
        return;
    }
    for (allocation, part) in allocations.iter().zip(&*parts.all) {
        count(lane, allocation, &Demand::of_part(*part, None));
    }
}
