//! Memory set aside for one holder: see [`ledger::hoard`](crate::ledger::HoardId).

use super::ladder::{Climb, Effort, Lent, Refusal};
use super::many::Loans;
use super::memory::For;
use super::{Engine, Rung};
use crate::lane::Lane;
use crate::ledger::policy::WaitLimit;
use crate::ledger::{Exchanged, Growth, HoardId, Request};
use crate::sync::Arc;

impl Engine {
    /// Sets loans aside that are complete.
    pub(crate) fn hoard(&self, loans: Loans) -> HoardId {
        let mut ledger = self.ledger.lock();
        ledger.hoard(loans.into_iter().map(|lent| lent.id))
    }

    /// The same, with what is set aside already.
    pub(crate) fn add_to_hoard(&self, hoard: HoardId, loans: Loans) {
        let mut ledger = self.ledger.lock();
        ledger.add_to_hoard(hoard, loans.into_iter().map(|lent| lent.id));
    }

    /// Lends from a hoard, for use in the order of the lane's stream: behind a wait on the device, if nothing
    /// else does; for its pieces, if there is enough in pieces only. None, if that does not do.
    ///
    /// # Errors
    /// What the device says; the memory is in the hoard again.
    pub(crate) fn draw(
        &self,
        lane: &Arc<Lane>,
        hoard: HoardId,
        request: Request,
    ) -> Result<Option<Lent>, Refusal> {
        // What belongs to one holder is not a matter of policy.
        let after = lane.timeline.clock();
        let lent = Climb::new(self, lane, request, Effort::Immediate, after)?.in_hoard(hoard)?;
        if let Some(lent) = &lent {
            self.tally.count(lent.rung);
        }
        Ok(lent)
    }

    /// Bytes of a hoard that are not lent, and of its largest block.
    pub(crate) fn left_in_hoard(&self, hoard: HoardId) -> (u64, u64) {
        self.ledger.lock().left_in_hoard(hoard)
    }

    /// Makes another hoard of so many bytes, if as many are not lent.
    pub(crate) fn split_hoard(&self, hoard: HoardId, bytes: u64) -> Option<HoardId> {
        self.ledger.lock().split_hoard(hoard, bytes)
    }

    /// Ends a hoard. What is not lent of it is anybody's, as soon as it is complete.
    pub(crate) fn disband(&self, hoard: HoardId) {
        self.ledger.lock().disband(hoard);
        self.ring_if_awaited();
        self.note_return();
    }
}

impl Climb<'_> {
    /// The best of a hoard; of what is complete by now, if nothing else does; or for what is complete of it.
    fn in_hoard(&self, hoard: HoardId) -> Result<Option<Lent>, Refusal> {
        if let Some(lent) = self.known_in_hoard(hoard)? {
            return Ok(Some(lent));
        }
        self.engine.seal_lanes()?;
        self.engine.harvest()?;
        if let Some(lent) = self.known_in_hoard(hoard)? {
            return Ok(Some(lent));
        }
        self.exchanged(hoard)
    }

    /// The best of a hoard, behind a wait on the device if need be.
    fn known_in_hoard(&self, hoard: HoardId) -> Result<Option<Lent>, Refusal> {
        let may_wait = self.engine.capabilities.device_side_waits && self.lane.takes_waits;
        let limit = may_wait.then_some(WaitLimit::Unlimited);
        let taken = self.with_waits(limit, |view| {
            let mut ledger = self.engine.ledger.lock();
            ledger.take_from_hoard(hoard, self.request, view)
        });
        match taken {
            Some(grant) => Ok(self.lend_in_order(grant, Rung::Free)?),
            None => Ok(None),
        }
    }

    /// What the pool has in one piece, for the pieces of the hoard: remapped, or new, if need be. In whole handles,
    /// as far as its size is and they can be had.
    fn exchanged(&self, hoard: HoardId) -> Result<Option<Lent>, Refusal> {
        let geometry = self.engine.settings.geometry;
        if geometry.virtual_memory && self.request.bytes >= geometry.handle_bytes {
            let request = Request {
                alignment: geometry.handle_bytes.max(self.request.alignment),
                ..self.request
            };
            if let Some(lent) = self.exchanged_for(hoard, request)? {
                return Ok(Some(lent));
            }
        }
        self.exchanged_for(hoard, self.request)
    }

    fn exchanged_for(&self, hoard: HoardId, request: Request) -> Result<Option<Lent>, Refusal> {
        let limit = self.may_wait().then_some(WaitLimit::Unlimited);
        let exchanged = self.with_waits(limit, |view| {
            let mut ledger = self.engine.ledger.lock();
            ledger.exchange(hoard, request, view, Growth::Allowed)
        });
        let lent = match exchanged {
            None => return Ok(None),
            Some(Exchanged::Granted(grant)) => self.lend_in_order(grant, Rung::Free)?,
            Some(Exchanged::Planned(plan, exchange)) => {
                self.carry_out(plan, For::Hoard(self.lane.id, exchange))?
            }
        };
        // What the pool got for it may do for who waits.
        self.engine.ring_if_awaited();
        Ok(lent)
    }
}
