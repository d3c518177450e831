//! The plain case of an allocation: a block that the stream's own cache has, for a request without terms, while there are no
//! observers and no task is in the scope of a reservation. It is short enough to be compiled into its caller.

use super::Pool;
use super::request::Miss;
use crate::block::Block;
use crate::engine::{Allocation, pass_through};
use crate::handles::Registration;
use crate::lane::Fit;
use crate::measure::Tag;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Ordering, Rare, plain};

/// How many scopes are being polled in the process. Read by every allocation; written at each poll of a future
/// in a scope, which is where reservations are used at all.
pub(super) static POLLED: AtomicU64 = AtomicU64::new(0);

/// Returns whether any task is in a scope.
#[inline]
pub(super) fn is_any_in_scope() -> bool {
    POLLED.load(Ordering::Relaxed) != 0
}

/// Rounds a size up to a multiple of the pool's step, which is a power of two, and to one step at least. The capacity is
/// a multiple of the step: sizes up to the capacity do not overflow.
#[inline(always)]
pub(super) fn round_up(bytes: u64, step: u64) -> u64 {
    (bytes.max(1) + (step - 1)) & !(step - 1)
}

/// Takes the plain case: a block that the stream's cache has, untagged, while there are no observers and no scope of
/// a reservation is entered. If it returns `None`, nothing was checked.
#[inline(always)]
pub(super) fn take_at_once(
    pool: &Pool,
    registration: &Arc<Registration>,
    bytes: u64,
    alignment: u64,
    miss: &mut Miss,
) -> Option<Block> {
    let rounded = plain_size(pool, registration, bytes, alignment)?;
    *miss = Miss::Searched;
    take_rounded(registration, bytes, rounded, None)
}

/// Takes the plain case for a tag, which is charged first. Returns `None` if this is not the plain case, or the tag's
/// limit does not allow it; nothing is charged then.
pub(super) fn take_charged(
    pool: &Pool,
    registration: &Arc<Registration>,
    bytes: u64,
    alignment: u64,
    tag: Tag,
) -> Option<Block> {
    let Some(rounded) = plain_size(pool, registration, bytes, alignment) else {
        return none_is_plain();
    };
    let service = &registration.service;
    let account = service.queue.accounts.of(tag);
    account.charge(rounded).ok()?;
    let taken = take_rounded(registration, bytes, rounded, Some(tag));
    match &taken {
        Some(_) => account.count_granted(),
        None => service.uncharge(tag, rounded),
    }
    taken
}

/// Tells the compiler that the plain case is the usual one: it has many conditions.
#[cold]
#[inline(never)]
fn none_is_plain() -> Option<Block> {
    None
}

/// Takes the plain case of a size that has no stack, or of an ordered source of segments. Blocks of a size that has a stack
/// were searched for [at once](take_at_once), as `miss` says.
#[inline(always)]
pub(super) fn take_cached(
    pool: &Pool,
    registration: &Arc<Registration>,
    bytes: u64,
    alignment: u64,
    miss: &mut Miss,
) -> Option<Block> {
    let Registration { service, lane, .. } = &**registration;
    let Some(rounded) = plain_size(pool, registration, bytes, alignment) else {
        *miss = Miss::Unsearched;
        return None;
    };
    let rounding = (rounded - bytes) as u32;
    let (allocation, left) = match lane.cache.bounds.spares.is_some() {
        true => {
            *miss = Miss::Searched;
            pass_through::take(&service.engine, lane, rounded, rounding)?
        }
        false => {
            if !lane.cache.bounds.has_large(rounded) {
                return None;
            }
            if lane.cache.is_captured() {
                *miss = Miss::Unsearched;
                return None;
            }
            *miss = Miss::Searched;
            let cached = lane.cache.take(rounded, rounding, Fit::Exact)?;
            (Allocation::of_cache(cached), None)
        }
    };
    let registration = left.unwrap_or_else(|| registration.clone());
    Some(Block::of(
        registration,
        allocation,
        rounding,
        None,
        Rare::NONE,
    ))
}

/// Returns the rounded size of a block that a stream's cache may have, if there are no observers and no scope is entered.
#[inline(always)]
fn plain_size(
    pool: &Pool,
    registration: &Arc<Registration>,
    bytes: u64,
    alignment: u64,
) -> Option<u64> {
    let step = registration.step;
    let is_plain = plain::Arc::ptr_eq(&registration.presence, &pool.presence)
        && registration.observers.is_none()
        && bytes <= registration.capacity.load(Ordering::Relaxed)
        && alignment.is_power_of_two()
        && alignment <= step
        && !is_any_in_scope();
    if !is_plain {
        return None;
    }
    Some(round_up(bytes, step))
}

/// Takes a block of a rounded size from the lane, charged to the tag already: then it has exactly that size.
#[inline(always)]
fn take_rounded(
    registration: &Arc<Registration>,
    bytes: u64,
    rounded: u64,
    tag: Option<Tag>,
) -> Option<Block> {
    let surplus = (rounded - bytes) as u32;
    let fit = tag.map_or(Fit::Near, |_| Fit::Exact);
    let cache = &registration.lane.cache;
    let (cached, registration) = cache.take_at_once(registration, rounded, surplus, fit)?;
    let allocation = Allocation::of_cache(cached);
    // It may be a little larger than that.
    let rounding = (allocation.bytes - bytes) as u32;
    Some(Block::of(
        registration,
        allocation,
        rounding,
        tag,
        Rare::NONE,
    ))
}
