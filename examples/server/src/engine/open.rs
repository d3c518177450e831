//! What the workers have while there are requests, and give back when the last one has ended: the activations, and the
//! weights, if an idle server sleeps.

use super::ACTIVATIONS;
use super::refusal::Refusal;
use std::sync::{Arc, Weak};
use tokio::sync::Mutex;
use tokio::time::Instant;
use weirpool::{AllocError, Block, Pool, Reservation, Stream, Tag, Terms};
use weirpool_tiers::{Entered, Region};

/// Opens the workers for requests.
///
/// A request opens the workers before it reserves memory of its own, and no request opens them while it holds any: so
/// the first request of an idle server waits for nothing but evictable memory, and two requests never wait for each
/// other.
pub(super) struct Opening {
    pool: Pool,
    /// The region of the weights, if it sleeps.
    weights: Option<Region>,
    workers: usize,
    /// The bytes of one worker's activation.
    bytes: u64,
    open: Mutex<Weak<Open>>,
}

/// Workers that have memory for their steps.
pub(super) struct Open {
    reservation: Reservation,
    bytes: u64,
    /// The weights stay where they are.
    _weights: Option<Entered>,
}

impl Opening {
    pub(super) fn new(pool: Pool, weights: Option<Region>, workers: usize, bytes: u64) -> Self {
        Self {
            pool,
            weights,
            workers,
            bytes,
            open: Mutex::default(),
        }
    }

    /// Wakes the weights and reserves the activations, if no request has done so.
    ///
    /// # Errors
    /// Returns an error if the memory is not available in time, or the pool fails.
    pub(super) async fn open(&self, deadline: Instant) -> Result<Arc<Open>, Refusal> {
        let mut current = self.open.lock().await;
        if let Some(open) = current.upgrade() {
            return Ok(open);
        }
        let left = || deadline.saturating_duration_since(Instant::now());
        let weights = match &self.weights {
            None => None,
            Some(weights) => {
                let terms = Terms {
                    timeout: Some(left()),
                    ..Terms::default()
                };
                Some(weights.enter_on(terms).await?)
            }
        };
        let activations = self.pool.reserve_many(vec![self.bytes; self.workers]);
        let tag = Tag::new(ACTIVATIONS);
        let open = Arc::new(Open {
            reservation: activations.tag(tag).timeout(left()).await?,
            bytes: self.bytes,
            _weights: weights,
        });
        *current = Arc::downgrade(&open);
        Ok(open)
    }
}

impl Open {
    /// Allocates the activation of one step. Each worker has at most one.
    ///
    /// # Errors
    /// Returns an error if the device has failed.
    pub(super) fn activation(&self, stream: &Stream) -> Result<Block, AllocError> {
        self.reservation.allocate(stream, self.bytes)
    }
}
