//! Events and spans for subscribers of the `tracing` crate.
//!
//! An event that no subscriber is interested in costs the read of one number. A subscriber is called while no lock of the pool is
//! held, and may call the pool.
//! The target is `weirpool`. The levels:
//!
//! | level | events |
//! |---|---|
//! | `ERROR` | `device broken`: a sticky error ended the pool; once for each pool |
//! | `WARN` | `device error`: another error of the device, which was returned to the caller |
//! | `WARN` | `leaked`: blocks and reservations that have owners when their pool is closed, once; or blocks that are lost when it ends |
//! | `WARN` | `deadlocked`: no waiter can be served, once for each deadlock; with the shortfall of the queue's head, and `holders` by tag and, with a history, by location |
//! | `WARN` | `deadlocked at limit`: no request throttled by a tag's limit can be served; with the same fields |
//! | `WARN` | `capacity source panicked`, `a waker panicked` |
//! | `WARN` | `soft cap exceeded`: the pool reserves more than its soft cap; once until it is within the cap again |
//! | `WARN` | `host task abandoned`: it was dropped before its end, or panicked, and its stream went on |
//! | `INFO` | `exhausted`: a request failed or timed out, with the shortfall; `closed` |
//! | `DEBUG` | `waiting`: a span from joining the queue to leaving it, with the event `waited` inside |
//! | `DEBUG` | `grown`, `remapped`, `trimmed`, `evicted`; `device wait`; `stream registered`, `stream named`, `stream gone` |
//! | `TRACE` | `granted`, `freed`: every block, also those of the lanes; `submitted`: work, with its name; `reaped` |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::{Level, Span, debug_span, field};
use weirpool::Tag;
use weirpool::extend::{Event, Fact, Observer};
use weirpool_heap::id::StreamId;

const TARGET: &str = "weirpool";

/// An observer that tells the events of its pools to the subscriber of the `tracing` crate that is current on the thread; see the
/// [table](crate::tracing).
#[derive(Debug, Default)]
pub struct Tracing {
    /// The spans of the requests that wait, by pool-wide number of the event.
    waiting: Mutex<BTreeMap<u64, Span>>,
}

impl Tracing {
    /// Creates an observer for one pool.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

/// Emits an event if a subscriber is interested in its level.
macro_rules! tell {
    ($level:ident, $($content:tt)+) => {
        if tracing::enabled!(target: TARGET, Level::$level) {
            tracing::event!(target: TARGET, Level::$level, $($content)+);
        }
    };
}

/// Emits an event with all figures of a shortfall.
macro_rules! tell_shortfall {
    ($level:ident, $shortfall:expr, $($content:tt)+) => {
        tell!(
            $level,
            requested = $shortfall.requested,
            free = $shortfall.free,
            largest_free = $shortfall.largest_free,
            pending = $shortfall.pending,
            used = $shortfall.used,
            reserved = $shortfall.reserved,
            capacity = $shortfall.capacity,
            waiting = $shortfall.waiting,
            tag = $shortfall.tag.map(|tag| tag.tag.name()),
            tag_used = $shortfall.tag.map(|tag| tag.used),
            tag_limit = $shortfall.tag.map(|tag| tag.limit),
            device_free = $shortfall.device.map(|device| device.free),
            fragmentation = $shortfall.fragmentation(),
            $($content)+
        )
    };
}

fn name_of(tag: Option<Tag>) -> Option<&'static str> {
    tag.map(Tag::name)
}

