//! Memory that was found for a request, and not yet granted.

use super::Service;
use crate::engine::{Allocations, release};
use crate::lane::Lane;
use crate::sync::Arc;

/// See the [module](self). Dropped, it goes back to the pool: no lock may be held then.
#[derive(Debug)]
#[must_use = "memory that is not claimed goes back to the pool"]
pub(super) struct Unclaimed {
    service: Arc<Service>,
    lane: Arc<Lane>,
    allocations: Allocations,
}

impl Unclaimed {
    pub(super) fn new(service: &Arc<Service>, lane: &Arc<Lane>, allocations: Allocations) -> Self {
        Self {
            service: service.clone(),
            lane: lane.clone(),
            allocations,
        }
    }

    /// Takes the memory, which the caller has to free from now on.
    pub(super) fn claim(mut self) -> Allocations {
        std::mem::take(&mut self.allocations)
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let allocations = std::mem::take(&mut self.allocations);
        if !allocations.is_empty() {
            release::give_all_back(&self.service.engine, &self.lane, allocations);
        }
    }
}
