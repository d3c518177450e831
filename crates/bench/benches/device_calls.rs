//! The cost of device calls to their thread: `cargo bench --bench device_calls`.
//!
//! For the simulated device, the cost that it charges; with `--features cuda` and a GPU also the driver's time, as a
//! median. The costs of the simulated device come from these figures.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use weirpool::device::sim::{Backing, Checker, Clock, SimDevice};
use weirpool::device::{
    Device, DeviceError, DriverPoolProperties, HostFunction, MemoryKind, PoolAttribute, RawStream,
};

const MIB: u64 = 1 << 20;
const SIZES: [u64; 10] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// A line of the table: the call, its bytes, and its time.
type Line = (&'static str, u64, Duration);

/// How the time of one call is measured.
trait Meter {
    fn device(&self) -> &dyn Device;

    fn rounds(&self) -> usize;

    fn time<R>(&self, call: impl FnOnce() -> R) -> (Duration, R);
}

struct Charged(SimDevice);

impl Meter for Charged {
    fn device(&self) -> &dyn Device {
        &self.0
    }

    fn rounds(&self) -> usize {
        1
    }

    fn time<R>(&self, call: impl FnOnce() -> R) -> (Duration, R) {
        let before = self.0.counters().device_time;
        let result = call();
        (self.0.counters().device_time - before, result)
    }
}

#[cfg(feature = "cuda")]
struct Driver(weirpool::device::cuda::CudaDevice);

#[cfg(feature = "cuda")]
impl Meter for Driver {
    fn device(&self) -> &dyn Device {
        &self.0
    }

    fn rounds(&self) -> usize {
        25
    }

    fn time<R>(&self, call: impl FnOnce() -> R) -> (Duration, R) {
        let start = Instant::now();
        let result = call();
        (start.elapsed(), result)
    }
}

/// Returns medians of several rounds.
#[derive(Default)]
struct Table(Vec<(&'static str, u64, Vec<Duration>)>);

impl Table {
    fn add(&mut self, (call, bytes, took): Line) {
        let known = self
            .0
            .iter_mut()
            .find(|line| (line.0, line.1) == (call, bytes));
        match known {
            Some(line) => line.2.push(took),
            None => self.0.push((call, bytes, vec![took])),
        }
    }

    fn medians(mut self) -> Vec<Line> {
        for (_, _, took) in &mut self.0 {
            took.sort_unstable();
        }
        let lines = self.0.into_iter();
        lines
            .map(|(call, bytes, took)| (call, bytes, took[took.len() / 2]))
            .collect()
    }
}

fn measure(meter: &impl Meter) -> Result<Vec<Line>, DeviceError> {
    let mut table = Table::default();
    for _ in 0..meter.rounds() {
        addresses(meter, &mut table)?;
        streams(meter, &mut table)?;
        for mib in SIZES {
            virtual_memory(meter, &mut table, mib * MIB)?;
            plain_memory(meter, &mut table, mib * MIB)?;
        }
        for bytes in [4 << 10, MIB, 64 * MIB] {
            copies(meter, &mut table, bytes)?;
            fills(meter, &mut table, bytes)?;
            driver_pool(meter, &mut table, bytes)?;
        }
        host_work(meter, &mut table)?;
        captures(meter, &mut table)?;
    }
    Ok(table.medians())
}

/// Makes a call that names a stream, an event or memory.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: each function here makes the streams, events and memory that it names, uses them on its own, and
        // destroys them once the work on them is complete.
        unsafe { $call }
    };
}

fn addresses(meter: &impl Meter, table: &mut Table) -> Result<(), DeviceError> {
    let device = meter.device();
    for bytes in [1 << 30, 1 << 40] {
        let (took, address) = meter.time(|| device.reserve(bytes));
        table.add(("reserve", bytes, took));
        let (took, done) = meter.time(|| call!(device.unreserve(address.clone()?, bytes)));
        done?;
        table.add(("unreserve", bytes, took));
    }
    let (took, info) = meter.time(|| device.memory_info(MemoryKind::Device));
    info?;
    table.add(("memory_info", 0, took));
    Ok(())
}

/// Makes each call several times, because one call is close to the resolution of the clock.
fn streams(meter: &impl Meter, table: &mut Table) -> Result<(), DeviceError> {
    const TIMES: u32 = 64;
    let device = meter.device();
    let mut each = |name, call: &mut dyn FnMut() -> Result<(), DeviceError>| {
        let (took, done) = meter.time(|| (0..TIMES).try_for_each(|_| call()));
        table.add((name, 0, took / TIMES));
        done
    };
    let [first, second] = [device.create_stream()?, device.create_stream()?];
    let event = device.create_event()?;
    each("record", &mut || call!(device.record(event, first)))?;
    each("query", &mut || call!(device.query(event)).map(drop))?;
    each("wait", &mut || call!(device.wait(second, event)))?;
    let mut events = Vec::new();
    each("create_event", &mut || {
        events.push(device.create_event()?);
        Ok(())
    })?;
    each("destroy_event", &mut || {
        events
            .pop()
            .map_or(Ok(()), |event| call!(device.destroy_event(event)))
    })?;
    let (took, stream) = meter.time(|| device.create_stream());
    table.add(("create_stream", 0, took));
    let (took, done) = meter.time(|| call!(device.destroy_stream(stream?)));
    done?;
    table.add(("destroy_stream", 0, took));
    call!(device.destroy_event(event))?;
    call!(device.destroy_stream(first))?;
    call!(device.destroy_stream(second))
}

fn virtual_memory(meter: &impl Meter, table: &mut Table, bytes: u64) -> Result<(), DeviceError> {
    let device = meter.device();
    let address = device.reserve(bytes)?;
    let (took, chunk) = meter.time(|| device.create(bytes));
    let chunk = chunk?;
    table.add(("create", bytes, took));
    let (took, done) = meter.time(|| call!(device.map(address, chunk, bytes)));
    done?;
    table.add(("map", bytes, took));
    let (took, done) = meter.time(|| call!(device.unmap(address, bytes)));
    done?;
    table.add(("unmap", bytes, took));
    let (took, done) = meter.time(|| call!(device.destroy(chunk)));
    done?;
    table.add(("destroy", bytes, took));
    call!(device.unreserve(address, bytes))
}

fn plain_memory(meter: &impl Meter, table: &mut Table, bytes: u64) -> Result<(), DeviceError> {
    let device = meter.device();
    let (took, address) = meter.time(|| device.allocate(MemoryKind::Device, bytes));
    table.add(("allocate", bytes, took));
    let (took, done) = meter.time(|| call!(device.free(MemoryKind::Device, address?, bytes)));
    table.add(("free", bytes, took));
    done
}

fn copies(meter: &impl Meter, table: &mut Table, bytes: u64) -> Result<(), DeviceError> {
    let device = meter.device();
    let location = std::panic::Location::caller();
    let stream = device.create_stream()?;
    let address = device.allocate(MemoryKind::Device, 64 * MIB)?;
    let host = vec![1; bytes as usize];
    let (took, upload) = meter.time(|| call!(device.upload(stream, address, &host, location)));
    table.add(("upload", bytes, took));
    let (took, download) = meter.time(|| call!(device.download(stream, address, bytes, location)));
    table.add(("download", bytes, took));
    let (mut upload, mut download) = (upload?, download?);
    while upload.bytes()?.is_none() || download.bytes()?.is_none() {
        std::hint::spin_loop();
    }
    drop((upload, download));
    call!(device.destroy_stream(stream))?;
    call!(device.free(MemoryKind::Device, address, 64 * MIB))
}

fn fills(meter: &impl Meter, table: &mut Table, bytes: u64) -> Result<(), DeviceError> {
    let device = meter.device();
    let location = std::panic::Location::caller();
    let (stream, event) = (device.create_stream()?, device.create_event()?);
    let address = device.allocate(MemoryKind::Device, 64 * MIB)?;
    let (took, done) = meter.time(|| call!(device.fill(stream, address, bytes, 0, location)));
    done?;
    table.add(("fill", bytes, took));
    call!(device.record(event, stream))?;
    while !call!(device.query(event))? {
        std::hint::spin_loop();
    }
    call!(device.destroy_event(event))?;
    call!(device.destroy_stream(stream))?;
    call!(device.free(MemoryKind::Device, address, 64 * MIB))
}

/// Measures calls on a pool of the driver that holds the memory already, many times each.
fn driver_pool(meter: &impl Meter, table: &mut Table, bytes: u64) -> Result<(), DeviceError> {
    const TIMES: usize = 16;
    let device = meter.device();
    let Some(pools) = device.driver_pools() else {
        return Ok(());
    };
    let stream = device.create_stream()?;
    let properties = DriverPoolProperties::new(MemoryKind::Device);
    let (took, pool) = meter.time(|| pools.create_pool(&properties));
    let pool = pool?;
    table.add(("create_pool", 0, took));
    let threshold = PoolAttribute::ReleaseThreshold;
    call!(pools.set_pool_attribute(pool, threshold, u64::MAX))?;
    let mut addresses = Vec::with_capacity(TIMES);
    // The first round takes the memory from the device.
    for is_measured in [false, true] {
        let allocate = || call!(pools.allocate_from(pool, bytes, 512, stream));
        let (took, done) = meter.time(|| {
            (0..TIMES).try_for_each(|_| allocate().map(|address| addresses.push(address)))
        });
        done?;
        if is_measured {
            table.add(("allocate_from", bytes, took / TIMES as u32));
        }
        let (took, done) = meter.time(|| {
            let mut all = addresses.drain(..);
            all.try_for_each(|address| call!(pools.free_to(pool, address, stream)))
        });
        done?;
        if is_measured {
            table.add(("free_to", bytes, took / TIMES as u32));
        }
    }
    settle(device, stream)?;
    let used = PoolAttribute::UsedMemCurrent;
    let (took, read) = meter.time(|| call!(pools.pool_attribute(pool, used)));
    read?;
    table.add(("pool_attribute", 0, took));
    let (took, done) = meter.time(|| call!(pools.trim_pool(pool, 0)));
    done?;
    table.add(("trim_pool", bytes, took));
    let (took, done) = meter.time(|| call!(pools.destroy_pool(pool)));
    done?;
    table.add(("destroy_pool", 0, took));
    call!(device.destroy_stream(stream))
}

/// Measures functions of the host and holds of a stream, on an idle stream.
fn host_work(meter: &impl Meter, table: &mut Table) -> Result<(), DeviceError> {
    let device = meter.device();
    let stream = device.create_stream()?;
    for _ in 0..8 {
        let function = HostFunction {
            name: None,
            uses: Vec::new(),
            location: std::panic::Location::caller(),
            body: Box::new(|| {}),
        };
        let (took, done) = meter.time(|| call!(device.run(stream, function)));
        done?;
        table.add(("run", 0, took));
        settle(device, stream)?;
        let (took, hold) = meter.time(|| call!(device.hold(stream, None)));
        let hold = hold?;
        table.add(("hold", 0, took));
        let (took, ()) = meter.time(|| hold.release());
        table.add(("release", 0, took));
        settle(device, stream)?;
        drop(hold);
    }
    call!(device.destroy_stream(stream))
}

/// Measures the calls around a capture of one fill, and the launches of its graph.
fn captures(meter: &impl Meter, table: &mut Table) -> Result<(), DeviceError> {
    let device = meter.device();
    let Some(captures) = device.captures() else {
        return Ok(());
    };
    let location = std::panic::Location::caller();
    let stream = device.create_stream()?;
    let address = device.allocate(MemoryKind::Device, MIB)?;
    let (took, done) = meter.time(|| call!(captures.begin_capture(stream)));
    done?;
    table.add(("begin_capture", 0, took));
    call!(captures.capture_fill(stream, address, MIB, 0, location))?;
    let (took, graph) = meter.time(|| call!(captures.end_capture(stream)));
    let graph = graph?;
    table.add(("end_capture", 0, took));
    for at in 0..8 {
        let (took, done) = meter.time(|| call!(graph.launch(stream)));
        done?;
        // The first launch brings the graph to the device.
        if at > 0 {
            table.add(("launch", 0, took));
        }
    }
    settle(device, stream)?;
    drop(graph);
    call!(device.free(MemoryKind::Device, address, MIB))?;
    call!(device.destroy_stream(stream))
}

/// Waits until a stream has passed all its work.
fn settle(device: &dyn Device, stream: RawStream) -> Result<(), DeviceError> {
    let event = device.create_event()?;
    call!(device.record(event, stream))?;
    while !call!(device.query(event))? {
        std::hint::spin_loop();
    }
    call!(device.destroy_event(event))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Measures the time from the watch of a complete event to the wake-up of the thread.
fn wake_up(device: &dyn Device) -> Result<Duration, DeviceError> {
    let (stream, event) = (device.create_stream()?, device.create_event()?);
    call!(device.record(event, stream))?;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut took = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        let watch = call!(device.watch(event, &waker));
        std::thread::park();
        took.push(start.elapsed());
        device.unwatch(watch);
        std::thread::sleep(Duration::from_micros(300));
    }
    took.sort_unstable();
    call!(device.destroy_event(event))?;
    call!(device.destroy_stream(stream))?;
    Ok(took[took.len() / 2])
}

fn simulated() -> Vec<Line> {
    let device = SimDevice::builder()
        .memory(64 << 30)
        .backing(Backing::AddressesOnly)
        .clock(Clock::Wall)
        .checker(Checker::Off)
        .build();
    measure(&Charged(device)).expect("a simulated device does not fail")
}

#[cfg(feature = "cuda")]
fn real() -> Option<Vec<Line>> {
    match weirpool::device::cuda::CudaDevice::new(0) {
        Ok(device) => {
            println!("{}", device.description());
            let lines = measure(&Driver(device.clone())).expect("a device that works");
            let wake = wake_up(&device).expect("a device that works");
            println!("from the watch of a complete event to the woken thread: {wake:?} (median)");
            Some(lines)
        }
        Err(error) => {
            println!("skipped on CUDA: {error}");
            None
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn real() -> Option<Vec<Line>> {
    let _ = wake_up;
    println!("built without the feature `cuda`: what the simulated device charges");
    None
}

fn main() {
    let (charged, real) = (simulated(), real());
    println!(
        "{:<16} {:>10} {:>14} {:>14}",
        "call", "MiB", "charged ns", "driver ns"
    );
    for (at, (call, bytes, charged)) in charged.iter().enumerate() {
        let real = real
            .as_ref()
            .map(|lines| lines[at].2.as_nanos().to_string());
        let mib = bytes.checked_div(MIB).filter(|_| *bytes > 0);
        let mib = mib.map_or_else(String::new, |mib| mib.to_string());
        let real = real.unwrap_or_else(|| "-".to_owned());
        println!("{call:<16} {mib:>10} {:>14} {real:>14}", charged.as_nanos());
    }
}
