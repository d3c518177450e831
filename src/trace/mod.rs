//! Events and spans for subscribers of the `tracing` crate. Every event of the crate is defined here.
//!
//! Without the feature `tracing` these functions are empty and cost nothing. With it, an event that no subscriber is
//! interested in costs the read of one number. A subscriber is foreign code: it is called while no lock of this crate
//! is held (*no-lock-across-calls*), and may call the pool.
//! The target is `weirpool`. The levels:
//!
//! | level | events |
//! |---|---|
//! | `ERROR` | `device broken`: a sticky error ended the pool; once for each pool |
//! | `WARN` | `device error`: another error of the device, which was returned to the caller |
//! | `WARN` | `leaked`: blocks and reservations that have owners when their pool is closed, once; or blocks that are lost when it ends |
//! | `WARN` | `deadlocked`: no waiter can be served, once for each deadlock; with the shortfall of the queue's head, and `holders` by tag and, with a history, by location |
//! | `WARN` | `deadlocked at limit`: no request throttled by a tag's limit can be served; with the same fields |
//! | `WARN` | `pressure hook failed`: with its error, or that it panicked; `a waker panicked` |
//! | `INFO` | `exhausted`: a request failed or timed out, with the shortfall; `closed` |
//! | `DEBUG` | `waiting`: a span from joining the queue to leaving it, with the event `waited` inside |
//! | `DEBUG` | `grown`, `remapped`, `trimmed`; `device wait`; `stream registered`, `stream named`, `stream gone` |
//! | `TRACE` | `granted`, `freed`: every block, also those of the lanes; `reaped` |

#[cfg(not(feature = "tracing"))]
mod disabled;
#[cfg(feature = "tracing")]
mod enabled;

#[cfg(not(feature = "tracing"))]
pub(crate) use disabled::*;
#[cfg(feature = "tracing")]
pub(crate) use enabled::*;

use crate::id::StreamId;
use crate::measure::Tag;

/// A request, as events describe it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(crate) struct Asked {
    pub(crate) stream: StreamId,
    pub(crate) bytes: u64,
    pub(crate) tag: Option<Tag>,
}
