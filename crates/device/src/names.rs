//! The backend's names of streams, events and pieces of memory.

use std::fmt;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

handle!(
    /// Which device, among all that this process made: never reused.
    DeviceId);
handle!(
    /// The backend's own name of a stream (a driver handle, an index). Backends may reuse it after
    /// [`Device::destroy_stream`], which is why the pool keys nothing by it (I7).
    RawStream);
handle!(
    /// The backend's own name of an event.
    RawEvent);
handle!(
    /// The backend's own name of a piece of physical memory.
    Chunk);
handle!(
    /// A watch set by [`Device::watch`].
    WatchId);
handle!(
    /// An alarm set by [`Device::set_alarm`].
    AlarmId);

impl RawStream {
    /// The host, as a stream of execution: where it shares memory with the device, and where reports name
    /// who used it. No backend gives a stream of its own this name.
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
