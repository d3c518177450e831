//! An operation: a piece of simulated device work, as the code that submits it describes it.
//!
//! This module knows neither streams nor time; the schedule decides when the operation runs.

use super::memory::Memory;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::time::Duration;
use weirpool_device::DeviceAddress;
use weirpool_device::plain::Arc;

/// The function that an operation runs when it completes.
pub(super) enum Body {
    Once(Box<dyn FnOnce(&mut Memory) + Send>),
    /// For an operation that is captured: it runs at each launch.
    Each(EachBody),
}

/// The body of an operation that runs any number of times.
type EachBody = Arc<dyn Fn(&mut Memory) + Send + Sync>;

/// A captured operation, which runs at each launch of its graph.
#[derive(Clone)]
pub(super) struct Repeatable {
    duration: Duration,
    behind: Option<Duration>,
    body: Option<EachBody>,
    accesses: Vec<Access>,
    name: Option<Cow<'static, str>>,
    place: &'static Location<'static>,
    is_copier: bool,
}

impl Repeatable {
    /// Returns the operation of one launch.
    pub(super) fn operation(&self) -> Operation {
        let Self {
            duration,
            behind,
            body,
            accesses,
            name,
            place,
            is_copier,
        } = self.clone();
        Operation {
            duration,
            behind,
            body: body.map(Body::Each),
            accesses,
            name,
            place,
            submitted: None,
            is_copier,
        }
    }
}

impl Body {
    pub(super) fn run(self, memory: &mut Memory) {
        match self {
            Self::Once(body) => body(memory),
            Self::Each(body) => body(memory),
        }
    }
}

/// Whether an access reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// The bytes are only read.
    Read,
    /// The bytes may change.
    Write,
}

/// A range of addresses that an operation declares to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Whether it is read or written.
    pub kind: AccessKind,
    /// The first address.
    pub address: DeviceAddress,
    /// The number of bytes.
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
    submitted: Option<&'static Location<'static>>,
    /// It is a copy of the driver's, which needs no access: it is staged through the host.
    pub(super) is_copier: bool,
}

impl Operation {
    /// Creates work that keeps its stream, and one of the device's places, busy for `duration`. With [`Duration::MAX`]
    /// it never ends.
    #[track_caller]
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            behind: None,
            body: None,
            accesses: Vec::new(),
            name: None,
            place: Location::caller(),
            submitted: None,
            is_copier: false,
        }
    }

    /// Sets the location in the source where the operation counts as created.
    pub(super) fn at(mut self, place: &'static Location<'static>) -> Self {
        self.place = place;
        self
    }

    /// Places the operation behind device work that was submitted earlier and is not simulated piece by piece. The
    /// operation starts no earlier than `behind` after its submission, plus all the stall that the stream has
    /// accumulated so far (a stall moves everything behind it).
    pub fn behind(mut self, behind: Duration) -> Self {
        self.behind = Some(behind);
        self
    }

    /// Runs `body` when the duration of the operation is over. The operation is complete only after that.
    ///
    /// The body runs on whichever thread moves the device's time, outside the device's lock. It must not move that time
    /// itself, and should make no calls of the device, as a kernel makes none. A body that panics breaks the device;
    /// the next [`submit`](super::SimStream::submit), `advance` or `block_on` resumes the panic.
    pub fn run(mut self, body: impl FnOnce(&mut Memory) + Send + 'static) -> Self {
        self.body = Some(Body::Once(Box::new(body)));
        self
    }

    /// Runs `body` as [`run`](Self::run) does, as often as the operation runs. An operation that is
    /// [captured](super::SimStream::begin_capture) runs at each launch of its graph.
    pub fn run_each(mut self, body: impl Fn(&mut Memory) + Send + Sync + 'static) -> Self {
        self.body = Some(Body::Each(Arc::new(body)));
        self
    }

    /// Returns the operation as one that can run any number of times, unless its body runs only once.
    pub(super) fn repeatable(self) -> Option<Repeatable> {
        let body = match self.body {
            None => None,
            Some(Body::Each(body)) => Some(body),
            Some(Body::Once(_)) => return None,
        };
        Some(Repeatable {
            duration: self.duration,
            behind: self.behind,
            body,
            accesses: self.accesses,
            name: self.name,
            place: self.place,
            is_copier: self.is_copier,
        })
    }

    /// Takes the accesses of an operation that has run.
    pub(super) fn take_accesses(&mut self) -> Vec<Access> {
        std::mem::take(&mut self.accesses)
    }

    /// Declares that the operation reads `bytes` bytes that begin at `address`.
    pub fn reads(self, address: impl Into<DeviceAddress>, bytes: u64) -> Self {
        self.touches(AccessKind::Read, address.into(), bytes)
    }

    /// Declares that the operation writes `bytes` bytes that begin at `address`.
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

    /// Names the operation in reports.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Names the operation after the task that it was submitted for, if that has a name, and notes where.
    pub(super) fn of_task(
        mut self,
        task: Option<Cow<'static, str>>,
        submitted: &'static Location<'static>,
    ) -> Self {
        self.name = match (task, self.name.take()) {
            (Some(task), Some(name)) => Some(format!("{task}: {name}").into()),
            (task, name) => task.or(name),
        };
        self.submitted = Some(submitted);
        self
    }

    /// Returns the name, if one was given.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the ranges that the operation declares to use, in the order of declaration.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// Returns the location in the source where the operation was created.
    pub fn place(&self) -> &'static Location<'static> {
        self.place
    }

    /// Returns the location of the `submit` of a pool's stream that it was submitted in.
    pub(super) fn submitted(&self) -> Option<&'static Location<'static>> {
        self.submitted
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
