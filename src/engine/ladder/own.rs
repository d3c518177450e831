//! Rung 1: what the stream itself freed.

use super::{Lent, Rung};
use crate::engine::Engine;
use crate::lane::{Kept, Lane, Miss, Slot, Stash, Wanted};

impl Lent {
    #[inline(always)]
    fn of_lane(kept: Kept) -> Self {
        Self {
            id: kept.id,
            address: kept.address,
            bytes: kept.bytes,
            after: kept.ticket,
            rung: Rung::Lane,
        }
    }
}

impl Engine {
    /// Rung 1: what the stream freed, from its lane.
    pub(crate) fn take_own<K: ?Sized>(
        &self,
        lane: &Lane,
        slot: &Slot<K>,
        bytes: u64,
        rounding: u32,
        wanted: Wanted,
    ) -> Option<Lent> {
        let kept = lane.take(slot, bytes, rounding, wanted, &self.gate);
        kept.map(Lent::of_lane)
    }

    /// The same in the plain case, with what an earlier block left in the lane's `slot`, if one did.
    ///
    /// # Errors
    /// When there is nothing, or it is not the plain case.
    #[inline(always)]
    pub(crate) fn take_own_at_once<O>(
        &self,
        lane: &Lane,
        slot: &Slot<Stash<O>>,
        bytes: u64,
        rounding: u32,
    ) -> Result<(Lent, Option<O>), Miss> {
        let (kept, left) = lane.take_at_once(slot, bytes, rounding, &self.gate)?;
        Ok((Lent::of_lane(kept), left))
    }
}
