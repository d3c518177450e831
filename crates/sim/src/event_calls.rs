//! Device calls on streams and events.
//!
//! Each call is counted, its cost added, and a scripted fault may fail it; then it checks its arguments and changes
//! the schedule. No call takes simulated time.

use super::SimDevice;
use super::call::Call;
use super::events::Recorded;
use super::fault::Fault;
use super::operation::Operation;
use super::schedule::{Item, Point};
use super::state::State;
use std::task::Waker;
use std::time::Duration;
use weirpool_device::{DeviceError, DeviceErrorKind, RawEvent, RawStream, WatchId};

/// The calls of [`Device`](weirpool_device::Device) on streams and events.
///
/// The contract makes those unsafe that name streams and events, because a driver may be unable to detect an invalid
/// name. The simulated device detects it, so that these are safe.
impl SimDevice {
    /// Destroys a stream.
    ///
    /// # Errors
    /// Returns the errors of [`Device::destroy_stream`](weirpool_device::Device::destroy_stream), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a stream that the device does not know.
    pub fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::DestroyStream, 0)?;
            self.on(stream).check(state, Call::DestroyStream)?;
            if state.schedule.destroy_stream(stream) {
                return Ok(());
            }
            let label = state.schedule.label(stream).map(ToString::to_string);
            let label = label.unwrap_or_default();
            let reason = format!("{label} belongs to its handles: drop them instead");
            Err(invalid(Call::DestroyStream, reason))
        })
    }

    /// Destroys an event.
    ///
    /// # Errors
    /// Returns the errors of [`Device::destroy_event`](weirpool_device::Device::destroy_event), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for an event that the device does not know.
    pub fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::DestroyEvent, 0)?;
            last_record(state, Call::DestroyEvent, event)?;
            state.events.destroy(event);
            state.recordings.forget(event);
            if let Some(judge) = state.judge() {
                judge.order.forget(event);
            }
            Ok(())
        })
    }

    /// Records an event behind everything submitted to a stream so far. If the stream is being captured, the record is
    /// part of the capture: the event can only be waited for, by streams that join the capture.
    ///
    /// # Errors
    /// Returns the errors of [`Device::record`](weirpool_device::Device::record), except for captured streams, and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a stream or event that the device does not know.
    pub fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        self.on(stream).record(event, true)
    }

    /// Returns whether the work behind an event's last record is complete.
    ///
    /// # Errors
    /// Returns the errors of [`Device::query`](weirpool_device::Device::query), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for an event that the device does not know.
    pub fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::Query, 0)?;
            if state.recordings.has_captured(event) {
                let reason =
                    "the event was recorded in a capture: it never completes; record it again";
                return Err(unsupported(Call::Query, reason));
            }
            let is_complete = match last_record(state, Call::Query, event)? {
                None => true,
                Some(Recorded {
                    fails: Some(kind), ..
                }) => {
                    let reason = "a scripted fault";
                    return Err(DeviceError::new(Call::Query.name(), kind, reason));
                }
                Some(Recorded { point, .. }) => state.schedule.is_complete(point),
            };
            if let Some(judge) = state.judge().filter(|_| is_complete) {
                judge.order.observe(event);
            }
            if is_complete {
                state.synchronize_pools();
            }
            Ok(is_complete)
        })
    }

    /// Makes later work of a stream start only after an event's last record so far. If that record was captured, the
    /// stream joins the capture.
    ///
    /// # Errors
    /// Returns the errors of [`Device::wait`](weirpool_device::Device::wait), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a stream or event that the device does not know. A
    /// wait of a captured stream for an event from outside fails, and invalidates the capture.
    pub fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        let supported = self.engine.settings.device_side_waits;
        self.engine.call(|state| {
            state.enter(Call::Wait, 0)?;
            if !supported {
                return Err(unsupported(
                    Call::Wait,
                    "this device has no device-side waits; await the event instead",
                ));
            }
            self.on(stream).check(state, Call::Wait)?;
            if state.recordings.has_captured(event) {
                let joined = state.recordings.wait(stream, event);
                return joined.map_err(|reason| unsupported(Call::Wait, reason));
            }
            if state.recordings.of(stream).is_some() {
                let reason =
                    "a captured stream was made to wait for an event from outside the capture";
                state.recordings.invalidate(stream, reason);
                return Err(unsupported(Call::Wait, reason));
            }
            // An event that was never recorded counts as complete: nothing to wait for.
            if let Some(Recorded { point, .. }) = last_record(state, Call::Wait, event)? {
                state.counters.device_waits += 1;
                state.submit(stream, Item::Wait(point));
                if let Some(judge) = state.judge() {
                    judge.order.wait(stream, event);
                }
            }
            Ok(())
        })
    }

    /// Calls `waker` once when an event's last record so far completes or fails.
    pub fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        let waker = waker.clone();
        self.engine.call(|state| {
            state.counters.watches += 1;
            let id = WatchId(state.schedule.next_arrival());
            // An event that is unknown or fails, or a broken device, never calls: the waker is called now, and its
            // task finds the error with a query.
            let recorded = state.events.last(event).flatten();
            let point = recorded
                .filter(|recorded| recorded.fails.is_none())
                .map(|recorded| recorded.point);
            let is_complete = point.map(|point| state.schedule.is_complete(point));
            match (state.judge(), is_complete) {
                (Some(judge), Some(true)) => judge.order.observe(event),
                (Some(judge), Some(false)) => judge.order.watch(id, event),
                _ => {}
            }
            state.schedule.watch(id, point, waker);
            id
        })
    }
}

