//! What is told to a subscriber of the `tracing` crate: all of it is said here, once.
//!
//! Without the feature `tracing` these are empty functions, and nothing is paid. With it, what nobody
//! subscribes to costs the reading of one number. A subscriber is a stranger: it is called while no lock
//! of this crate is held (I5), and may call the pool.
//!
//! The target is `weirpool`. The levels:
//!
//! | level | what |
//! |---|---|
//! | `ERROR` | `device broken`: a sticky error ended the pool; told once |
//! | `WARN` | `device error`: another error of the device, which was passed on; `leaked`: blocks and reservations that live when their pool is closed, told once, or blocks that are lost when it ends |
//! | `WARN` | `deadlocked`, with the shortfall of the queue's head, and `holders`, by tag and, with a history, by place: nobody who waits can be served; told once a deadlock; `deadlocked at limit`, of those who wait for the limit of a tag |
//! | `WARN` | `pressure hook failed`: with its error, or that it panicked |
//! | `INFO` | `exhausted`, with the shortfall: a request failed, or its time was over; `closed` |
//! | `DEBUG` | `waiting`, a span from joining the queue to leaving it, and in it `waited`; `grown`, `remapped` in it; `trimmed`; `device wait`; `stream registered`, `stream gone` |
//! | `TRACE` | `granted`, `freed`: every block, those of the lanes included; `reaped` |

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

/// A request, as it is told of.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(crate) struct Asked {
    pub(crate) stream: StreamId,
    pub(crate) bytes: u64,
    pub(crate) tag: Option<Tag>,
}
