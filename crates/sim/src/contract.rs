//! The device contract, carried out by the simulated device.
//!
//! Each call enters (it is counted, charged, and may be made to fail), checks its arguments, and
//! changes the books. None of them takes simulated time, and none waits: not even
//! [`free`](Device::free), which on CUDA waits for all the device.

use super::SimDevice;
use super::builder::GRANULARITY;
use super::call::Call;
use super::checker::{Checker, Judge};
use super::events::Recorded;
use super::fault::Fault;
use super::memory::{Refusal, Space};
use super::operation::Operation;
use super::schedule::{Item, Point};
use super::state::State;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;
use weirpool_device::plain::Arc;
use weirpool_device::{
    AlarmId, Capabilities, Chunk, Device, DeviceError, DeviceErrorKind, DeviceId, MemoryInfo,
    MemoryKind, RawEvent, RawStream, Referee, Transfer, WatchId,
};

impl SimDevice {
    fn memory_call<R>(
        &self,
        call: Call,
        bytes: impl FnOnce(&Space) -> u64,
        change: impl FnOnce(&mut Space) -> Result<R, Refusal>,
    ) -> Result<R, DeviceError> {
        weirpool_device::assert_unlocked(call.name());
        let supported = !call.needs_virtual_memory() || self.engine.settings.virtual_memory;
        self.engine.call(|state| {
            state.enter(call, bytes(&state.space))?;
            if !supported {
                return Err(unsupported(call, "this device has no virtual memory"));
            }
            change(&mut state.space)
                .map_err(|refusal| DeviceError::new(call.name(), refusal.kind, refusal.reason))
        })
    }

    fn check_kind(&self, call: Call, kind: MemoryKind) -> Result<(), DeviceError> {
        if self.engine.settings.memory_kinds.contains(kind) {
            return Ok(());
        }
        let reason = format!("this device has no {kind}");
        Err(DeviceError::new(
            call.name(),
            DeviceErrorKind::Unsupported,
            reason,
        ))
    }

    /// A memory call for plain memory of a kind.
    fn plain_call<R>(
        &self,
        call: Call,
        kind: MemoryKind,
        bytes: u64,
        change: impl FnOnce(&mut Space) -> Result<R, Refusal>,
    ) -> Result<R, DeviceError> {
        weirpool_device::assert_unlocked(call.name());
        self.engine.call(|state| {
            state.counters.charge_for_locking(kind, bytes);
            state.enter(call, bytes)?;
            self.check_kind(call, kind)?;
            change(&mut state.space)
                .map_err(|refusal| DeviceError::new(call.name(), refusal.kind, refusal.reason))
        })
    }

    /// Before the call that takes memory away: afterwards the addresses may be another's already.
    fn judge_before(&self, judge: impl FnOnce(&mut Judge)) {
        if let Some(present) = self.engine.locked().judge() {
            judge(present);
        }
    }
}

fn unsupported(call: Call, reason: &'static str) -> DeviceError {
    DeviceError::new(call.name(), DeviceErrorKind::Unsupported, reason)
}

fn invalid(call: Call, reason: String) -> DeviceError {
    DeviceError::new(call.name(), DeviceErrorKind::InvalidArgument, reason)
}

pub(super) fn check_stream(
    state: &State,
    call: Call,
    stream: RawStream,
) -> Result<(), DeviceError> {
    if state.schedule.is_open(stream) {
        return Ok(());
    }
    let name = stream.0;
    Err(invalid(call, format!("there is no stream {name:#x}")))
}

/// What was recorded last, if anything was.
fn last_record(
    state: &State,
    call: Call,
    event: RawEvent,
) -> Result<Option<Recorded>, DeviceError> {
    let name = event.0;
    let last = state.events.last(event);
    last.ok_or_else(|| invalid(call, format!("there is no event {name:#x}")))
}

