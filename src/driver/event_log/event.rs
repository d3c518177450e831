//! What is kept of what happened.

use crate::device::DeviceAddress;
use crate::driver::Source;
use crate::error::Shortfall;
use crate::id::StreamId;
use crate::measure::{Tag, WaitOutcome};
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

/// A place in the user's source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Site {
    /// As the compiler was given it.
    pub file: Cow<'static, str>,
    /// From 1 upwards.
    pub line: u32,
    /// From 1 upwards.
    pub column: u32,
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Self {
        Self {
            file: Cow::Borrowed(location.file()),
            line: location.line(),
            column: location.column(),
        }
    }
}

/// `src/main.rs:12:34`
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Whence a block is: what is known of its allocation, where a pool keeps a
/// [history](crate::PoolBuilder::history).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BlockOrigin {
    /// Which allocation of the pool it was, from 1 upwards.
    pub number: u64,
    /// Where it was asked for.
    pub site: Site,
    /// When it was granted, on the device's clock.
    pub time: Duration,
    /// The bytes that were asked for.
    pub requested: u64,
    /// For whom.
    pub tag: Option<Tag>,
    /// Where the memory came from.
    pub source: Source,
    /// Whether it was waited for in the queue.
    pub waited: bool,
}

/// How a pool's memory stood at a moment, in bytes. What is missing to `reserved` is kept by lanes, set aside, or
/// on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Occupancy {
    /// Held from the device.
    pub reserved: u64,
    /// In blocks that somebody owns.
    pub used: u64,
    /// Given back to the heap, but behind work that is not known to be complete.
    pub pending: u64,
    /// Given back to the heap, and complete.
    pub free: u64,
}

/// Whence a reservation is: what is known of it where a pool keeps a [history](crate::PoolBuilder::history).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReservationOrigin {
    /// Where it was asked for, or [split](crate::Reservation::split) off.
    pub site: Site,
    /// When it was granted, or split off, on the device's clock.
    pub time: Duration,
    /// For whom.
    pub tag: Option<Tag>,
}

/// Something that happened in a pool, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct HistoryEntry {
    /// On the device's clock; never earlier than that of the entry before.
    pub time: Duration,
    /// What happened.
    pub event: HistoryEvent,
    /// How memory stood then: after what happened, but that a block which is freed is pending or free only
    /// in the entries that follow.
    pub occupancy: Occupancy,
}

/// What happens in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// A block was granted.
    Allocated {
        /// Its first address.
        address: DeviceAddress,
        /// Its bytes.
        size: u64,
        /// For use in the order of which stream.
        stream: StreamId,
        /// Where, and for whom.
        origin: BlockOrigin,
    },
    /// A block was given back.
    Freed {
        /// Which allocation's it was: the [`number`](BlockOrigin::number) of its origin.
        number: u64,
        /// Its first address.
        address: DeviceAddress,
        /// Its bytes.
        size: u64,
        /// The stream that it was allocated on.
        stream: StreamId,
        /// Further streams that it was used on, in the order of their first use.
        further: Vec<StreamId>,
        /// Where, if it was deallocated. A drop does not know its caller.
        site: Option<Site>,
    },
    /// Memory was taken from the device: a segment, or handles that were mapped next to each other.
    Grown {
        /// Where.
        address: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// Free memory was mapped elsewhere.
    Remapped {
        /// From where.
        from: DeviceAddress,
        /// To where.
        to: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// Free memory was given back to the device: by a trim, or since it could not be mapped elsewhere.
    Released {
        /// From where.
        address: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// Streams were seen to have come further, which may have made memory free.
    Reaped {
        /// How many.
        streams: usize,
    },
    /// A stream was made to wait on the device for another's memory.
    DeviceWait {
        /// Which waits.
        stream: StreamId,
        /// For which.
        donor: StreamId,
    },
    /// A request left the queue.
    Waited {
        /// For use on which stream; none, if it was to reserve.
        stream: Option<StreamId>,
        /// The bytes that were asked for.
        requested: u64,
        /// For whom.
        tag: Option<Tag>,
        /// How long it was there.
        waited: Duration,
        /// How it left.
        outcome: WaitOutcome,
    },
    /// A request failed for want of memory, or its time was over.
    OutOfMemory {
        /// For use on which stream; none, if it was to reserve.
        stream: Option<StreamId>,
        /// What was asked for, and how memory stood.
        shortfall: Shortfall,
    },
}

/// `      12.345 ms  allocated    1048576 bytes at 0x200000 on S1 (lane) at src/main.rs:12:34`
impl fmt::Display for HistoryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.time.as_nanos() as f64 / 1e6;
        write!(f, "{milliseconds:>14.3} ms  {}", self.event)
    }
}

impl fmt::Display for HistoryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocated {
                address,
                size,
                stream,
                origin,
            } => {
                write!(f, "allocated {size} bytes at {address:#x} on {stream}")?;
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
                write!(f, "freed {size} bytes at {address:#x} of {stream}")?;
                match site {
                    Some(site) => write!(f, " at {site}"),
                    None => Ok(()),
                }
            }
            Self::Grown { address, bytes } => write!(f, "grown by {bytes} bytes at {address:#x}"),
            Self::Remapped { from, to, bytes } => {
                write!(f, "remapped {bytes} bytes from {from:#x} to {to:#x}")
            }
            Self::Released { address, bytes } => {
                write!(f, "released {bytes} bytes at {address:#x}")
            }
            Self::Reaped { streams } => write!(f, "reaped {streams} streams"),
            Self::DeviceWait { stream, donor } => {
                write!(f, "{stream} waits on the device for {donor}")
            }
            Self::Waited {
                stream,
                requested,
                waited,
                outcome,
                ..
            } => {
                let outcome = outcome.name();
                let purpose = Purpose(*stream);
                write!(
                    f,
                    "waited {waited:?} for {requested} bytes {purpose}, {outcome}"
                )
            }
            Self::OutOfMemory { stream, shortfall } => {
                write!(f, "out of memory {}: {shortfall}", Purpose(*stream))
            }
        }
    }
}

/// `on S1`, `to reserve`
struct Purpose(Option<StreamId>);

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(stream) => write!(f, "on {stream}"),
            None => f.write_str("to reserve"),
        }
    }
}
