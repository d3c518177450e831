//! Streams as their users hold them: a handle with a share in the stream's ownership.
//!
//! The schedule decides when an item runs.

use super::SimDevice;
use super::call::Call;
use super::flag::Flag;
use super::label::StreamLabel;
use super::operation::Operation;
use super::schedule::Item;
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use weirpool_device::plain::{Arc, Weak};
use weirpool_device::{Device, DeviceError, DeviceId, RawStream, StreamProperties};

/// A stream of a simulated device: an in-order queue of operations, records, waits and signals.
///
/// Clones are the same stream, which is destroyed when its last handle is dropped. Submitted work still runs to its
/// end. A stream from [`Device::create_stream`](weirpool_device::Device::create_stream) lives until it has no handles
/// and is also destroyed through that trait.
#[derive(Clone)]
pub struct SimStream {
    owner: Arc<Owner>,
    /// The task that operations are submitted for, if it is one.
    task: Option<Task>,
}

/// Work that a pool's stream submits.
#[derive(Clone)]
struct Task {
    name: Option<Cow<'static, str>>,
    submitted: &'static Location<'static>,
}

/// The stream of a registration: kept by it, or by its handles for as long as the registration lives.
enum Native {
    Kept(SimStream),
    Borrowed(Weak<Owner>),
}

/// The share of a stream's handles in its ownership.
struct Owner {
    device: SimDevice,
    raw: RawStream,
    /// Whether a method of [`SimDevice`] created the stream, rather than the `Device` trait.
    is_maker: bool,
}

impl SimDevice {
    /// Creates a stream that lives as long as its handles.
    ///
    /// # Panics
    /// Panics if the device is broken, or if a scripted fault fails the call. The trait's
    /// [`Device::create_stream`] returns the error instead.
    pub fn create_stream(&self) -> SimStream {
        make_stream(self, None)
    }

    /// Creates a stream with a name, which reports use.
    ///
    /// ```
    /// use weirpool_sim::SimDevice;
    ///
    /// let stream = SimDevice::new().create_stream_named("decode");
    /// assert_eq!(stream.name().as_deref(), Some("decode"));
    /// assert_eq!(stream.label().to_string(), "stream \"decode\"");
    /// ```
    ///
    /// # Panics
    /// Panics as [`create_stream`](Self::create_stream) does.
    pub fn create_stream_named(&self, name: impl Into<Arc<str>>) -> SimStream {
        make_stream(self, Some(name.into()))
    }

    /// Returns a handle of the stream with that name, even if the `Device` trait created it; `None` if there is no such
    /// stream, if it was destroyed, or if it belongs to another device. The handle keeps the stream, like any other.
    pub fn stream(&self, raw: RawStream) -> Option<SimStream> {
        let owner = self.engine.call(|state| {
            if !state.schedule.is_open_on(self.number, raw) {
                return None;
            }
            let owner = state.owners.get(&raw).and_then(Weak::upgrade);
            Some(owner.ok_or_else(|| state.schedule.share(raw)))
        })?;
        match owner {
            Ok(owner) => owner.downcast().ok().map(SimStream::of),
            Err(()) => Some(handle(self, raw, false)),
        }
    }

    /// Returns the object of a stream that the contract created, for [`SimStream::of_native`].
    pub(super) fn native_of(&self, raw: RawStream) -> Option<Arc<dyn Any + Send + Sync>> {
        let is_contracts = self.engine.peek(|state| state.schedule.is_contracts(raw));
        let stream = is_contracts.then(|| self.stream(raw))??;
        Some(Arc::new(Native::Kept(stream)))
    }

    /// Creates a stream with one owner: its creator.
    pub(super) fn create_raw_stream(
        &self,
        name: Option<Arc<str>>,
    ) -> Result<RawStream, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::CreateStream, 0)?;
            let raw = state.schedule.create_stream(self.number, name);
            let label = state.schedule.label(raw).cloned();
            if let (Some(judge), Some(label)) = (state.judge(), label) {
                judge.order.open(raw, label);
            }
            Ok(raw)
        })
    }
}

/// Creates the first handle of a stream that it already has a share of.
fn handle(device: &SimDevice, raw: RawStream, is_maker: bool) -> SimStream {
    let owner = Arc::new(Owner {
        device: device.clone(),
        raw,
        is_maker,
    });
    let shared: Arc<dyn Any + Send + Sync> = owner.clone();
    device
        .engine
        .call(|state| state.owners.insert(raw, Arc::downgrade(&shared)));
    SimStream::of(owner)
}

fn make_stream(device: &SimDevice, name: Option<Arc<str>>) -> SimStream {
    match device.create_raw_stream(name) {
        Ok(raw) => handle(device, raw, true),
        Err(error) => panic!("{error}"),
    }
}

impl SimStream {
    fn of(owner: Arc<Owner>) -> Self {
        Self { owner, task: None }
    }

