//! The recent events of a pool, as data and as text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use weirpool::device::DeviceAddress;
use weirpool::extend::{BlockOrigin, Memory, Site};
use weirpool::{Shortfall, StreamId, Tag, WaitOutcome};
use weirpool_heap::debug_in_units;
use weirpool_heap::id::{StreamLabel, StreamNames};
use weirpool_heap::units::{Bytes, Counted, Milliseconds};

/// The recent events of a pool, oldest first: see [`Recorded::history`](crate::Recorded::history). Displayed as one line for
/// each event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct History {
    /// The events in the order in which they happened. Their times never go back.
    pub entries: Vec<HistoryEntry>,
    /// Number of earlier events that were dropped.
    pub forgotten: u64,
    /// The [names](weirpool::Stream::named) of the registered streams that have one.
    pub streams: BTreeMap<StreamId, String>,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(f, "({} earlier events are no longer kept)", self.forgotten)?;
        }
        for entry in &self.entries {
            entry.write(f, &self.streams)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The state of a pool's memory at one moment, in bytes. The rest of `reserved` is cached by lanes, set aside, or being
/// moved.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Occupancy {
    /// Held from the device.
    pub reserved: u64,
    /// In live blocks.
    pub used: u64,
    /// Freed to the heap, but behind work that is not known to be complete.
    pub pending: u64,
    /// Freed to the heap, and complete.
    pub free: u64,
}

debug_in_units!(struct Occupancy { reserved as bytes, used as bytes, pending as bytes, free as bytes });

impl From<Memory> for Occupancy {
    /// The used bytes are not those of the memory outside of blocks.
    fn from(memory: Memory) -> Self {
        Self {
            reserved: memory.reserved,
            used: 0,
            pending: memory.pending,
            free: memory.free,
        }
    }
}

/// An event of a pool, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct HistoryEntry {
    /// On the device's clock; never earlier than that of the entry before.
    pub time: Duration,
    /// The event.
    pub event: HistoryEvent,
    /// The state of the memory after the event. A block that is freed is pending or free only in the entries that
    /// follow.
    pub occupancy: Occupancy,
}

/// An event of a pool.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// A block was granted.
    Allocated {
        /// The first address.
        address: DeviceAddress,
        /// The size in bytes.
        size: u64,
        /// The stream in whose order the block is used.
        stream: StreamId,
        /// Where it was requested, and its tag.
        origin: BlockOrigin,
    },
    /// A block was freed.
    Freed {
        /// The [`number`](BlockOrigin::number) of the allocation.
        number: u64,
        /// The first address.
        address: DeviceAddress,
        /// The size in bytes.
        size: u64,
        /// Its own stream: the one that it was allocated on, or moved to last.
        stream: StreamId,
        /// Further streams that it was used on, in the order of their first use.
        further: Vec<StreamId>,
        /// Where it was deallocated. A drop does not know its caller.
        site: Option<Site>,
    },
    /// Memory was taken from the device: a segment, or chunks that were mapped next to each other.
    Grown {
        /// The first address.
        address: DeviceAddress,
        /// The size in bytes.
        bytes: u64,
    },
    /// Free memory was mapped elsewhere.
    Remapped {
        /// The first address before.
        from: DeviceAddress,
        /// The first address after.
        to: DeviceAddress,
        /// The size in bytes.
        bytes: u64,
    },
    /// Free memory was released to the device: by a trim, or because it could not be mapped elsewhere.
    Released {
        /// The first address before.
        address: DeviceAddress,
        /// The size in bytes.
        bytes: u64,
    },
    /// Streams turned out to be further, which may have freed memory.
    Reaped {
        /// The number of streams.
        streams: usize,
    },
    /// A stream was made to wait on the device for another's memory.
    DeviceWait {
        /// The stream that waits.
        stream: StreamId,
        /// The stream that it waits for.
        donor: StreamId,
    },
    /// Work with a [name](weirpool::Stream::task) was submitted.
    Submitted {
        /// The stream.
        stream: StreamId,
        /// The name of the work.
        name: Cow<'static, str>,
        /// Where it was submitted.
        site: Site,
    },
    /// A request left the queue.
    Waited {
        /// The stream of the block; `None` for a reservation.
        stream: Option<StreamId>,
        /// The bytes that were requested.
        requested: u64,
        /// The tag that it is charged to.
        tag: Option<Tag>,
        /// How long it waited.
        waited: Duration,
        /// How it left.
        outcome: WaitOutcome,
    },
    /// A request failed because memory was short, or timed out.
    OutOfMemory {
        /// The stream of the block; `None` for a reservation.
        stream: Option<StreamId>,
        /// The request, and the state of the memory.
        shortfall: Shortfall,
    },
}

