//! Source 1: what the stream itself freed.

use super::{Allocation, Source};
use crate::driver::Driver;
use crate::lane::{CachedBlock, Lane, Miss, RefCache, Slot, Wanted};

impl Allocation {
    #[inline(always)]
    fn of_lane(cached: CachedBlock) -> Self {
        Self {
            id: cached.id,
            address: cached.address,
            bytes: cached.bytes,
            after: cached.ticket,
            source: Source::Lane,
        }
    }
}

impl Driver {
    /// Source 1: what the stream freed, from its lane.
    pub(crate) fn take_own<K: ?Sized>(
        &self,
        lane: &Lane,
        slot: &Slot<K>,
        bytes: u64,
        rounding: u32,
        wanted: Wanted,
    ) -> Option<Allocation> {
        let cached = lane.take(slot, bytes, rounding, wanted, &self.gate);
        cached.map(Allocation::of_lane)
    }

    /// The same in the plain case, with what an earlier block left in the lane's `slot`, if one did.
    ///
    /// # Errors
    /// When there is nothing, or it is not the plain case.
    #[inline(always)]
    pub(crate) fn take_own_at_once<O>(
        &self,
        lane: &Lane,
        slot: &Slot<RefCache<O>>,
        bytes: u64,
        rounding: u32,
    ) -> Result<(Allocation, Option<O>), Miss> {
        let (cached, left) = lane.take_at_once(slot, bytes, rounding, &self.gate)?;
        Ok((Allocation::of_lane(cached), left))
    }
}
