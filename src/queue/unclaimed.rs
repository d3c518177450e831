//! Memory that was found for a request, or bytes that were charged for it, and not yet granted.

use super::Service;
use super::waiter::Waiter;
use crate::engine::{Allocations, charging, release};
use crate::lane::Lane;
use crate::sync::Arc;

/// See the [module](self). Dropped, it goes back to the pool: no lock may be held then.
#[derive(Debug)]
#[must_use = "memory that is not claimed goes back to the pool"]
pub(super) struct Unclaimed {
    service: Arc<Service>,
    lane: Arc<Lane>,
    allocations: Allocations,
    /// The bytes that the capacity was charged for.
    charged: u64,
}

impl Unclaimed {
    /// Takes over memory that was found for a request, or its charge.
    pub(super) fn new(service: &Arc<Service>, waiter: &Waiter, allocations: Allocations) -> Self {
        Self {
            service: service.clone(),
            lane: waiter.lane.clone(),
            allocations,
            charged: waiter.parts.charge.unwrap_or(0),
        }
    }

    /// Takes the memory, which the caller has to free from now on.
    pub(super) fn claim(mut self) -> Allocations {
        self.charged = 0;
        std::mem::take(&mut self.allocations)
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let allocations = std::mem::take(&mut self.allocations);
        if !allocations.is_empty() {
            release::give_all_back(&self.service.engine, &self.lane, allocations);
        }
        if self.charged > 0 {
            charging::uncharge(&self.service.engine, self.charged);
        }
    }
}
