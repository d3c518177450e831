//! An operation: a piece of simulated device work, as its submitter describes it.
//!
//! Knows nothing of streams or time; the schedule decides when it runs.

use super::memory::Memory;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::time::Duration;
use weirpool_device::DeviceAddress;

/// What an operation does when it completes.
pub(super) type Body = Box<dyn FnOnce(&mut Memory) + Send>;

/// Whether an access reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// The bytes are only looked at.
    Read,
    /// The bytes may change.
    Write,
}

/// A range of addresses that an operation says it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Whether it reads or writes.
    pub kind: AccessKind,
    /// The first address.
    pub address: DeviceAddress,
    /// How many bytes.
    pub bytes: u64,
}

/// A piece of device work, submitted with [`SimStream::submit`](super::SimStream::submit).
#[must_use = "an operation runs only once it is submitted to a stream"]
pub struct Operation {
    pub(super) duration: Duration,
    pub(super) behind: Option<Duration>,
    pub(super) body: Option<Body>,
    accesses: Vec<Access>,
    pub(super) name: Option<Cow<'static, str>>,
    place: &'static Location<'static>,
}

impl Operation {
    /// Work that keeps its stream, and one of the device's places, busy for `duration`.
    /// [`Duration::MAX`] never ends.
    #[track_caller]
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            behind: None,
            body: None,
            accesses: Vec::new(),
            name: None,
            place: Location::caller(),
        }
    }

    /// As if it had been made there.
    pub(super) fn at(mut self, place: &'static Location<'static>) -> Self {
        self.place = place;
        self
    }

    /// Stands behind device work submitted earlier, that is not simulated one by one: the operation
    /// starts no earlier than `behind` after its submission, plus all the stall that the stream has
    /// gathered so far (a stall moves everything behind it).
    pub fn behind(mut self, behind: Duration) -> Self {
        self.behind = Some(behind);
        self
    }

    /// Runs `body` when the operation's time is over; only then is it complete.
    ///
    /// The body runs on whichever thread moves the device's time, outside the device's lock. It must
    /// not move that time itself, and should leave the device's calls alone, as a kernel would.
    /// A body that panics breaks the device; the panic goes on in the next
    /// [`submit`](super::SimStream::submit), `advance` or `block_on`.
    pub fn run(mut self, body: impl FnOnce(&mut Memory) + Send + 'static) -> Self {
        self.body = Some(Box::new(body));
        self
    }

    /// Says that the operation reads `bytes` bytes from `address` on.
    pub fn reads(self, address: impl Into<DeviceAddress>, bytes: u64) -> Self {
        self.touches(AccessKind::Read, address.into(), bytes)
    }

    /// Says that the operation writes `bytes` bytes from `address` on.
    pub fn writes(self, address: impl Into<DeviceAddress>, bytes: u64) -> Self {
        self.touches(AccessKind::Write, address.into(), bytes)
    }

    fn touches(mut self, kind: AccessKind, address: DeviceAddress, bytes: u64) -> Self {
        self.accesses.push(Access {
            kind,
            address,
            bytes,
        });
        self
    }

    /// Names the operation, for reports.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The name, where one was given.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The ranges that the operation says it touches, in the order they were named.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// Where in the source the operation was made.
    pub fn place(&self) -> &'static Location<'static> {
        self.place
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("operation");
        write!(f, "{name} ({})", self.place)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.name)
            .field("duration", &self.duration)
            .field("behind", &self.behind)
            .field("accesses", &self.accesses)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
