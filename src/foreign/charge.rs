//! Bytes that others hold, counted against the capacity of a pool.

use crate::engine::maintenance;
use crate::error::AllocError;
use crate::handles::Presence;
use crate::measure::Bytes;
use crate::queue::Demand;
use crate::sync::plain::{Arc, Weak};
use std::fmt;

/// Bytes of a pool's capacity that memory outside of the pool takes up, from [`Pool::charge`](crate::Pool::charge).
/// Dropping it gives them back, which serves waiting requests. It does not keep the pool alive.
#[must_use = "the bytes are given back when it is dropped"]
pub struct Charge {
    pool: Weak<Presence>,
    bytes: u64,
}

impl Charge {
    /// # Errors
    /// Returns the errors of [`Pool::charge`](crate::Pool::charge).
    pub(crate) fn take(pool: &Arc<Presence>, bytes: u64) -> Result<Self, AllocError> {
        let service = &pool.service;
        let engine = &service.engine;
        if engine.shared.is_closed() {
            return Err(AllocError::Closed);
        }
        let capacity = engine.store.capacity();
        if bytes > capacity {
            return Err(AllocError::TooLarge {
                requested: bytes,
                capacity,
            });
        }
        if maintenance::charge_outside(engine, bytes).is_err() {
            let demand = Demand::in_steps(bytes, 1, 0, None);
            return Err(AllocError::Exhausted(service.shortfall(&demand).into()));
        }
        Ok(Self {
            pool: Arc::downgrade(pool),
            bytes,
        })
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            let engine = &pool.service.engine;
            maintenance::uncharge_outside(&engine.shared, &engine.store, self.bytes);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({})", Bytes(self.bytes))
    }
}