impl Observer for Tracing {
    fn event(&self, event: &Event<'_>) {
        match event.fact {
            Fact::Granted {
                address,
                size,
                stream,
                tag,
                source,
                ..
            } => {
                let (bytes, address) = (size, address.to_bits());
                tell!(TRACE, stream = %stream, bytes, source = field::debug(source), address, tag = name_of(tag), "granted");
            }
            Fact::Freed {
                address,
                size,
                stream,
                ..
            } => {
                let (bytes, address) = (size, address.to_bits());
                tell!(TRACE, stream = %stream, bytes, address, "freed");
            }
            Fact::Grown { bytes, chunks, .. } => tell!(DEBUG, bytes, chunks, "grown"),
            Fact::Remapped { bytes, chunks, .. } => tell!(DEBUG, bytes, chunks, "remapped"),
            Fact::Released { bytes, .. } => tell!(DEBUG, bytes, "trimmed"),
            Fact::Evicted { bytes } => tell!(DEBUG, bytes, "evicted"),
            Fact::SoftCapExceeded { reserved, soft_cap } => {
                tell!(WARN, reserved, soft_cap, "soft cap exceeded");
            }
            Fact::Reaped { streams } => tell!(TRACE, streams, "reaped"),
            Fact::DeviceWait {
                stream,
                name,
                donor,
                donor_name,
            } => {
                tell!(DEBUG, stream = %stream, donor = %donor, name, donor_name, "device wait");
            }
            Fact::Submitted {
                stream, name, task, ..
            } => {
                let task = task.map(|task| &**task);
                tell!(TRACE, stream = %stream, name, task, "submitted");
            }
            Fact::HostTaskAbandoned { stream, name, task } => {
                tell!(WARN, stream = %stream, name, task, "host task abandoned");
            }
            Fact::Waiting {
                stream,
                name,
                bytes,
                tag,
            } => {
                self.begin(event.number, stream, name, bytes, tag);
            }
            Fact::Waited {
                since,
                waited,
                outcome,
                ..
            } => {
                let outcome = outcome.name();
                let span = self
                    .waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&since);
                if let Some(span) = span {
                    span.record("outcome", outcome);
                    let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
                    span.in_scope(|| tell!(DEBUG, outcome, waited_ns, "waited"));
                }
            }
            Fact::OutOfMemory { shortfall, .. } => tell_shortfall!(INFO, shortfall, "exhausted"),
            Fact::Deadlocked {
                shortfall,
                at_limit: false,
                holders,
            } => {
                tell_shortfall!(WARN, shortfall, holders, "deadlocked");
            }
            Fact::Deadlocked {
                shortfall, holders, ..
            } => {
                tell_shortfall!(WARN, shortfall, holders, "deadlocked at limit");
            }
            Fact::StreamRegistered { stream, name } => {
                tell!(DEBUG, stream = %stream, name, "stream registered");
            }
            Fact::StreamNamed { stream, name } => {
                tell!(DEBUG, stream = %stream, name, "stream named")
            }
            Fact::StreamGone { stream, name } => {
                tell!(DEBUG, stream = %stream, name, "stream gone")
            }
            Fact::Stopping => tell!(INFO, "admits no more requests"),
            Fact::Closed => tell!(INFO, "closed"),
            Fact::Leaked {
                blocks,
                reservations,
                bytes,
                forgotten,
            } => {
                tell!(WARN, blocks, bytes, reservations, forgotten, "leaked");
            }
            Fact::DeviceFailed { error } if error.is_sticky() => {
                tell!(ERROR, %error, "device broken")
            }
            Fact::DeviceFailed { error } => tell!(WARN, %error, "device error"),
            Fact::SourcePanicked => tell!(WARN, "capacity source panicked"),
            Fact::WakerPanicked => tell!(WARN, "a waker panicked"),
            _ => {}
        }
    }
}

impl Tracing {
    /// Begins a span from joining the queue to leaving it, inside the span that is current.
    fn begin(
        &self,
        number: u64,
        stream: Option<StreamId>,
        name: Option<&str>,
        bytes: u64,
        tag: Option<Tag>,
    ) {
        let span = debug_span!(
            target: TARGET,
            "waiting",
            stream = stream.map(field::display),
            name,
            bytes,
            tag = name_of(tag),
            outcome = field::Empty,
        );
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(number, span);
    }
}
