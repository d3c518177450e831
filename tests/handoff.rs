//! Memory that goes from stream to stream while kernels are short: how often the device is called for it.
//!
//! The device is the simulated one, but that its calls take the caller's time, as a busy H200's do: what a pool asks
//! costs it what it could have submitted meanwhile. All of it is virtual time, and each run the same.

mod common;

use common::*;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;
use weirpool::device::sim::{Backing, Call, Checker, Counters, Operation, SimDevice, SimStream};
use weirpool::device::*;
use weirpool::*;

/// Calls take so long on an H200 while kernels of 20 us come and go on 8 streams.
const LAUNCH: Duration = Duration::from_micros(4);
const QUERY: Duration = Duration::from_nanos(1700);
const ORDER: Duration = Duration::from_nanos(250);

#[derive(Clone, Debug)]
struct Slow(SimDevice);

impl Slow {
    fn new() -> Self {
        let builder = SimDevice::builder().memory(1 << 34);
        let builder = builder.backing(Backing::AddressesOnly);
        Self(builder.checker(Checker::Off).build())
    }

    fn submit(&self, work: &SimStream, kernel: Duration) {
        self.0.advance(LAUNCH);
        work.submit(Operation::new(kernel));
    }
}

// SAFETY: every call is passed on to the simulated device.
unsafe impl Device for Slow {
    fn id(&self) -> DeviceId {
        self.0.id()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn memory_info(&self, kind: MemoryKind) -> Result<MemoryInfo, DeviceError> {
        self.0.memory_info(kind)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        self.0.set_alarm(at, waker)
    }

    fn cancel_alarm(&self, alarm: AlarmId) {
        self.0.cancel_alarm(alarm);
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.0.reserve(bytes)
    }

    fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.0.unreserve(address, bytes)
    }

    fn create(&self, bytes: u64) -> Result<PhysicalHandle, DeviceError> {
        self.0.create(bytes)
    }

    fn destroy(&self, handle: PhysicalHandle) -> Result<(), DeviceError> {
        self.0.destroy(handle)
    }

    fn map(&self, address: u64, handle: PhysicalHandle, bytes: u64) -> Result<(), DeviceError> {
        self.0.map(address, handle, bytes)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.0.unmap(address, bytes)
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        self.0.allocate(kind, bytes)
    }

    fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.0.free(kind, address, bytes)
    }

    fn create_stream(&self) -> Result<RawStream, DeviceError> {
        Device::create_stream(&self.0)
    }

    fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError> {
        self.0.destroy_stream(stream)
    }

    fn create_event(&self) -> Result<RawEvent, DeviceError> {
        self.0.create_event()
    }

    fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError> {
        self.0.destroy_event(event)
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        self.0.advance(ORDER);
        self.0.record(event, stream)
    }

    fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        self.0.advance(QUERY);
        self.0.query(event)
    }

    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        self.0.advance(ORDER);
        self.0.wait(stream, event)
    }

    fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        self.0.watch(event, waker)
    }

    fn unwatch(&self, watch: WatchId) {
        self.0.unwatch(watch);
    }

    fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.0.upload(stream, address, bytes, place)
    }

    fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.0.download(stream, address, bytes, place)
    }

    fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        Device::fill(&self.0, stream, address, bytes, value, place)
    }
}

const STREAMS: usize = 8;
const BLOCK: u64 = 8 * MIB;
/// Until the first blocks are there, and the streams' pace is known.
const WARM_UP: usize = 200;
const ITERATIONS: usize = 1000;

/// What an iteration took, on the mean.
#[derive(Debug)]
struct Cost {
    queries: f64,
    records: f64,
    waits: f64,
    memory: f64,
    micros: f64,
}

impl Cost {
    fn of(device: &Slow, iterations: impl FnOnce(usize) + Copy) -> Self {
        iterations(WARM_UP);
        device.0.advance_to_end();
        let before = (device.0.counters(), device.0.now());
        iterations(ITERATIONS);
        device.0.advance_to_end();
        let after = (device.0.counters(), device.0.now());
        let each = |count: u64| count as f64 / ITERATIONS as f64;
        let calls = |call| each(after.0.calls(call) - before.0.calls(call));
        let memory = |counters: &Counters| counters.calls(Call::Create) + counters.calls(Call::Map);
        Self {
            queries: calls(Call::Query),
            records: calls(Call::Record),
            waits: calls(Call::Wait),
            memory: each(memory(&after.0) - memory(&before.0)),
            micros: (after.1 - before.1).as_nanos() as f64 / 1e3 / ITERATIONS as f64,
        }
    }
}

fn lines(device: &Slow, pool: &Pool) -> Vec<(SimStream, Stream)> {
    (0..STREAMS).map(|_| stream(&device.0, pool)).collect()
}

/// Allocated and used on one stream after the other.
fn in_turn(limit: WaitLimit, blocks: u64, kernel: Duration) -> Cost {
    let device = Slow::new();
    let builder = Pool::builder(device.clone()).wait_limit(limit);
    let pool = builder.capacity(blocks * BLOCK).build().unwrap();
    let lines = lines(&device, &pool);
    Cost::of(&device, |iterations| {
        device.0.block_on(async {
            for (work, stream) in lines.iter().cycle().take(iterations) {
                let block = pool.allocate(stream, BLOCK).await.unwrap();
                device.submit(work, kernel);
                drop(block);
            }
        });
    })
}

/// Written on one stream, and read on the next.
fn handed_on(limit: WaitLimit, blocks: u64, kernel: Duration) -> Cost {
    let device = Slow::new();
    let builder = Pool::builder(device.clone()).wait_limit(limit);
    let pool = builder.capacity(blocks * BLOCK).build().unwrap();
    let lines = lines(&device, &pool);
    let pairs: Vec<_> = lines.chunks(2).collect();
    Cost::of(&device, |iterations| {
        device.0.block_on(async {
            for pair in pairs.iter().cycle().take(iterations) {
                let [(writer, own), (reader, last)] = pair else {
                    unreachable!("pairs");
                };
                let block = pool.allocate(own, BLOCK).await.unwrap();
                device.submit(writer, kernel);
                last.wait(&own.event().unwrap()).unwrap();
                block.used_on(last).unwrap();
                device.submit(reader, kernel);
                drop(block);
            }
        });
    })
}

#[test]
fn figures() {
    for limit in [WaitLimit::Tail, WaitLimit::Unlimited] {
        for kernel in [20, 200] {
            for blocks in [4, 512] {
                let (a, b) = (in_turn(limit, blocks, us(kernel)), handed_on(limit, blocks, us(kernel)));
                println!("{limit:?} {kernel} us, {blocks} blocks:\n  alone {a:?}\n  handed {b:?}");
            }
        }
    }
}

#[test]
fn dbg() {
    println!("{:?}", handed_on(WaitLimit::Tail, 512, us(20)));
}
