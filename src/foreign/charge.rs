//! Bytes that others hold, counted against the capacity of a pool.

use crate::engine::charging;
use crate::handles::Presence;
use crate::measure::{Bytes, Tag};
use crate::sync::plain::{Arc, Weak};
use std::fmt;

/// Bytes of a pool's capacity that memory outside of the pool takes up, from [`Pool::charge`](crate::Pool::charge) and
/// [`Pool::charge_for`](crate::Pool::charge_for). Dropping it gives them back, which serves waiting requests. It does not
/// keep the pool alive.
#[must_use = "the bytes are given back when it is dropped"]
pub struct Charge {
    pool: Weak<Presence>,
    bytes: u64,
    tag: Option<Tag>,
}

impl Charge {
    /// Takes over bytes that were charged to the capacity, and to the tag.
    pub(crate) fn new(pool: &Arc<Presence>, bytes: u64, tag: Option<Tag>) -> Self {
        if let Some(tag) = tag {
            pool.service.queue.accounts.of(tag).count_granted();
        }
        Self {
            pool: Arc::downgrade(pool),
            bytes,
            tag,
        }
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits off a charge of `bytes`, or of all there are, which is given back by itself. Its tag counts one allocation more.
    pub fn split_off(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let (pool, tag) = (self.pool.clone(), self.tag);
        if let (Some(pool), Some(tag)) = (pool.upgrade(), tag) {
            pool.service.queue.accounts.of(tag).count_granted();
        }
        Self { pool, bytes, tag }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        charging::uncharge(&pool.service.engine, self.bytes);
        if let Some(tag) = self.tag {
            pool.service.count_freed(tag, self.bytes);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({})", Bytes(self.bytes))
    }
}
