//! The device contract, carried out by the simulated device.
//!
//! Each call enters (it is counted, charged, and may be made to fail), checks its arguments, and
//! changes the books. None of them takes simulated time, and none waits: not even
//! [`free`](Device::free), which on CUDA waits for all the device.

use super::SimDevice;
use super::builder::GRANULARITY;
use super::call::Call;
use super::memory::{Refusal, Space};
use super::schedule::{Item, Point};
use super::state::State;
use crate::device::{
    AlarmId, Capabilities, Device, DeviceError, DeviceErrorKind, DeviceId, MemoryInfo,
    PhysicalHandle, RawEvent, RawStream, WatchId,
};
use std::task::Waker;
use std::time::Duration;

impl SimDevice {
    fn memory_call<R>(
        &self,
        call: Call,
        bytes: impl FnOnce(&Space) -> u64,
        change: impl FnOnce(&mut Space) -> Result<R, Refusal>,
    ) -> Result<R, DeviceError> {
        crate::sync::assert_unlocked(call.name());
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
}

fn unsupported(call: Call, reason: &'static str) -> DeviceError {
    DeviceError::new(call.name(), DeviceErrorKind::Unsupported, reason)
}

fn invalid(call: Call, reason: String) -> DeviceError {
    DeviceError::new(call.name(), DeviceErrorKind::InvalidArgument, reason)
}

fn check_stream(state: &State, call: Call, stream: RawStream) -> Result<(), DeviceError> {
    if state.schedule.is_open(stream) {
        return Ok(());
    }
    let name = stream.0;
    Err(invalid(call, format!("there is no stream {name:#x}")))
}

/// What was recorded last, if anything was.
fn last_record(state: &State, call: Call, event: RawEvent) -> Result<Option<Point>, DeviceError> {
    let name = event.0;
    let last = state.events.last(event);
    last.ok_or_else(|| invalid(call, format!("there is no event {name:#x}")))
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
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::MemoryInfo, 0)?;
            let total = state.space.total();
            let (in_use, _) = state.space.usage();
            let free = total - in_use;
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
        self.memory_call(
            Call::Unreserve,
            |_| bytes,
            |space| space.unreserve(address, bytes),
        )
    }

    fn create(&self, bytes: u64) -> Result<PhysicalHandle, DeviceError> {
        let handle = self.memory_call(Call::Create, |_| bytes, |space| space.create(bytes))?;
        Ok(PhysicalHandle(handle))
    }

    fn destroy(&self, handle: PhysicalHandle) -> Result<(), DeviceError> {
        let size = |space: &Space| space.size_of(handle.0);
        self.memory_call(Call::Destroy, size, |space| space.destroy(handle.0))
    }

    fn map(&self, address: u64, handle: PhysicalHandle, bytes: u64) -> Result<(), DeviceError> {
        self.memory_call(
            Call::Map,
            |_| bytes,
            |space| space.map(address, handle.0, bytes),
        )
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.memory_call(Call::Unmap, |_| bytes, |space| space.unmap(address, bytes))
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.memory_call(Call::Allocate, |_| bytes, |space| space.allocate(bytes))
    }

    fn free(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.memory_call(Call::Free, |_| bytes, |space| space.free(address, bytes))
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
            Ok(())
        })
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::Record, 0)?;
            check_stream(state, Call::Record, stream)?;
            last_record(state, Call::Record, event)?;
            let point = state.schedule.submit(stream, Item::Record);
            state.events.record(event, point);
            Ok(())
        })
    }

    fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::Query, 0)?;
            let last = last_record(state, Call::Query, event)?;
            Ok(last.is_none_or(|point| state.schedule.is_complete(point)))
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
            if let Some(point) = last_record(state, Call::Wait, event)? {
                state.counters.device_waits += 1;
                state.schedule.submit(stream, Item::Wait(point));
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
            let last = state.events.last(event).flatten();
            state.schedule.watch(id, last, waker);
            id
        })
    }

    fn unwatch(&self, watch: WatchId) {
        // The waker is dropped here, outside the lock: its task may own what calls the device.
        let _waker = self.engine.call(|state| state.schedule.unwatch(watch));
    }
}
