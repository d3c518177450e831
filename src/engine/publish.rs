//! Publishing: how the engine reports what makes memory reachable.
//!
//! A change is published after it took effect, and with no lock held: a request that searches after hearing of it finds
//! the memory. Only entry points publish, that is, calls made for a user or by the device. A search never publishes its
//! own steps, such as reaping, flushing caches, growing or trimming: the searcher looks at the result itself.

use crate::id::ReservationId;
use crate::id::StreamId;
use std::fmt;

/// What changed, as far as waiting requests are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Memory was freed, sealed, completed, put together, or can be taken from the device.
    Memory,
    /// A stream comes after more work of other streams.
    Order(StreamId),
    /// Memory returned to a reservation, or was added to it.
    Reservation(ReservationId),
    /// The pool closed, its device failed, or its capacity or a limit is another one.
    Terms,
}

/// The receiver of changes: it wakes the requests that can profit.
pub(crate) trait Publish: fmt::Debug + Send + Sync {
    fn publish(&self, change: Change);
}
