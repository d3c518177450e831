//! Random use of a pool over a source of segments that records each take and each give, ordered or not, without virtual
//! memory. One call of the source fails, each in turn. At the end each segment was given back once, and never while work
//! used it.
//!
//! A give in the order of a stream submits an operation there, which looks when it runs. The source hands out first what
//! the same stream gave back last, even if that operation has not run.

use crate::common::*;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use weirpool::device::DeviceErrorKind::{Other, OutOfMemory, Unsupported};
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::device::{Device, DeviceError, DeviceErrorKind, MemoryKind, RawEvent, RawStream};
use weirpool::extend::{SegmentProperties, SegmentSource};
use weirpool::{AllocError, AllocateOwned, Block, Capture, Pool, ReleaseThreshold, Stream};

const STEPS: usize = 100;
const CAPACITY: u64 = 16 * MIB;
/// This many calls of each seed fail in turn.
const MOST_FAULTS: u64 = 24;

/// A point that work has reached or not.
type Reached = Arc<AtomicBool>;

fn has_reached(point: &Reached) -> bool {
    point.load(SeqCst)
}

/// A segment that the pool has.
#[derive(Debug)]
struct Taken {
    bytes: u64,
    /// When its memory is given back for the last time.
    earlier: Reached,
    uses: Vec<Reached>,
}

/// Memory that the pool gave back.
#[derive(Debug)]
struct Given {
    address: u64,
    bytes: u64,
    /// The stream that it was given back on, with an event behind its uses.
    on: Option<(RawStream, RawEvent)>,
    unused: Reached,
}

#[derive(Debug, Default)]
struct Records {
    taken: BTreeMap<u64, Taken>,
    given: Vec<Given>,
    calls: u64,
    takes: u64,
    gives: u64,
    /// The call that fails, and how.
    fails: Option<(u64, DeviceErrorKind)>,
    is_ending: bool,
    /// The pool could not give this many segments back at its end.
    leaked: usize,
}

#[derive(Debug)]
struct Recorder {
    device: SimDevice,
    is_ordered: bool,
    streams: Mutex<Vec<SimStream>>,
    records: Mutex<Records>,
    violations: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    /// Counts a call. Returns the error of one that is to fail.
    fn count(&self, records: &mut Records, call: &'static str) -> Result<(), DeviceError> {
        records.calls += 1;
        match records.fails.filter(|(at, _)| *at == records.calls) {
            Some((_, kind)) => Err(DeviceError::new(call, kind, "as the test asked")),
            None => Ok(()),
        }
    }

    fn report(&self, violation: String) {
        self.violations.lock().unwrap().push(violation);
    }

    /// Submits work that uses a block.
    fn use_on(&self, work: &SimStream, block: &Block) {
        let (address, size) = (block.address(), block.size());
        let done = Reached::default();
        let earlier = {
            let mut records = self.records.lock().unwrap();
            let found = records.taken.range_mut(..=address.to_bits()).next_back();
            let (start, taken) = found.expect("a block lies in a segment");
            assert!(start + taken.bytes >= address.to_bits() + size);
            taken.uses.push(done.clone());
            taken.earlier.clone()
        };
        let violations = self.violations.clone();
        let work_of_block = Operation::new(us(10)).writes(address, size);
        work.submit(work_of_block.run(move |_| {
            if !has_reached(&earlier) {
                let violation = format!("{address:?} was used before its earlier use ended");
                violations.lock().unwrap().push(violation);
            }
            done.store(true, SeqCst);
        }));
    }
}

// SAFETY: the memory is allocated from the device for each segment that is new, and has one owner at a time.
unsafe impl SegmentSource for Recorder {
    fn properties(&self) -> SegmentProperties {
        SegmentProperties {
            owner: "a recorder",
            device: self.device.id(),
            kind: MemoryKind::Device,
            granularity: if self.is_ordered { 512 } else { 2 * MIB },
            most: u64::MAX,
            is_ordered: self.is_ordered,
        }
    }

