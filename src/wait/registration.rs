//! A stream's registration: what its handle and its blocks hold in common.

use super::Service;
use crate::device::Referee;
use crate::lane::Lane;
use crate::measure::{Account, Tag};
use crate::sync::{Arc, plain};

/// Held by the pool's handles and its registrations; the last one out tells the reclaimers that were
/// made to last.
#[derive(Debug)]
pub(crate) struct Presence(pub(crate) Arc<Service>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.orphan();
    }
}

/// One count for a stream: a block holds it, so that a free writes no line that other streams write.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) service: Arc<Service>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) presence: Arc<Presence>,
    /// Who is told of blocks' lives, on a device that checks the order of what it is given to do.
    pub(crate) referee: Option<plain::Arc<dyn Referee>>,
}

impl Registration {
    /// What the pool keeps of a tag.
    pub(crate) fn account_of(&self, tag: Tag) -> &Account {
        self.service.queue.accounts.of(tag)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.service.engine.retire(&self.lane);
    }
}
