//! The device contract, implemented by the simulated device.

use super::SimDevice;
use super::builder::{Checker, Clock, GRANULARITY, Settings};
use super::call::Call;
use super::event_calls::unsupported;
use super::memory::Space;
use std::any::Any;
use std::borrow::Cow;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;
use weirpool_device::plain::{Arc, Weak};
use weirpool_device::{
    AlarmId, BlockObserver, Capabilities, Captures, Chunk, Device, DeviceError, DeviceId,
    DriverPools, Explain, Hold, HostFunction, MemoryInfo, MemoryKind, PeerAccess, Pooling,
    RawEvent, RawStream, Transfer, WatchId,
};

// SAFETY: the ranges that `Space` hands out are disjoint (it tracks reserved and plain ranges together), and a mapping
// stays until `unmap`. The schedule takes a stream's items only in order. A record is complete when all items before
// it are, and this is what `query` returns; a wait holds the items after it back until then. The addresses stand for
// no memory of the host, so that nothing here can make host memory unsound.
unsafe impl Device for SimDevice {
    fn id(&self) -> DeviceId {
        self.engine.id_of(self.number)
    }

    fn describe(&self) -> String {
        let Settings {
            memory,
            backing,
            clock,
            ..
        } = self.engine.settings;
        let number = self.number;
        let (now, (in_use, _), streams) = self.engine.peek(|state| {
            let streams = state.schedule.open_streams(number);
            (state.schedule.now(), state.space.usage(number), streams)
        });
        let id = self.id();
        let (gib, mib) = (memory as f64 / (1u64 << 30) as f64, in_use >> 20);
        format!(
            "sim:{} \"simulated device\" ({gib:.1} GiB, {backing:?}, {clock:?} clock at {now:?}), supports {}; \
             in use: {mib} MiB, {streams} stream(s), {}",
            id.0,
            self.capabilities(),
            Pooling::of(id),
        )
    }

    fn capabilities(&self) -> Capabilities {
        let settings = &self.engine.settings;
        Capabilities::plain(GRANULARITY)
            .with_virtual_memory(settings.virtual_memory)
            .with_blocking_memory_calls(settings.blocking_memory_calls)
            .with_device_side_waits(settings.device_side_waits)
            .with_memory_kinds(settings.memory_kinds)
            .with_memory_pools(settings.memory_pools, settings.handle_types())
            .with_peers(self.reachable_peers())
    }

    fn ordinal(&self) -> u32 {
        self.number
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        let mut id = self.engine.settings.uuid;
        // Devices of one host differ.
        id[15] ^= self.number as u8;
        Some(id)
    }

    #[cfg(target_os = "linux")]
    fn sharing(&self) -> Option<&dyn weirpool_device::Sharing> {
        self.engine.settings.virtual_memory.then_some(self)
    }

    fn driver_pools(&self) -> Option<&dyn DriverPools> {
        self.engine.settings.memory_pools.then_some(self)
    }

    fn peer_access(&self) -> Option<&dyn PeerAccess> {
        Some(self)
    }

    fn block_observer(&self) -> Option<Arc<dyn BlockObserver>> {
        let is_on = self.engine.settings.checker != Checker::Off;
        is_on.then(|| Arc::new(self.clone()) as Arc<dyn BlockObserver>)
    }

    fn explain_with(&self, pool: Weak<dyn Explain>) {
        self.engine.explainers.add(pool);
    }

