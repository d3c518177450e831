//! A device whose calls are timed.
//!
//! The calls that the pool makes for itself are timed, on every thread; each costs two more readings of the clock, some
//! 50 ns. Reading the time, alarms and watches are not device calls.

use super::machine::MemoryCalls;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use weirpool::device::{
    AlarmId, BlockObserver, Capabilities, Chunk, Device, DeviceError, DeviceId, Explain,
    MemoryInfo, MemoryKind, RawEvent, RawStream, Transfer, WatchId,
};

/// Passes each call on to `device`, and times it.
#[derive(Debug)]
pub(crate) struct Metered<D> {
    device: D,
    calls: Calls,
    memory_calls: Calls,
    waits: AtomicU64,
}

/// Calls of one kind.
#[derive(Debug, Default)]
struct Calls {
    begun: AtomicU64,
    ended: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Calls {
    fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let result = call();
        let spent = began.elapsed().as_nanos() as u64;
        self.nanoseconds.fetch_add(spent, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn spent(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

impl<D> Metered<D> {
    pub(crate) fn new(device: D) -> Self {
        Self {
            device,
            calls: Calls::default(),
            memory_calls: Calls::default(),
            waits: AtomicU64::new(0),
        }
    }

    /// Returns the number of calls that have ended.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.ended.load(Ordering::Relaxed) + self.memory_calls().ended
    }

    /// Returns the time that calls took their threads.
    pub(crate) fn time(&self) -> Duration {
        self.calls.spent() + self.memory_time()
    }

    pub(crate) fn memory_calls(&self) -> MemoryCalls {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        // Ended first: otherwise a call that begins and ends in between would count as one that has ended only.
        let ended = read(&self.memory_calls.ended);
        let begun = read(&self.memory_calls.begun);
        MemoryCalls { begun, ended }
    }

    /// Returns the time that memory calls took their threads.
    pub(crate) fn memory_time(&self) -> Duration {
        self.memory_calls.spent()
    }

    /// Returns the number of device-side waits.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn call<T>(&self, call: impl FnOnce(&D) -> T) -> T {
        self.calls.time(|| call(&self.device))
    }

    fn memory_call<T>(&self, call: impl FnOnce(&D) -> T) -> T {
        self.memory_calls.time(|| call(&self.device))
    }
}

// SAFETY: each call is the device's, which keeps the contract.
unsafe impl<D: Device> Device for Metered<D> {
    fn id(&self) -> DeviceId {
        self.device.id()
    }

    fn describe(&self) -> String {
        self.device.describe()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn explain_with(&self, pool: Weak<dyn Explain>) {
        self.device.explain_with(pool);
    }

    fn block_observer(&self) -> Option<Arc<dyn BlockObserver>> {
        self.device.block_observer()
    }

    fn memory_info(&self, kind: MemoryKind) -> Result<MemoryInfo, DeviceError> {
        self.call(|device| device.memory_info(kind))
    }

    // ---- time --------------------------------------------------------------------------------

    fn now(&self) -> Duration {
        self.device.now()
    }

    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        self.device.set_alarm(at, waker)
    }

    fn cancel_alarm(&self, alarm: AlarmId) {
        self.device.cancel_alarm(alarm);
    }

    // ---- address space and physical memory -----------------------------------------------------

    fn reserve(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.memory_call(|device| device.reserve(bytes))
    }

    unsafe fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.memory_call(|device| unsafe { device.unreserve(address, bytes) })
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        self.memory_call(|device| device.create(bytes))
    }

    unsafe fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.memory_call(|device| unsafe { device.destroy(chunk) })
    }

    unsafe fn map(&self, address: u64, chunk: Chunk, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.memory_call(|device| unsafe { device.map(address, chunk, bytes) })
    }

    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.memory_call(|device| unsafe { device.unmap(address, bytes) })
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        self.memory_call(|device| device.allocate(kind, bytes))
    }

    unsafe fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.memory_call(|device| unsafe { device.free(kind, address, bytes) })
    }

    // ---- streams and events ----------------------------------------------------------------------

    fn create_stream(&self) -> Result<RawStream, DeviceError> {
        self.call(|device| device.create_stream())
    }

    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.destroy_stream(stream) })
    }

    fn create_event(&self) -> Result<RawEvent, DeviceError> {
        self.call(|device| device.create_event())
    }

    unsafe fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.destroy_event(event) })
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.record(event, stream) })
    }

    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.query(event) })
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.wait(stream, event) })
    }

    unsafe fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { self.device.watch(event, waker) }
    }

    fn unwatch(&self, watch: WatchId) {
        self.device.unwatch(watch);
    }

    // ---- copies and fills --------------------------------------------------------------------------

    unsafe fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.upload(stream, address, bytes, location) })
    }

    unsafe fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.download(stream, address, bytes, location) })
    }

    unsafe fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller upholds the same contract for this device as for the other.
        self.call(|device| unsafe { device.fill(stream, address, bytes, value, location) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirpool::Pool;
    use weirpool::device::sim::{Operation, SimDevice};

    #[test]
    fn calls_are_counted_like_the_device_counts_them() {
        let sim = SimDevice::new();
        let metered = Arc::new(Metered::new(sim.clone()));
        let pool = Pool::builder(metered.clone() as Arc<dyn Device>)
            .build()
            .unwrap();
        let works = [sim.create_stream(), sim.create_stream()];
        let of_the_test = sim.counters().device_calls - metered.calls();
        let [one, other] = [&works[0], &works[1]].map(|work| pool.register(work).unwrap());
        let block = pool.try_allocate(&one, 40 << 20).unwrap();
        works[0].submit(Operation::new(Duration::from_millis(1)));
        other.wait(&one.event().unwrap()).unwrap();
        drop(block);
        let counters = sim.counters();
        assert_eq!(metered.calls() + of_the_test, counters.device_calls);
        assert_eq!((metered.waits(), counters.device_waits), (1, 1));
        let MemoryCalls { begun, ended } = metered.memory_calls();
        // The range, and five chunks, each created and mapped.
        assert_eq!((begun, ended), (11, 11));
        assert!(metered.time() >= metered.memory_time());
    }
}
