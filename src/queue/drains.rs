//! How many drains wait.

use super::funnel::{Funnel, Member};
use crate::engine::{Shared, gate};
use crate::sync::{Guards, Mutex, Ordering};

/// The number of drains that wait.
#[derive(Debug)]
pub(super) struct Drains(Mutex<usize>);

impl Drains {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::Queue, 0))
    }

    /// Counts a drain. The gate's bit is set and cleared under the lock, so that it is set while any drain waits.
    pub(super) fn begin(&self, shared: &Shared, funnel: &Funnel) -> Member {
        let mut drains = self.0.lock();
        *drains += 1;
        if *drains == 1 {
            shared.gate.fetch_or(gate::DRAINING, Ordering::SeqCst);
        }
        drop(drains);
        funnel.name_drain()
    }

    pub(super) fn end(&self, shared: &Shared, funnel: &Funnel, member: Member) {
        drop(funnel.resign(member));
        let mut drains = self.0.lock();
        *drains -= 1;
        if *drains == 0 {
            shared.gate.fetch_and(!gate::DRAINING, Ordering::SeqCst);
        }
    }
}