    fn memory_info(&self, kind: MemoryKind) -> Result<MemoryInfo, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::MemoryInfo, 0)?;
            self.engine.check_kind(Call::MemoryInfo, kind)?;
            let budget = state.space.budget(self.number, kind);
            let (free, total) = (budget.reported(), budget.total());
            Ok(MemoryInfo { free, total })
        })
    }

    // ---- time --------------------------------------------------------------------------------

    fn now(&self) -> Duration {
        self.now()
    }

    fn is_time_virtual(&self) -> bool {
        matches!(self.engine.settings.clock, Clock::Virtual | Clock::Manual)
    }

    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        let waker = waker.clone();
        self.engine.call(|state| {
            state.counters.alarms += 1;
            let id = AlarmId(state.schedule.next_arrival());
            // An alarm in the past is woken when this call leaves the engine.
            state.alarms.set(id, at, waker);
            id
        })
    }

    fn cancel_alarm(&self, alarm: AlarmId) {
        // The waker is dropped here, outside the lock, because its task may own objects that call the device.
        let _waker = self.engine.call(|state| state.alarms.cancel(alarm));
    }

    // ---- address space and physical memory -----------------------------------------------------

    fn reserve(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.engine.memory_call(
            Call::Reserve,
            |_| bytes,
            |space| space.reserve(self.number, bytes),
        )
    }

    unsafe fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.unreserve(address, bytes)
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let create = |space: &mut Space| space.create(self.number, MemoryKind::Device, bytes);
        let chunk = self.engine.memory_call(Call::Create, |_| bytes, create)?;
        Ok(Chunk(chunk))
    }

    unsafe fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        self.destroy(chunk)
    }

    unsafe fn map(&self, address: u64, chunk: Chunk, bytes: u64) -> Result<(), DeviceError> {
        self.map(address, chunk, bytes)
    }

    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.unmap(address, bytes)
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        self.engine
            .plain_call(Call::Allocate, kind, bytes, |space| {
                space.allocate(self.number, kind, bytes)
            })
    }

    unsafe fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.free(kind, address, bytes)
    }

    // ---- streams and events ----------------------------------------------------------------------

    fn create_stream(&self) -> Result<RawStream, DeviceError> {
        let raw = self.create_raw_stream(None)?;
        self.engine
            .call(|state| state.schedule.give_to_contract(raw));
        Ok(raw)
    }

    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError> {
        self.destroy_stream(stream)
    }

    fn native_stream(&self, stream: RawStream) -> Option<Arc<dyn Any + Send + Sync>> {
        self.native_of(stream)
    }

    fn create_event(&self) -> Result<RawEvent, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::CreateEvent, 0)?;
            Ok(state.events.create(self.number))
        })
    }

    unsafe fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError> {
        self.destroy_event(event)
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        self.on(stream).record(event, false)
    }

    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        self.query(event)
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        if !self
            .engine
            .peek(|state| state.recordings.of(stream).is_some())
        {
            return self.wait(stream, event);
        }
        // Its work does not run, but comes after complete work.
        if self.query(event)? {
            return Ok(());
        }
        let reason = "the stream is being captured; call again when the capture is over";
        Err(unsupported(Call::Wait, reason))
    }

    unsafe fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        self.watch(event, waker)
    }

    fn unwatch(&self, watch: WatchId) {
        // The waker is dropped outside the lock, because its task may own objects that call the device.
        let _waker = self.engine.call(|state| {
            if let Some(judge) = state.judge() {
                judge.order.unwatch(watch);
            }
            state.schedule.unwatch(watch)
        });
    }

    fn captures(&self) -> Option<&dyn Captures> {
        Some(self)
    }

    // ---- copies and fills --------------------------------------------------------------------------

    unsafe fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.on(stream).upload(address, bytes, place)
    }

    unsafe fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.on(stream).download(address, bytes, place)
    }

    unsafe fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        self.on(stream).fill(address, bytes, value, place)
    }

    // ---- work of the host --------------------------------------------------------------------------

    unsafe fn run(&self, stream: RawStream, function: HostFunction) -> Result<(), DeviceError> {
        self.on(stream).run(function)
    }

    unsafe fn hold(
        &self,
        stream: RawStream,
        name: Option<Cow<'static, str>>,
    ) -> Result<Box<dyn Hold>, DeviceError> {
        self.on(stream).hold(name)
    }
}