    /// Returns an object from which [`of_native`](Self::of_native) makes a handle of the stream, while any handle
    /// lives.
    #[doc(hidden)]
    pub fn native(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Native::Borrowed(Arc::downgrade(&self.owner)))
    }

    /// Returns a handle of the stream behind such an object. Reports name the operations that are submitted through it
    /// after `task`, if that is some name, and the caller as the place of their submission.
    #[doc(hidden)]
    #[track_caller]
    pub fn of_native(
        native: &(dyn Any + Send + Sync),
        task: Option<Cow<'static, str>>,
    ) -> Option<Self> {
        let owner = match native.downcast_ref()? {
            Native::Kept(stream) => stream.owner.clone(),
            Native::Borrowed(owner) => owner.upgrade()?,
        };
        let task = Task {
            name: task,
            submitted: Location::caller(),
        };
        Some(Self {
            owner,
            task: Some(task),
        })
    }

    /// Returns the device that the stream belongs to.
    pub fn device(&self) -> &SimDevice {
        &self.owner.device
    }

    /// Returns the id of the device that the stream belongs to.
    pub fn device_id(&self) -> DeviceId {
        self.device().id()
    }

    /// Returns the device's name of the stream, which [`Device`](weirpool_device::Device)'s calls take.
    pub fn raw(&self) -> RawStream {
        self.owner.raw
    }

    /// Returns the name that the stream was created with, if it was given one.
    pub fn name(&self) -> Option<Arc<str>> {
        self.label().name().map(Into::into)
    }

    /// Returns what a pool has to know of the stream.
    pub fn properties(&self) -> StreamProperties {
        StreamProperties::new(self.device_id(), self.raw())
    }

    /// Returns the label by which reports name the stream.
    pub fn label(&self) -> StreamLabel {
        let raw = self.raw();
        let engine = &self.device().engine;
        let label = engine.peek(|state| state.schedule.label(raw).cloned());
        label.expect("the handle keeps the stream")
    }

    /// Returns an owner that keeps the stream usable while it is held.
    pub fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.owner.clone()
    }

    /// Submits an operation behind everything submitted so far. An operation of zero duration that nothing delays is
    /// complete when this returns. A broken device drops the operation.
    ///
    /// # Panics
    /// Resumes the panic of a body, if one is pending. Panics with a violation that the
    /// [ordering checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/) found, after the submission.
    #[track_caller]
    pub fn submit(&self, operation: Operation) {
        let operation = match &self.task {
            Some(Task { name, submitted }) => operation.of_task(name.clone(), submitted),
            None => operation,
        };
        self.push(Item::Operation(operation));
        self.device().engine.pass_panic_on();
    }

    /// Sets the flag to `value` when everything submitted before is complete.
    ///
    /// # Panics
    /// Panics if the flag belongs to another device.
    pub fn signal(&self, flag: &Flag, value: u64) {
        self.push(Item::Signal(flag.id_on(self.device()), value));
    }

    /// Delays items that are submitted later until the flag is at least `at_least`. This is a wait on the device: it
    /// does not block the host, and counts as [stall](super::Counters::stall).
    ///
    /// # Panics
    /// Panics if the flag belongs to another device.
    pub fn wait_until(&self, flag: &Flag, at_least: u64) {
        self.push(Item::WaitUntil(flag.id_on(self.device()), at_least));
    }

    fn push(&self, item: Item) {
        let raw = self.raw();
        // A broken device runs nothing. The item is dropped outside the lock: dropping it may call the device.
        let _dropped = self.device().engine.call(|state| {
            if state.broken().is_some() {
                return Some(item);
            }
            if state.recordings.of(raw).is_none() {
                state.submit(raw, item);
                return None;
            }
            match item {
                Item::Operation(operation) => state.recordings.add(raw, operation),
                _ => {
                    let flaw = "a signal or a wait for a flag was captured; use events";
                    state.recordings.invalidate(raw, flaw);
                }
            }
            None
        });
    }

    /// Returns how many items (operations, records, waits, signals) are not complete. From then on the host knows that
    /// the others are.
    pub fn backlog(&self) -> u64 {
        self.observe_progress().0
    }

    /// Returns how many items are complete. From then on the host knows that they are.
    pub fn completed(&self) -> u64 {
        self.observe_progress().1
    }

    fn observe_progress(&self) -> (u64, u64) {
        let raw = self.raw();
        self.device().engine.observe(|state| {
            let progress = state.schedule.progress(raw);
            if let Some(judge) = state.judge() {
                judge.order.observe_progress(raw, progress.1);
            }
            progress
        })
    }

    fn progress(&self) -> (u64, u64) {
        let raw = self.raw();
        let engine = &self.device().engine;
        engine.peek(|state| state.schedule.progress(raw))
    }
}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (backlog, completed) = self.progress();
        f.debug_struct("SimStream")
            .field("label", &format_args!("{}", self.label()))
            .field("raw", &self.raw())
            .field("backlog", &backlog)
            .field("completed", &completed)
            .finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let (raw, is_maker) = (self.raw, self.is_maker);
        self.device.engine.call(|state| {
            // Another handle may have been created since the last one of these was dropped.
            if (state.owners.get(&raw)).is_some_and(|owner| owner.strong_count() == 0) {
                state.owners.remove(&raw);
            }
            if is_maker {
                // A broken device refuses the call, but its streams end all the same.
                let _refused = state.enter(Call::DestroyStream, 0);
            }
            state.schedule.release(raw);
        });
    }
}