/// What a record leaves, if this goes wrong with it.
///
/// An event that is late, or never comes, is recorded behind the point on a stream of its own that
/// nobody else knows: the stream itself goes on.
fn recorded(state: &mut State, point: Point, fault: Option<Fault>) -> Recorded {
    let behind = match fault {
        Some(Fault::Late(behind)) => Item::Operation(Operation::new(Duration::ZERO).behind(behind)),
        Some(Fault::Never) => Item::WaitUntil(state.schedule.create_flag(), u64::MAX),
        Some(Fault::Reports(kind)) => return Recorded::Failing(kind),
        Some(Fault::Fails(_)) | None => return Recorded::At(point),
    };
    let aside = state.schedule.create_stream();
    state.schedule.submit(aside, behind);
    state.schedule.submit(aside, Item::Wait(point));
    let late = state.schedule.submit(aside, Item::Record);
    state.schedule.destroy_stream(aside);
    Recorded::At(late)
}

// SAFETY: ranges that `Space` hands out are disjoint (it books reserved and plain ones together),
// and a mapping stands until `unmap`. The schedule takes a stream's items in order only; a record
// is complete when all items before it are, which is what `query` answers; a wait holds the items
// after it back until then. The addresses stand for no memory of the host, so that nothing
// here can make host memory unsound.
unsafe impl Device for SimDevice {
    fn id(&self) -> DeviceId {
        self.engine.id
    }

    fn describe(&self) -> String {
        self.description()
    }

    fn capabilities(&self) -> Capabilities {
        let settings = &self.engine.settings;
        Capabilities::plain(GRANULARITY)
            .with_virtual_memory(settings.virtual_memory)
            .with_blocking_memory_calls(settings.blocking_memory_calls)
            .with_device_side_waits(settings.device_side_waits)
            .with_memory_kinds(settings.memory_kinds)
    }

    fn referee(&self) -> Option<Arc<dyn Referee>> {
        let is_on = self.engine.settings.checker != Checker::Off;
        is_on.then(|| Arc::new(self.clone()) as Arc<dyn Referee>)
    }

