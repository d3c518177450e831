//! Work of the host in the order of a stream: functions that a device calls, and holds that the host releases.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

/// A range of memory that work of the host uses, for a device that checks the order of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUse {
    /// The first address.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the bytes may change.
    pub is_write: bool,
}

/// A function of the host that a device calls when a stream reaches it. See [`Device::run`](crate::Device::run).
pub struct HostFunction {
    /// The name of the work in reports, if it has one.
    pub name: Option<Cow<'static, str>>,
    /// The memory that the function uses.
    pub uses: Vec<HostUse>,
    /// The location in the source where it was submitted.
    pub location: &'static Location<'static>,
    /// The function. It never panics, and calls neither the device nor a pool.
    pub body: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunction")
            .field("name", &self.name)
            .field("uses", &self.uses)
            .field("location", &self.location)
            .finish_non_exhaustive()
    }
}

/// A stream that is held by the host: its later work waits until the hold is released. Dropping the hold releases it.
/// See [`Device::hold`](crate::Device::hold).
pub trait Hold: fmt::Debug + Send + Sync {
    /// Lets the stream continue. Never waits, never panics. A second call has no effect.
    fn release(&self);
}
