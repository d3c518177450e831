//! Sources 2 and 3: what the heap knows to be free, as it is, and with what lanes keep.

use super::{Allocation, Climb, Refusal, Source};
use crate::heap::Fit;
use crate::heap::policy::Order;
use std::time::Duration;

/// Streams that take turns come back within so long for a large block: they are left it while more memory can be
/// taken from the device. Would the next one be given it, none would have its own at its turn.
const AT_HAND: Duration = Duration::from_micros(200);

impl Climb<'_> {
    pub(super) fn known(&self) -> Option<Allocation> {
        let grant = self.driver.heap.lock().take(self.request, &self.view())?;
        Some(self.lend(grant, Source::Free))
    }

    /// The same, unless it would break up a large piece: what fits better may have completed unnoticed.
    pub(super) fn good_fit(&self) -> Option<Allocation> {
        let fit = {
            let mut heap = self.driver.heap.lock();
            heap.take_good_fit(self.request, &self.view())
        };
        match fit {
            Fit::Good(grant) => return Some(self.lend(grant, Source::Free)),
            Fit::Loose => self.is_loose_fit.set(true),
            Fit::None => {}
        }
        None
    }

    /// What lanes keep counts for nobody else until it is gathered; what they freed without an event
    /// is never seen complete. Without the opportunistic policy only the drained blocks count.
    pub(super) fn flushed(&self) -> Result<Option<Allocation>, Refusal> {
        match self.driver.settings.order {
            Order::GrowFirst => self.driver.flush_lanes_older(AT_HAND),
            Order::WaitFirst => self.driver.flush_lanes(),
        }
        self.taken_back.set(self.driver.totals().taken_back);
        self.flushed_known()
    }

    fn flushed_known(&self) -> Result<Option<Allocation>, Refusal> {
        if self.may_ask() {
            self.driver.seal_lanes()?;
            self.reap()?;
        }
        Ok(self.known())
    }

    /// What streams were left for their next turn, once there is nothing else; whoever takes it back: another that did
    /// since this one gathered may have left some of it.
    pub(super) fn flushed_all(&self) -> Result<Option<Allocation>, Refusal> {
        self.driver.flush_lanes();
        if self.driver.totals().taken_back == self.taken_back.get() {
            return Ok(None);
        }
        match self.flushed_known()? {
            Some(allocation) => Ok(Some(allocation)),
            None => self.grown(),
        }
    }
}
