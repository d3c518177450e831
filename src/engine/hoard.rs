//! Memory set aside for one holder: see [`ledger::hoard`](crate::ledger::HoardId).

use super::ladder::{Climb, Effort, Lent, Refusal};
use super::many::Loans;
use super::memory::For;
use super::{Engine, Rung};
use crate::lane::Lane;
use crate::ledger::policy::WaitLimit;
use crate::ledger::{Exchanged, Growth, HoardId, Moves, Request};
use crate::sync::{Arc, yield_now};
use std::cell::Cell;

/// What came of drawing from a hoard.
#[derive(Debug)]
#[must_use = "what is lent and dropped is memory lost"]
pub(crate) enum Drawn {
    Lent(Lent),
    /// It has not enough, or not so that it does: so many bytes, and so many in its largest block.
    Short {
        left: u64,
        largest: u64,
    },
}

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
    /// else does; for its pieces, if there is enough in pieces only.
    ///
    /// Whoever finds too little while another is exchanging pieces of the same hoard waits for that to be over, as for
    /// a lock: a part of them may come back.
    ///
    /// # Errors
    /// What the device says; the memory is in the hoard again.
    pub(crate) fn draw(
        &self,
        lane: &Arc<Lane>,
        hoard: HoardId,
        request: Request,
    ) -> Result<Drawn, Refusal> {
        // What belongs to one holder is not a matter of policy.
        let after = lane.timeline.clock();
        let drawn = Climb::new(self, lane, request, Effort::Immediate, after)?.in_hoard(hoard)?;
        if let Drawn::Lent(lent) = &drawn {
            self.tally.count(lent.rung);
        }
        Ok(drawn)
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
    /// The best of a hoard; of what is complete by now, if nothing else does; or for what is complete of it, of what
    /// lanes keep in the end. Looked for again, if anything came back to the hoard meanwhile.
    fn in_hoard(&self, hoard: HoardId) -> Result<Drawn, Refusal> {
        let mut has_robbed = false;
        loop {
            let (lent, moves) = self.known_in_hoard(hoard)?;
            if let Some(lent) = lent {
                return Ok(Drawn::Lent(lent));
            }
            self.engine.seal_lanes()?;
            self.engine.harvest()?;
            if let (Some(lent), _) = self.known_in_hoard(hoard)? {
                return Ok(Drawn::Lent(lent));
            }
            let failed = Cell::new(0);
            if let Some(lent) = self.exchanged(hoard, &failed)? {
                return Ok(Drawn::Lent(lent));
            }
            if !has_robbed && self.may_exchange(hoard) {
                // Also if there is nothing: another may have taken it back just now.
                self.engine.drain_lanes();
                has_robbed = true;
                continue;
            }
            // Its own exchanges that the device refused are no news.
            let so_far = moves.so_far + failed.get();
            if let Some(short) = self.short_since(hoard, so_far) {
                return Ok(short);
            }
        }
    }

    /// Whether there is enough of it, so that what lanes keep might do for its pieces.
    fn may_exchange(&self, hoard: HoardId) -> bool {
        self.engine.left_in_hoard(hoard).0 >= self.request.bytes
    }

    /// There was too little when so much had come back; none, if there is more by now. While another's exchange may
    /// bring back enough, that is awaited.
    fn short_since(&self, hoard: HoardId, so_far: u64) -> Option<Drawn> {
        loop {
            {
                let ledger = self.engine.ledger.lock();
                let (left, largest) = ledger.left_in_hoard(hoard);
                let moves = ledger.moves_in(hoard);
                if moves.so_far != so_far {
                    return None;
                }
                if moves.under_way == 0 || left + moves.under_way < self.request.bytes {
                    return Some(Drawn::Short { left, largest });
                }
            }
            yield_now();
        }
    }

    /// The best of a hoard, behind a wait on the device if need be; with what moved until it was looked at.
    fn known_in_hoard(&self, hoard: HoardId) -> Result<(Option<Lent>, Moves), Refusal> {
        let may_wait = self.engine.capabilities.device_side_waits && self.lane.takes_waits;
        let limit = may_wait.then_some(WaitLimit::Unlimited);
        let (taken, moves) = self.with_waits(limit, |view| {
            let mut ledger = self.engine.ledger.lock();
            let taken = ledger.take_from_hoard(hoard, self.request, view);
            (taken, ledger.moves_in(hoard))
        });
        let lent = match taken {
            Some(grant) => self.lend_in_order(grant, Rung::Free)?,
            None => None,
        };
        Ok((lent, moves))
    }

    /// What the pool has in one piece, for the pieces of the hoard: remapped, or new, if need be. In whole handles,
    /// as far as its size is and they can be had. Counts the exchanges that came to nothing.
    fn exchanged(&self, hoard: HoardId, failed: &Cell<u64>) -> Result<Option<Lent>, Refusal> {
        let geometry = self.engine.settings.geometry;
        if geometry.virtual_memory && self.request.bytes >= geometry.handle_bytes {
            let request = Request {
                alignment: geometry.handle_bytes.max(self.request.alignment),
                ..self.request
            };
            if let Some(lent) = self.exchanged_for(hoard, request, failed)? {
                return Ok(Some(lent));
            }
        }
        self.exchanged_for(hoard, self.request, failed)
    }

    fn exchanged_for(
        &self,
        hoard: HoardId,
        request: Request,
        failed: &Cell<u64>,
    ) -> Result<Option<Lent>, Refusal> {
        let growth = self.growth();
        let lent = self.exchanged_so(hoard, request, growth, failed)?;
        if lent.is_none() && self.was_refused_new(growth) {
            return self.exchanged_so(hoard, request, Growth::Allowed, failed);
        }
        Ok(lent)
    }

    fn exchanged_so(
        &self,
        hoard: HoardId,
        request: Request,
        growth: Growth,
        failed: &Cell<u64>,
    ) -> Result<Option<Lent>, Refusal> {
        let limit = self.may_wait().then_some(WaitLimit::Unlimited);
        let exchanged = self.with_waits(limit, |view| {
            let mut ledger = self.engine.ledger.lock();
            ledger.exchange(hoard, request, view, growth)
        });
        let lent = match exchanged {
            None => return Ok(None),
            Some(Exchanged::Granted(grant)) => self.lend_in_order(grant, Rung::Free)?,
            Some(Exchanged::Planned(plan, exchange)) => {
                failed.set(failed.get() + 1);
                self.carry_out(plan, For::Hoard(self.lane.id, exchange))?
            }
        };
        // What the pool got for it may do for who waits, or be more than it is to keep.
        self.engine.ring_if_awaited();
        self.engine.note_return();
        Ok(lent)
    }
}