    unsafe fn take(
        &self,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        let mut records = self.records.lock().unwrap();
        self.count(&mut records, "take")?;
        let is_usable = |given: &Given| {
            let may_use = |(on, event)| on == stream || self.device.query(event) == Ok(true);
            given.bytes == bytes && given.on.is_none_or(may_use)
        };
        let (address, earlier) = match records.given.iter().rposition(is_usable) {
            Some(at) => {
                let Given {
                    address, unused, ..
                } = records.given.remove(at);
                (address, unused)
            }
            None => {
                let whole = bytes.next_multiple_of(2 * MIB);
                let address = self.device.allocate(MemoryKind::Device, whole)?;
                (address, Arc::new(AtomicBool::new(true)))
            }
        };
        assert!(address.is_multiple_of(alignment));
        records.takes += 1;
        let taken = Taken {
            bytes,
            earlier,
            uses: Vec::new(),
        };
        assert!(records.taken.insert(address, taken).is_none());
        Ok(address)
    }

    unsafe fn give(&self, address: u64, bytes: u64, stream: RawStream) -> Result<(), DeviceError> {
        let mut records = self.records.lock().unwrap();
        if let Err(error) = self.count(&mut records, "give") {
            records.leaked += usize::from(records.is_ending);
            return Err(error);
        }
        let Some(taken) = records.taken.remove(&address) else {
            self.report(format!("{address:#x} was given back twice"));
            return Ok(());
        };
        assert_eq!(taken.bytes, bytes);
        records.gives += 1;
        let mut before = taken.uses;
        before.push(taken.earlier);
        let unused = Reached::default();
        let mut given = Given {
            address,
            bytes,
            on: None,
            unused: unused.clone(),
        };
        if stream == RawStream::HOST {
            if !before.iter().all(has_reached) {
                self.report(format!("{address:#x} was given back while it was used"));
            }
            unused.store(true, SeqCst);
            records.given.push(given);
            return Ok(());
        }
        drop(records);
        let works = self.streams.lock().unwrap();
        let work = works.iter().find(|work| work.raw() == stream);
        let violations = self.violations.clone();
        let look = Operation::new(us(0)).run(move |_| {
            if !before.iter().all(has_reached) {
                let violation = format!("{address:#x} was given back before its uses");
                violations.lock().unwrap().push(violation);
            }
            unused.store(true, SeqCst);
        });
        work.expect("a stream of the pool").submit(look);
        let event = self.device.create_event()?;
        self.device.record(event, stream)?;
        given.on = Some((stream, event));
        self.records.lock().unwrap().given.push(given);
        Ok(())
    }

    fn available(&self) -> Option<u64> {
        Some(self.device.memory_info(MemoryKind::Device).ok()?.free)
    }
}

struct Line {
    work: SimStream,
    stream: Stream,
    capture: Option<Capture>,
}

struct World {
    random: fastrand::Rng,
    device: SimDevice,
    recorder: Arc<Recorder>,
    pool: TestPool,
    lines: Vec<Line>,
    blocks: Vec<(usize, Block)>,
    waiting: Vec<(usize, Pin<Box<AllocateOwned>>)>,
}

