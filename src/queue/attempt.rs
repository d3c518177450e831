//! An attempt without waiting.

use super::{Demand, Service, TagCharge};
use crate::engine::{Allocation, Allocations, Change, Effort, Mode, NoMemory, Parts};
use crate::error::AllocError;
use crate::heap::Placement;
use crate::lane::{BlockEvent, Fit, Lane};
use crate::measure::{LimitReached, Tag};
use crate::sync::Arc;

/// The stream and the pool that a request is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) lane: &'a Arc<Lane>,
}

/// What a request asks for: its parts, and their sum as one demand.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) demand: Demand,
    pub(crate) parts: Parts,
    /// The stream's cache was searched for it. A search counts as a request of that size, for the cache of large blocks.
    pub(crate) is_searched: bool,
}

impl Ask {
    /// Asks for one block.
    #[inline]
    pub(crate) fn one(demand: Demand, placement: Placement) -> Self {
        Self {
            parts: Parts::one(demand.request, demand.rounding, placement),
            demand,
            is_searched: false,
        }
    }
}

/// Why there is no memory, and what the request's tag was charged. A request that waits joins the queue with both.
pub(crate) type Denied<'a> = (NoMemory, Option<TagCharge<'a>>);

/// Returns the error of a demand that does not wait.
#[cold]
pub(crate) fn error_of(why: NoMemory, asker: Asker<'_>, demand: &Demand) -> AllocError {
    let requested = demand.request.bytes;
    match why {
        NoMemory::Never(error) => error,
        NoMemory::OverLimit(tag) => asker.service.limit_reached(tag, requested),
        NoMemory::NotReserved { left, largest } => AllocError::NotReserved {
            requested,
            left,
            largest,
        },
        NoMemory::Short(_) | NoMemory::NeedsThread | NoMemory::Hopeless => {
            AllocError::Exhausted(asker.service.exhausted(asker.lane, demand).into())
        }
    }
}

/// Takes the block of a plain request from the stream's cache.
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

/// Tries every source but the queue: for a request that does not wait, and for the first poll of one that does.
///
/// The memory is charged to the tag of the request. The code that frees it uncharges it.
///
/// # Errors
/// Returns an error if there is not enough for all parts now, or there never will be.
#[inline]
pub(crate) fn try_now<'a>(
    asker: Asker<'a>,
    ask: &Ask,
    effort: Effort,
) -> Result<Allocations, Denied<'a>> {
    let charge = match ask.demand.tag {
        None => None,
        Some(tag) => Some(charge(asker, &ask.demand, tag).map_err(|why| (why, None))?),
    };
    // A retry is noted as searched for, although a charge that failed came before the search.
    if (charge.is_some() || !ask.is_searched)
        && ask.parts.plain().is_some()
        && let Some(allocation) = own(asker, &ask.demand)
    {
        // The cache counts blocks of its own while it is locked.
        if let Some(charge) = charge {
            charge.keep();
        }
        return Ok(Allocations::from_buf([allocation]));
    }
    match search(asker, ask, effort) {
        Ok(allocations) => {
            if let Some(charge) = charge {
                charge.keep();
            }
            count_parts(asker.lane, &allocations, &ask.parts);
            Ok(allocations)
        }
        Err(why) => Err((why, charge)),
    }
}

#[cold]
fn charge<'a>(asker: Asker<'a>, demand: &Demand, tag: Tag) -> Result<TagCharge<'a>, NoMemory> {
    let service = asker.service;
    let mut charged = TagCharge::of(service, demand, tag);
    let account = service.queue.accounts.of(tag);
    // Memory that is evicted while requests of the tag are throttled is theirs.
    while charged.is_err()
        && !account.is_throttling()
        && service.refusal_of(demand).is_none()
        && service.evict_for(tag, demand.request.bytes)
    {
        charged = TagCharge::of(service, demand, tag);
    }
    charged.map_err(|LimitReached| {
        let never = asker.service.refusal_of(demand);
        never.map_or(NoMemory::OverLimit(tag), NoMemory::Never)
    })
}

/// Searches, unless other requests come first.
#[inline]
fn search(asker: Asker<'_>, ask: &Ask, effort: Effort) -> Result<Allocations, NoMemory> {
    let Asker { service, lane } = asker;
    let Ask { demand, parts, .. } = ask;
    if !service.engine.shared.is_granting(demand.is_of_holder) {
        // A request that comes while others wait goes behind them, however much is free.
        return Err(service
            .refusal_of(demand)
            .map_or_else(NoMemory::short, NoMemory::Never));
    }
    let found = service.engine.search(lane, parts, Mode::at_once(effort));
    // The search may have polled events or flushed caches, and left memory that another request waits for, if one does.
    service.publish(Change::Memory);
    found
}

/// Counts blocks that did not come from the stream's cache.
#[inline]
pub(super) fn count_parts(lane: &Lane, allocations: &Allocations, parts: &Parts) {
    if let Placement::Above(..) = parts.placement {
        // A block counts its growth once it has grown.
        return;
    }
    for (allocation, part) in allocations.iter().zip(&parts.all) {
        let event = BlockEvent::Granted(allocation.source);
        // The block may be larger than was asked for.
        let rounding = (allocation.bytes - part.request.bytes) as u32 + part.rounding;
        lane.cache.count(event, allocation.bytes, rounding);
    }
}