    fn memory_info(&self, kind: MemoryKind) -> Result<MemoryInfo, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::MemoryInfo, 0)?;
            self.check_kind(Call::MemoryInfo, kind)?;
            let budget = state.space.budget(kind);
            let (free, total) = (budget.available(), budget.total());
            Ok(MemoryInfo { free, total })
        })
    }

    // ---- time --------------------------------------------------------------------------------

    fn now(&self) -> Duration {
        self.engine.now()
    }

    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        let waker = waker.clone();
        self.engine.call(|state| {
            state.counters.alarms += 1;
            let id = AlarmId(state.schedule.next_arrival());
            // One that is past rings as the call leaves.
            state.alarms.set(id, at, waker);
            id
        })
    }

    fn cancel_alarm(&self, alarm: AlarmId) {
        // The waker is dropped here, outside the lock: its task may own what calls the device.
        let _waker = self.engine.call(|state| state.alarms.cancel(alarm));
    }

    // ---- address space and physical memory -----------------------------------------------------

    fn reserve(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.memory_call(Call::Reserve, |_| bytes, |space| space.reserve(bytes))
    }

    fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.judge_before(|judge| judge.returned(address, bytes));
        self.memory_call(
            Call::Unreserve,
            |_| bytes,
            |space| space.unreserve(address, bytes),
        )
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let create = |space: &mut Space| space.create(MemoryKind::Device, bytes);
        let handle = self.memory_call(Call::Create, |_| bytes, create)?;
        Ok(Chunk(handle))
    }

    fn destroy(&self, handle: Chunk) -> Result<(), DeviceError> {
        let size = |space: &Space| space.size_of(handle.0);
        self.memory_call(Call::Destroy, size, |space| space.destroy(handle.0))
    }

    fn map(&self, address: u64, handle: Chunk, bytes: u64) -> Result<(), DeviceError> {
        self.memory_call(
            Call::Map,
            |_| bytes,
            |space| space.map(address, handle.0, bytes),
        )
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.judge_before(|judge| judge.unmapped(address, bytes));
        self.memory_call(Call::Unmap, |_| bytes, |space| space.unmap(address, bytes))
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        self.plain_call(Call::Allocate, kind, bytes, |space| {
            space.allocate(kind, bytes)
        })
    }

    fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.judge_before(|judge| judge.returned(address, bytes));
        self.plain_call(Call::Free, kind, bytes, |space| {
            space.free(kind, address, bytes)
        })
    }

    // ---- streams and events ----------------------------------------------------------------------

    fn create_stream(&self) -> Result<RawStream, DeviceError> {
        self.create_raw_stream(false)
    }

    fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::DestroyStream, 0)?;
            check_stream(state, Call::DestroyStream, stream)?;
            state.schedule.destroy_stream(stream);
            Ok(())
        })
    }

    fn create_event(&self) -> Result<RawEvent, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::CreateEvent, 0)?;
            Ok(state.events.create())
        })
    }

    fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::DestroyEvent, 0)?;
            last_record(state, Call::DestroyEvent, event)?;
            state.events.destroy(event);
            if let Some(judge) = state.judge() {
                judge.order.forget(event);
            }
            Ok(())
        })
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        self.engine.call(|state| {
            let fault = state.enter_with_fault(Call::Record, 0)?;
            check_stream(state, Call::Record, stream)?;
            last_record(state, Call::Record, event)?;
            let point = state.submit(stream, Item::Record);
            let recorded = recorded(state, point, fault);
            state.events.record(event, recorded);
            if let Some(judge) = state.judge() {
                judge.order.record(event, stream);
            }
            Ok(())
        })
    }

    fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::Query, 0)?;
            let is_complete = match last_record(state, Call::Query, event)? {
                None => true,
                Some(Recorded::At(point)) => state.schedule.is_complete(point),
                Some(Recorded::Failing(kind)) => {
                    let reason = "a fault that was asked for";
                    return Err(DeviceError::new(Call::Query.name(), kind, reason));
                }
            };
            if let Some(judge) = state.judge().filter(|_| is_complete) {
                judge.order.observe(event);
            }
            Ok(is_complete)
        })
    }

    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        let supported = self.engine.settings.device_side_waits;
        self.engine.call(|state| {
            state.enter(Call::Wait, 0)?;
            if !supported {
                return Err(unsupported(
                    Call::Wait,
                    "this device has no device-side waits",
                ));
            }
            check_stream(state, Call::Wait, stream)?;
            // An event that was never recorded counts as complete: nothing to wait for.
            if let Some(Recorded::At(point)) = last_record(state, Call::Wait, event)? {
                state.counters.device_waits += 1;
                state.submit(stream, Item::Wait(point));
                if let Some(judge) = state.judge() {
                    judge.order.wait(stream, event);
                }
            }
            Ok(())
        })
    }

    fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        let waker = waker.clone();
        self.engine.call(|state| {
            state.counters.watches += 1;
            let id = WatchId(state.schedule.next_arrival());
            // Of an unknown event, or a broken device, nothing will come: the waker is called now,
            // and finds the error by asking.
            let point = match state.events.last(event).flatten() {
                Some(Recorded::At(point)) => Some(point),
                Some(Recorded::Failing(_)) | None => None,
            };
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

    fn unwatch(&self, watch: WatchId) {
        // The waker is dropped here, outside the lock: its task may own what calls the device.
        let _waker = self.engine.call(|state| {
            if let Some(judge) = state.judge() {
                judge.order.unwatch(watch);
            }
            state.schedule.unwatch(watch)
        });
    }

    // ---- copies and fills --------------------------------------------------------------------------

    fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.start_upload(stream, address, bytes, place)
    }

    fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.start_download(stream, address, bytes, place)
    }

    fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        self.start_fill(stream, address, bytes, value, place)
    }
}
