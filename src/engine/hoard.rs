//! Memory set aside for one holder: see [`ledger::hoard`](crate::ledger::HoardId).

use super::Engine;
use super::ladder::{Lent, Refusal};
use super::many::Loans;
use crate::lane::Lane;
use crate::ledger::{HoardId, Request};
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
    /// else does. None, if that does not do.
    ///
    /// # Errors
    /// What the device says; the memory is in the hoard again.
    pub(crate) fn draw(
        &self,
        lane: &Arc<Lane>,
        hoard: HoardId,
        request: Request,
    ) -> Result<Option<Lent>, Refusal> {
        let lent = self.climb_in_hoard(lane, hoard, request)?;
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
