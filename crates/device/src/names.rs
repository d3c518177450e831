//! Names of devices, streams, events, chunks, pools, watches and alarms.

use std::fmt;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

name!(
    /// The id of a device, unique among all that this process opened or created. Ids are never reused.
    DeviceId);
name!(
    /// The backend's name of a stream: a driver's handle, or an index. A backend may reuse it after
    /// [`Device::destroy_stream`](crate::Device::destroy_stream). The pool therefore uses its own ids as keys
    /// (invariant `stable-ids`).
    RawStream);
name!(
    /// The backend's name of an event.
    RawEvent);
name!(
    /// The backend's name of a chunk: one physical allocation, as CUDA's "allocation handle".
    Chunk);
name!(
    /// The backend's name of one of the driver's memory pools.
    RawPool);
name!(
    /// A watch set by [`Device::watch`](crate::Device::watch).
    WatchId);
name!(
    /// An alarm set by [`Device::set_alarm`](crate::Device::set_alarm).
    AlarmId);
name!(
    /// A capture of streams into a graph; see [`Captures::capture_of`](crate::Captures::capture_of). Ids are never
    /// reused.
    CaptureId);
name!(
    /// The backend's name of a piece of captured work, within its capture; see
    /// [`Captures::frontier`](crate::Captures::frontier).
    CapturedWork);

impl RawStream {
    /// The host as a stream of execution: for memory that it shares with the device, and as the user of memory in
    /// reports. No backend gives this name to a stream.
    pub const HOST: Self = Self(u64::MAX);
}

/// `stream 0x100000001`, `the host`
impl fmt::Display for RawStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::HOST => write!(f, "the host"),
            Self(name) => write!(f, "stream {name:#x}"),
        }
    }
}
