//! What is tried, and in which order.

use super::Effort;
use crate::heap::policy::Order;

/// A source, as something to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Sources 2 and 3: what the heap knows to be free, of this stream, or ordered before it; where asking may find
    /// what fits much better, only what fits well.
    Known,
    /// Source 2: the same after asking what has completed, however it fits.
    Reaped,
    /// Source 2: the same after taking what other lanes keep, and sealing it.
    Flushed,
    /// Source 4: join, remap, or take more from the device.
    Grown,
    /// Source 2 and source 4 once more, after taking what was left to other lanes.
    FlushedAll,
    /// Source 5: a wait on the device, within the limit.
    DeviceWait,
    /// The same sources after asking once more where an event may have been seen late.
    Late,
    /// Source 6: release free segments, have other pools do so, and grow again.
    Trimmed,
    /// Source 5 once more, whatever the limit: rather than to fail.
    AnyDeviceWait,
}

impl Attempt {
    const GROW_FIRST: [Self; 8] = [
        Self::Known,
        Self::Reaped,
        Self::Flushed,
        Self::Grown,
        Self::FlushedAll,
        Self::DeviceWait,
        Self::Late,
        Self::Trimmed,
    ];

    const WAIT_FIRST: [Self; 7] = [
        Self::Known,
        Self::Reaped,
        Self::DeviceWait,
        Self::Flushed,
        Self::DeviceWait,
        Self::Grown,
        Self::Trimmed,
    ];

    pub(super) fn ladder(order: Order, effort: Effort) -> impl Iterator<Item = Self> {
        let sources: &[Self] = match order {
            Order::GrowFirst => &Self::GROW_FIRST,
            Order::WaitFirst => &Self::WAIT_FIRST,
        };
        let last = (effort == Effort::Immediate).then_some(Self::AnyDeviceWait);
        sources.iter().copied().chain(last)
    }
}
