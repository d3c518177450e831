//! The memory that the program sees.

use super::context::Context;
use weirpool_broker::lease_of;

/// Returns the free and the total bytes that the program sees, from the driver's: memory that the pool can give counts
/// as free, and nothing beyond the limit, or beyond what a broker leases at most, counts at all.
pub(super) fn seen(context: &Context, (free, total): (usize, usize)) -> (usize, usize) {
    let read = context.pool.inspect().statistics();
    let most = match (context.settings.limit, lease_of(&context.pool)) {
        (limit, Some(lease)) => lease.limit.min(limit.unwrap_or(u64::MAX)),
        (Some(limit), None) => limit,
        (None, None) => u64::MAX,
    };
    let total = (total as u64).min(most);
    let held = read.used.current.saturating_add(read.charged);
    let free =
        (free as u64).saturating_add(read.reserved.current.saturating_sub(read.used.current));
    (
        free.min(total.saturating_sub(held)) as usize,
        total as usize,
    )
}

/// Returns the bytes that the pool of a context has from the device, or has admitted.
pub(super) fn taken(context: &Context) -> u64 {
    let read = context.pool.inspect().statistics();
    read.reserved.current.saturating_add(read.charged)
}
