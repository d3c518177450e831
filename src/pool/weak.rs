//! A handle of a pool that does not keep it alive.

use super::Pool;
use crate::handles::Presence;
use crate::sync::plain;

/// A handle that does not keep its pool alive, from [`Pool::downgrade`].
///
/// ```
/// use weirpool::{Pool, device::sim::SimDevice};
///
/// let pool = Pool::builder(SimDevice::new()).build()?;
/// let weak = pool.downgrade();
/// assert_eq!(weak.upgrade().as_ref(), Some(&pool));
/// drop(pool);
/// assert_eq!(weak.upgrade(), None);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeakPool {
    presence: plain::Weak<Presence>,
}

impl WeakPool {
    /// Returns a handle that keeps the pool alive, or `None` if the last one was dropped: of the pool, of one of its
    /// streams, a block, or a reservation.
    pub fn upgrade(&self) -> Option<Pool> {
        self.presence.upgrade().map(Pool::of_presence)
    }
}

impl Pool {
    /// Returns a handle that does not keep the pool alive.
    pub fn downgrade(&self) -> WeakPool {
        WeakPool {
            presence: plain::Arc::downgrade(&self.presence),
        }
    }
}