impl World {
    fn new(seed: u64, is_ordered: bool, fails: Option<(u64, DeviceErrorKind)>) -> Self {
        let device = manual_builder().memory(64 * MIB).virtual_memory(false);
        let device = device.build();
        let recorder = Arc::new(Recorder {
            device: device.clone(),
            is_ordered,
            streams: Mutex::default(),
            records: Mutex::new(Records {
                fails,
                ..Records::default()
            }),
            violations: Arc::default(),
        });
        let builder = Pool::builder(device.clone()).segment_source(recorder.clone());
        // Without caches segments become free, and are given back.
        let builder = builder
            .capacity(CAPACITY)
            .tuning(|tuning| tuning.lane_bytes = 0);
        let threshold = ReleaseThreshold::Bytes(0);
        let pool = builder.release_threshold(threshold).made();
        let lines = (0..3).map(|_| {
            let (work, stream) = stream(&device, &pool);
            recorder.streams.lock().unwrap().push(work.clone());
            Line {
                work,
                stream,
                capture: None,
            }
        });
        Self {
            lines: lines.collect(),
            random: fastrand::Rng::with_seed(seed),
            device,
            recorder,
            pool,
            blocks: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn granted(&mut self, line: usize, answer: Result<Block, AllocError>) {
        match answer {
            Ok(block) => {
                if self.lines[line].capture.is_none() {
                    self.recorder.use_on(&self.lines[line].work, &block);
                }
                self.blocks.push((line, block));
            }
            // A capture has no memory here, and the call that fails may be a request's.
            Err(
                AllocError::Exhausted(_)
                | AllocError::NotReservedForCapture { .. }
                | AllocError::NotReservable
                | AllocError::Device(_),
            ) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn allocate(&mut self) {
        let line = self.random.usize(..3);
        // Few sizes, so that memory is taken again.
        let bytes = [MIB, 3 * MIB, 5 * MIB][self.random.usize(..3)];
        let stream = &self.lines[line].stream;
        if self.random.u8(..3) > 0 {
            let answer = self.pool.try_allocate(stream, bytes);
            return self.granted(line, answer);
        }
        let mut request = Box::pin(self.pool.allocate_owned(stream, bytes));
        match poll(&mut request) {
            Poll::Ready(answer) => self.granted(line, answer),
            Poll::Pending => self.waiting.push((line, request)),
        }
    }

    /// Polls a request that waits, or drops it.
    fn answer(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.random.usize(..self.waiting.len());
        if self.random.u8(..4) == 0 {
            return drop(self.waiting.swap_remove(at));
        }
        if let Poll::Ready(answer) = poll(&mut self.waiting[at].1) {
            let (line, _request) = self.waiting.swap_remove(at);
            self.granted(line, answer);
        }
    }

    fn free(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let at = self.random.usize(..self.blocks.len());
        let (line, mut block) = self.blocks.swap_remove(at);
        let further = &self.lines[(line + 1) % 3];
        match self.random.u8(..3) {
            // Refused where a captured stream would have to wait.
            0 if further.capture.is_none() && further.stream.record_use(&mut block).is_ok() => {
                self.recorder.use_on(&further.work, &block);
                drop(block);
            }
            1 => drop(block.deallocate()),
            _ => drop(block),
        }
    }

    fn capture(&mut self) {
        let line = &mut self.lines[self.random.usize(..3)];
        match line.capture.take() {
            Some(capture) if self.random.bool() => drop(capture),
            Some(capture) => drop(capture.end().unwrap()),
            None => line.capture = Some(self.pool.capture(&line.stream).unwrap()),
        }
    }

    fn step(&mut self) {
        match self.random.u8(..16) {
            0..5 => self.allocate(),
            5..9 => self.free(),
            9..11 => self.answer(),
            11 => self.capture(),
            // The call that fails may be one of these.
            12 => _ = self.pool.trim_to(self.random.u64(..CAPACITY)),
            13 => _ = self.pool.maintain().reap(),
            _ => self.device.advance(us(self.random.u64(..40))),
        }
        self.pool.inspect().check().unwrap();
        let held = self.recorder.records.lock().unwrap();
        let held: u64 = held.taken.values().map(|taken| taken.bytes).sum();
        assert_eq!(self.pool.inspect().statistics().reserved.current, held);
    }

    /// Ends the pool. Returns the number of calls of the source.
    fn finish(mut self) -> u64 {
        self.waiting.clear();
        self.lines.iter_mut().for_each(|line| {
            drop(line.capture.take().map(Capture::end));
        });
        self.blocks.clear();
        self.device.advance(us(1000));
        self.pool.inspect().check_conserved().unwrap();
        self.recorder.records.lock().unwrap().is_ending = true;
        let Self {
            device,
            recorder,
            pool,
            lines,
            ..
        } = self;
        drop((pool, lines));
        device.advance_to_end();
        assert_eq!(*recorder.violations.lock().unwrap(), [""; 0]);
        let records = recorder.records.lock().unwrap();
        assert_eq!(records.taken.len(), records.leaked, "{records:?}");
        assert_eq!(records.takes, records.gives + records.leaked as u64);
        records.calls
    }
}

fn run(seed: u64, is_ordered: bool, fails: Option<(u64, DeviceErrorKind)>) -> u64 {
    let mut world = World::new(seed, is_ordered, fails);
    (0..STEPS).for_each(|_| world.step());
    world.finish()
}

fn each_call_fails(is_ordered: bool) {
    let calls = crate::over_seeds(|seed| {
        let calls = run(seed, is_ordered, None);
        for at in 1..=calls.min(MOST_FAULTS) {
            for kind in [OutOfMemory, Unsupported, Other] {
                run(seed, is_ordered, Some((at, kind)));
            }
        }
        calls
    });
    assert!(calls > 8 * crate::SEEDS, "the source is called: {calls}");
}

#[test]
fn segments_are_given_back_once_and_unused() {
    each_call_fails(false);
}

#[test]
fn segments_are_given_back_once_in_the_order_of_streams() {
    each_call_fails(true);
}
