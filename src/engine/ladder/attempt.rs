//! What is tried, and in which order.

use super::Effort;
use crate::ledger::policy::Order;

/// A rung, as something to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
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

    pub(super) fn ladder(order: Order, effort: Effort) -> impl Iterator<Item = Self> {
        let rungs: &[Self] = match order {
            Order::GrowFirst => &Self::GROW_FIRST,
            Order::WaitFirst => &Self::WAIT_FIRST,
        };
        let last = (effort == Effort::Immediate).then_some(Self::AnyDeviceWait);
        rungs.iter().copied().chain(last)
    }
}
