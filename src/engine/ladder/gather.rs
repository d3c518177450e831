//! Rungs 2 and 3: what the ledger knows to be free, as it is, and with what lanes keep.

use super::{Climb, Lent, Refusal, Rung};
use crate::ledger::Fit;
use crate::ledger::policy::Order;
use std::time::Duration;

/// Streams that take turns come back within so long for a large block: they are left it while more memory can be
/// taken from the device. Would the next one be given it, none would have its own at its turn.
const AT_HAND: Duration = Duration::from_micros(200);

impl Climb<'_> {
    pub(super) fn known(&self) -> Option<Lent> {
        let grant = self.engine.ledger.lock().take(self.request, &self.view())?;
        Some(self.lend(grant, Rung::Free))
    }

    /// The same, unless it would break up a large piece: what fits better may have completed unnoticed.
    pub(super) fn snug(&self) -> Option<Lent> {
        let fit = {
            let mut ledger = self.engine.ledger.lock();
            ledger.take_snug(self.request, &self.view())
        };
        match fit {
            Fit::Snug(grant) => return Some(self.lend(grant, Rung::Free)),
            Fit::Loose => self.is_loose.set(true),
            Fit::None => {}
        }
        None
    }

    /// What lanes keep counts for nobody else until it is gathered; what they freed without an event
    /// is never seen complete. Without the opportunistic policy only the drained blocks count.
    pub(super) fn gathered(&self) -> Result<Option<Lent>, Refusal> {
        match self.engine.settings.order {
            Order::GrowFirst => self.engine.drain_lanes_older(AT_HAND),
            Order::WaitFirst => self.engine.drain_lanes(),
        }
        self.taken_back.set(self.engine.totals().taken_back);
        self.gathered_known()
    }

    fn gathered_known(&self) -> Result<Option<Lent>, Refusal> {
        if self.may_ask() {
            self.engine.seal_lanes()?;
            self.harvest()?;
        }
        Ok(self.known())
    }

    /// What streams were left for their next turn, once there is nothing else; whoever takes it back: another that did
    /// since this one gathered may have left some of it.
    pub(super) fn robbed(&self) -> Result<Option<Lent>, Refusal> {
        self.engine.drain_lanes();
        if self.engine.totals().taken_back == self.taken_back.get() {
            return Ok(None);
        }
        match self.gathered_known()? {
            Some(lent) => Ok(Some(lent)),
            None => self.grown(),
        }
    }
}
