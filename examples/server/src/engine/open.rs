//! What the workers have while there are requests, and give back when the last one has ended: the activations, and the
//! weights, if an idle server sleeps.

use super::ACTIVATIONS;
use super::refusal::Refusal;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex, MutexGuard};
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
    /// Held by the one request that may have memory of its own while the weights sleep.
    turn: Mutex<()>,
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
            turn: Mutex::default(),
        }
    }

    /// Returns whether the weights sleep at times.
    pub(super) fn sleeps(&self) -> bool {
        self.weights.is_some()
    }

    /// Waits for the turn to have memory while the weights sleep. Servers that share a GPU never wait for each other if it
    /// holds the weights of one, and for each of them the activations and a longest sequence.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Reserves the activations and wakes the weights, if no request has done so.
    ///
    /// # Errors
    /// Returns an error if the memory is not available in time, or the pool fails.
    pub(super) async fn open(&self, deadline: Instant) -> Result<Arc<Open>, Refusal> {
        let current = tokio::time::timeout_at(deadline, self.open.lock());
        let mut current = current.await.map_err(|_| Refusal::Late)?;
        if let Some(open) = current.upgrade() {
            return Ok(open);
        }
        let left = || deadline.saturating_duration_since(Instant::now());
        let activations = self.pool.reserve_many(vec![self.bytes; self.workers]);
        let activations = activations.tag(Tag::new(ACTIVATIONS)).timeout(left());
        let reservation = activations.await?;
        // Last: a server that has its weights waits for nothing that another one may hold while it waits for its own.
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
        let open = Arc::new(Open {
            reservation,
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