debug_in_units!(enum HistoryEvent { Allocated { address, size as bytes, stream, origin }, Freed { number, address, size as bytes, stream, further, site }, Grown { address, bytes as bytes }, Remapped { from, to, bytes as bytes }, Released { address, bytes as bytes }, Reaped { streams }, DeviceWait { stream, donor }, Submitted { stream, name, site }, Waited { stream, requested as bytes, tag, waited, outcome }, OutOfMemory { stream, shortfall } });

/// `      12.345 ms  allocated 1.0 MiB at 0x200000 on S1 (lane) at src/main.rs:12:34`
impl fmt::Display for HistoryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &StreamNames::new())
    }
}

impl fmt::Display for HistoryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &StreamNames::new())
    }
}

impl HistoryEntry {
    /// Writes the entry as text, with the names of streams that have one.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, names: &StreamNames) -> fmt::Result {
        write!(f, "{:>17}  ", Milliseconds(self.time))?;
        self.event.write(f, names)
    }
}

impl HistoryEvent {
    fn write(&self, f: &mut fmt::Formatter<'_>, names: &StreamNames) -> fmt::Result {
        let label = |stream: &StreamId| StreamLabel::new(*stream, names);
        match self {
            Self::Allocated {
                address,
                size,
                stream,
                origin,
            } => {
                let (size, stream) = (Bytes(*size), label(stream));
                write!(f, "allocated {size} at {address:#x} on {stream}")?;
                write!(f, " ({}", origin.source.name())?;
                f.write_str(if origin.waited { ", waited)" } else { ")" })?;
                if let Some(tag) = origin.tag {
                    write!(f, " for {tag}")?;
                }
                write!(f, " at {}", origin.site)
            }
            Self::Freed {
                address,
                size,
                stream,
                site,
                ..
            } => {
                let (size, stream) = (Bytes(*size), label(stream));
                write!(f, "freed {size} at {address:#x} of {stream}")?;
                match site {
                    Some(site) => write!(f, " at {site}"),
                    None => Ok(()),
                }
            }
            Self::Grown { address, bytes } => {
                write!(f, "grown by {} at {address:#x}", Bytes(*bytes))
            }
            Self::Remapped { from, to, bytes } => {
                write!(f, "remapped {} from {from:#x} to {to:#x}", Bytes(*bytes))
            }
            Self::Released { address, bytes } => {
                write!(f, "released {} at {address:#x}", Bytes(*bytes))
            }
            Self::Reaped { streams } => {
                write!(f, "reaped {}", Counted(*streams as u64, "stream"))
            }
            Self::DeviceWait { stream, donor } => {
                let (stream, donor) = (label(stream), label(donor));
                write!(f, "{stream} waits on the device for {donor}")
            }
            Self::Submitted { stream, name, site } => {
                write!(f, "submitted {name} to {} at {site}", label(stream))
            }
            Self::Waited {
                stream,
                requested,
                waited,
                outcome,
                ..
            } => {
                write!(f, "waited {waited:?} for {}", Bytes(*requested))?;
                write_purpose(f, stream.as_ref().map(label))?;
                write!(f, ", {}", outcome.name())
            }
            Self::OutOfMemory { stream, shortfall } => {
                f.write_str("out of memory")?;
                write_purpose(f, stream.as_ref().map(label))?;
                write!(f, ": {shortfall}")
            }
        }
    }
}

/// ` on S1`, or ` to reserve`
fn write_purpose(f: &mut fmt::Formatter<'_>, stream: Option<StreamLabel<'_>>) -> fmt::Result {
    match stream {
        Some(stream) => write!(f, " on {stream}"),
        None => f.write_str(" to reserve"),
    }
}