/// The calls of a device on one of its streams.
#[derive(Clone, Copy)]
pub(super) struct OnStream<'a> {
    pub(super) device: &'a SimDevice,
    pub(super) stream: RawStream,
}

impl SimDevice {
    pub(super) fn on(&self, stream: RawStream) -> OnStream<'_> {
        OnStream {
            device: self,
            stream,
        }
    }
}

impl OnStream<'_> {
    /// Fails if the stream is not one of the device.
    pub(super) fn check(self, state: &State, call: Call) -> Result<(), DeviceError> {
        if state.schedule.is_open_on(self.device.number, self.stream) {
            return Ok(());
        }
        let name = self.stream.0;
        Err(invalid(
            call,
            format!("there is no stream {name:#x}; it was destroyed, or belongs to another device"),
        ))
    }

    /// Fails also if the stream is being captured, for calls of a pool: its work on such a stream would run at each launch.
    pub(super) fn check_live(self, state: &State, call: Call) -> Result<(), DeviceError> {
        self.check(state, call)?;
        match state.recordings.of(self.stream) {
            None => Ok(()),
            Some(_) => Err(captured(call)),
        }
    }

    /// Submits an item, which uses this many bytes, unless the stream is being captured.
    pub(super) fn submit(self, call: Call, bytes: u64, item: Item) -> Result<(), DeviceError> {
        // Dropping an item that was refused may call the device, so that is left to this function's end.
        let mut item = Some(item);
        self.device.engine.call(|state| {
            state.enter(call, bytes)?;
            self.check_live(state, call)?;
            item.take().map(|item| state.submit(self.stream, item));
            Ok(())
        })
    }

    /// Records an event, which is part of the capture if the stream is being captured and may be.
    pub(super) fn record(self, event: RawEvent, may_be_captured: bool) -> Result<(), DeviceError> {
        let stream = self.stream;
        self.device.engine.call(|state| {
            let fault = state.enter_with_fault(Call::Record, 0)?;
            self.check(state, Call::Record)?;
            last_record(state, Call::Record, event)?;
            if state.events.device_of(event) != Some(self.device.number) {
                let reason =
                    "the event is one of another device: record one of this device".to_owned();
                return Err(invalid(Call::Record, reason));
            }
            if state.recordings.of(stream).is_some() {
                if !may_be_captured {
                    return Err(captured(Call::Record));
                }
                state.recordings.record(event, stream);
                return Ok(());
            }
            state.recordings.forget(event);
            let point = state.submit(stream, Item::Record);
            let recorded = recorded(state, point, fault);
            state.events.record(event, recorded);
            if let Some(judge) = state.judge() {
                judge.order.record(event, stream);
            }
            Ok(())
        })
    }
}

/// Returns the last record of an event, if there is any.
fn last_record(
    state: &State,
    call: Call,
    event: RawEvent,
) -> Result<Option<Recorded>, DeviceError> {
    let name = event.0;
    let last = state.events.last(event);
    last.ok_or_else(|| {
        invalid(
            call,
            format!("there is no event {name:#x}; it was destroyed, or belongs to another device"),
        )
    })
}

/// Returns the state of an event after a record with which this went wrong.
///
/// An event that is late, or never completes, is recorded behind the point on a stream of its own, so that the recorded
/// stream goes on.
fn recorded(state: &mut State, point: Point, fault: Option<Fault>) -> Recorded {
    let fails = match fault {
        Some(Fault::Reports(kind)) => Some(kind),
        _ => None,
    };
    let behind = match fault {
        Some(Fault::Late(behind)) => Item::Operation(Operation::new(Duration::ZERO).behind(behind)),
        Some(Fault::Never) => Item::WaitUntil(state.schedule.flags.create(None), u64::MAX),
        _ => return Recorded { point, fails },
    };
    let aside = state.schedule.create_stream(0, None);
    state.schedule.submit(aside, behind);
    state.schedule.submit(aside, Item::Wait(point));
    let point = state.schedule.submit(aside, Item::Record);
    state.schedule.release(aside);
    Recorded { point, fails }
}

fn captured(call: Call) -> DeviceError {
    let reason = "the stream is being captured; call again when the capture is over";
    unsupported(call, reason)
}

pub(super) fn unsupported(call: Call, reason: &'static str) -> DeviceError {
    DeviceError::new(call.name(), DeviceErrorKind::Unsupported, reason)
}

pub(super) fn invalid(call: Call, reason: String) -> DeviceError {
    DeviceError::new(call.name(), DeviceErrorKind::InvalidArgument, reason)
}
