//! Memory that others own, as blocks: it goes back to its owner once, after all uses, whatever else ends before.

use crate::common::*;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirpool::device::sim::{Call, Checker, Clock, Fault, Operation, SimDevice, SimStream};
use weirpool::device::{Device, DeviceAddress, DeviceErrorKind, MemoryKind};
use weirpool::extend::{Charge, ForeignMemory, Passages};
use weirpool::{AllocError, Block, Source, Stream, StreamError, Unordered};

static_assertions::assert_impl_all!(Passages: Send, Sync, Unpin);
static_assertions::assert_impl_all!(Charge: Send, Sync);

const BYTES: u64 = 4 * MIB;

type Release = Box<dyn FnOnce(Arc<Memory>, Passages) + Send + Sync>;

/// Plain memory of a device, which goes back to it when it is released: a later use faults. Counts the releases.
struct Memory {
    device: SimDevice,
    address: u64,
    released: AtomicUsize,
    /// When the work was over, on the device's clock.
    over_at: Mutex<Option<Duration>>,
}

impl Memory {
    fn new(device: &SimDevice) -> Arc<Self> {
        Arc::new(Self {
            address: device.allocate(MemoryKind::Device, BYTES).unwrap(),
            device: device.clone(),
            released: AtomicUsize::new(0),
            over_at: Mutex::new(None),
        })
    }

    fn released(&self) -> usize {
        self.released.load(Ordering::SeqCst)
    }

    fn over_at(&self) -> Option<Duration> {
        *self.over_at.lock().unwrap()
    }

    /// Gives the memory back to the device once the passages are over.
    fn give_back(self: Arc<Self>, after: Passages) {
        after.then(move || {
            let freed = self.device.free(MemoryKind::Device, self.address, BYTES);
            freed.unwrap();
            *self.over_at.lock().unwrap() = Some(self.device.now());
        });
    }

    /// Waits until the memory is back, and moves the clock meanwhile.
    #[track_caller]
    fn settle(&self) {
        eventually(|| {
            self.device.advance(us(10));
            self.over_at().is_some()
        });
        assert_eq!(self.released(), 1);
        self.device.assert_ordered();
    }
}

/// The owner of the memory of one block.
struct Owner {
    memory: Arc<Memory>,
    release: Release,
    is_ready: bool,
    is_checked: bool,
    is_broken: bool,
    location: Option<&'static Location<'static>>,
}

impl Owner {
    fn of(memory: &Arc<Memory>) -> Box<Self> {
        Self::that(memory, Memory::give_back)
    }

    fn that(
        memory: &Arc<Memory>,
        release: impl FnOnce(Arc<Memory>, Passages) + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self {
            memory: memory.clone(),
            release: Box::new(release),
            is_ready: false,
            is_checked: true,
            is_broken: false,
            location: None,
        })
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner")
    }
}

// SAFETY: the device has the memory back after the passages, and not before.
unsafe impl ForeignMemory for Owner {
    fn range(&self) -> (DeviceAddress, u64) {
        (DeviceAddress::from_bits(self.memory.address), BYTES)
    }

    fn requested(&self) -> u64 {
        assert!(!self.is_broken, "the owner panics");
        BYTES - 1
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }

    fn is_checked(&self) -> bool {
        self.is_checked
    }

    fn location(&self) -> Option<&'static Location<'static>> {
        self.location
    }

    fn release(self: Box<Self>, after: Passages) {
        self.memory.released.fetch_add(1, Ordering::SeqCst);
        (self.release)(self.memory, after);
    }
}

/// Makes a block of memory of the device that the pool is over.
#[track_caller]
fn adopt(stream: &Stream, owner: Box<dyn ForeignMemory>) -> Block {
    // SAFETY: each test has one device, or names the stream's own.
    unsafe { stream.adopt(owner) }
}

struct Site {
    device: SimDevice,
    pool: TestPool,
    memory: Arc<Memory>,
    streams: [(SimStream, Stream); 3],
}

impl Site {
    fn new() -> Self {
        let device = manual();
        let pool = pool(&device, 16 * MIB);
        Self {
            memory: Memory::new(&device),
            streams: streams(&device, &pool),
            device,
            pool,
        }
    }

    fn adopt(&self) -> Block {
        adopt(&self.streams[0].1, Owner::of(&self.memory))
    }

    fn foreign(&self) -> u64 {
        self.pool.inspect().statistics().foreign
    }
}

#[test]
fn foreign_memory_is_used_as_any_block() {
    let site = Site::new();
    let [(_, stream), (_, other), _] = &site.streams;
    let before = site.pool.inspect().statistics();
    let mut broken = Owner::of(&site.memory);
    broken.is_broken = true;
    catch_unwind(AssertUnwindSafe(|| adopt(stream, broken))).unwrap_err();
    assert_eq!(site.foreign(), 0);
    let mut block = site.adopt();
    assert_eq!(block.address().to_bits(), site.memory.address);
    assert_eq!((block.size(), block.requested()), (BYTES, BYTES - 1));
    assert_eq!((block.source(), block.tag()), (Source::Grown, None));
    drop(block.upload(stream, 0, b"weir").unwrap());
    block.move_to(other).unwrap();
    let read = block.download(other, 0..4).unwrap();
    site.device.advance_to_end();
    assert_eq!(now(read).unwrap(), b"weir");
    let grown = now(block.grow(MIB));
    assert_matches!(grown, Err(AllocError::NoRoom { .. }));
    let mut cached = block.into_evictable();
    let figures = site.pool.inspect().statistics();
    assert_eq!((figures.foreign, figures.evictable), (BYTES, 0));
    assert_eq!(figures.used.current, before.used.current);
    assert_eq!(figures.reserved.current, before.reserved.current);
    let block = cached.take().unwrap();
    let mut freed = block.deallocate();
    eventually(|| {
        site.device.advance(us(10));
        poll(&mut freed).is_ready()
    });
    site.memory.settle();
    eventually(|| site.foreign() == 0);
    site.pool.inspect().check_conserved().unwrap();
}

#[test]
fn memory_is_released_once_after_the_work_of_all_streams() {
    let site = Site::new();
    let block = site.adopt();
    for (number, (work, stream)) in site.streams.iter().enumerate().rev() {
        let argument = stream.record_use(Unordered::Once(&block)).unwrap();
        let operation = Operation::new(us(100 * number as u64 + 100));
        work.submit(operation.writes(argument.address() + number as u64, 1));
    }
    drop(block);
    assert_eq!(site.memory.released(), 1);
    site.device.advance(us(290));
    assert_eq!((site.memory.over_at(), site.foreign()), (None, BYTES));
    site.memory.settle();
    assert!(site.memory.over_at() >= Some(us(300)));
    eventually(|| site.foreign() == 0);
}

/// The memory is a block of another stream as soon as the passages are over. The checker would find that it is used
/// before that.
#[test]
fn next_block_of_the_memory_comes_after_all_work_of_the_first() {
    let site = Site::new();
    let again = Arc::new(Mutex::new(None));
    let (work, next) = site.streams[2].clone();
    let (memory, adopted) = (site.memory.clone(), again.clone());
    let block = adopt(
        &site.streams[0].1,
        Owner::that(&site.memory, |_, after| {
            after.then(move || {
                let block = adopt(&next, Owner::of(&memory));
                use_block(&work, &block, us(10));
                *adopted.lock().unwrap() = Some(block);
            });
        }),
    );
    use_block(&site.streams[0].0, &block, us(500));
    until_freed(&site.streams[1].1, &block);
    drop(block);
    eventually(|| {
        site.device.advance(us(20));
        again.lock().unwrap().is_some()
    });
    assert!(site.device.now() >= us(500));
    assert_eq!(site.memory.released.swap(0, Ordering::SeqCst), 1);
    drop(again.lock().unwrap().take());
    site.memory.settle();
}

/// A release that waits for nothing, which the contract forbids, is found.
#[test]
fn premature_reuse_by_the_owner_is_found() {
    let device = SimDevice::builder().clock(Clock::Manual);
    let device = device.checker(Checker::Collect).build();
    let pool = pool(&device, 16 * MIB);
    let [(work, stream), (_, next)] = streams(&device, &pool);
    let memory = Memory::new(&device);
    let block = adopt(
        &stream,
        Owner::that(&memory, move |memory, after| {
            drop(after);
            drop(adopt(&next, Owner::of(&memory)));
        }),
    );
    use_block(&work, &block, us(500));
    drop(block);
    device.advance_to_end();
    let found = device.take_violations();
    assert!(!found.is_empty());
    let found = found[0].to_string();
    assert!(found.contains("foreign.rs"), "{found}");
}

#[test]
fn further_stream_comes_after_the_adoption_unless_the_memory_is_ready() {
    for is_ready in [false, true] {
        let site = Site::new();
        let [(work, stream), (other_work, other), _] = &site.streams;
        run(work, us(1000)); // fills the memory, as far as its owner is concerned
        let block = adopt(
            stream,
            Box::new(Owner {
                is_ready,
                is_checked: false,
                ..*Owner::of(&site.memory)
            }),
        );
        let argument = other.record_use(Unordered::Once(&block)).unwrap();
        other_work.submit(Operation::new(us(10)).reads(argument.address(), BYTES));
        let done = other.event().unwrap();
        site.device.advance(us(100));
        assert_eq!(done.is_complete().unwrap(), is_ready);
        drop(block);
        site.memory.settle();
    }
}

#[test]
fn foreign_memory_is_out_of_reach_of_peers() {
    let [first, second] = SimDevice::builder().build_host();
    let pool = pool(&first, 16 * MIB);
    pool.peers().enable(&second).unwrap();
    let (_, own) = stream(&first, &pool);
    let guest = pool.register(&second.create_stream()).unwrap();
    assert_eq!(own.device().id(), first.id());
    assert_eq!(guest.device().id(), second.id());
    assert!(own.pool() == *pool && pool.device().id() == first.id());
    let memory = Memory::new(&first);
    let block = adopt(&own, Owner::of(&memory));
    let refused = guest.record_use(Unordered::UntilFreed(&block));
    assert_matches!(refused, Err(StreamError::ForeignDevice));
    drop(block);
    memory.settle();
}

#[test]
fn violation_names_the_location_that_the_owner_gives() {
    let device = SimDevice::builder().clock(Clock::Manual);
    let device = device.checker(Checker::Collect).build();
    let pool = pool(&device, 16 * MIB);
    let [(work, stream), (other, _)] = streams(&device, &pool);
    let memory = Memory::new(&device);
    let location = Location::caller();
    for (location, line) in [(Some(location), location.line()), (None, line!() + 1)] {
        let block = adopt(
            &stream,
            Box::new(Owner {
                location,
                ..*Owner::that(&memory, |_, _| ())
            }),
        );
        use_block(&work, &block, us(10));
        use_block(&other, &block, us(10));
        device.advance_to_end();
        let found = device.take_violations();
        let named = format!("foreign.rs:{line}:");
        assert!(found[0].to_string().contains(&named), "{}", found[0]);
        drop(block);
        device.advance_to_end();
        device.take_violations();
    }
}

/// Its producer tells the checker of a block of another pool: it may be adopted while it is one.
#[test]
fn unchecked_block_may_be_a_block_of_another_pool() {
    let site = Site::new();
    let other = pool(&site.device, 16 * MIB);
    let (work, home) = stream(&site.device, &other);
    let producer = other.try_allocate(&home, BYTES).unwrap();
    use_block(&work, &producer, us(100));
    let (consumer_work, consumer) = &site.streams[1];
    consumer.wait(&home.event().unwrap()).unwrap();
    let released = Arc::new(AtomicUsize::new(0));
    struct Produced(Mutex<Option<Block>>, Arc<AtomicUsize>);
    impl fmt::Debug for Produced {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Produced")
        }
    }
    // SAFETY: the block lives until the passages are over.
    unsafe impl ForeignMemory for Produced {
        fn range(&self) -> (DeviceAddress, u64) {
            let block = self.0.lock().unwrap();
            let block = block.as_ref().unwrap();
            (block.address(), block.size())
        }

        fn is_checked(&self) -> bool {
            false
        }

        fn release(self: Box<Self>, after: Passages) {
            after.then(move || {
                drop(self.0.lock().unwrap().take());
                self.1.fetch_add(1, Ordering::SeqCst);
            });
        }
    }
    let block = adopt(
        consumer,
        Box::new(Produced(Mutex::new(Some(producer)), released.clone())),
    );
    let address = block.address();
    consumer_work.submit(Operation::new(us(500)).reads(address, BYTES));
    drop(block);
    eventually(|| {
        site.device.advance(us(50));
        released.load(Ordering::SeqCst) == 1
    });
    assert!(site.device.now() >= us(600));
    let again = other.try_allocate(&home, BYTES).unwrap();
    drop(again);
    site.device.advance_to_end();
    site.device.assert_ordered();
}

#[test]
fn memory_is_released_without_the_runtime_under_which_it_was_used() {
    let site = Site::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (work, stream) = &site.streams[0];
    let (block, waiting) = runtime.block_on(async {
        let block = site.adopt();
        use_block(work, &block, us(100));
        // A request that waits has spawned a reclaimer on the runtime.
        let all = site.pool.try_allocate(stream, 16 * MIB).unwrap();
        let waiting = not_ready(site.pool.allocate_owned(stream, MIB));
        (block, (waiting, all))
    });
    drop(runtime);
    drop(block);
    site.memory.settle();
    drop(waiting);
    site.pool.inspect().check_conserved().unwrap();
}

#[test]
fn release_may_call_the_pool() {
    let site = Site::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let (pool, stream, count) = (site.pool.clone(), site.streams[1].1.clone(), asked.clone());
    let second = Memory::new(&site.device);
    let also = second.clone();
    let block = adopt(
        &site.streams[0].1,
        Owner::that(&site.memory, move |memory, after| {
            let block = pool.try_allocate(&stream, MIB).unwrap();
            let _ = (
                pool.inspect().statistics(),
                pool.inspect().snapshot(),
                pool.inspect().waiting_requests(1),
            );
            drop((block, adopt(&stream, Owner::of(&also))));
            pool.maintain().reap().unwrap();
            let inside = pool.clone();
            after.then(move || {
                let charge = inside.charge(MIB).unwrap();
                drop((charge, inside.try_allocate(&stream, MIB).unwrap()));
                count.fetch_add(1, Ordering::SeqCst);
            });
            memory.give_back(Passages::default());
        }),
    );
    drop(block);
    second.settle();
    eventually(|| asked.load(Ordering::SeqCst) == 1);
    site.memory.settle();
    eventually(|| site.foreign() == 0);
    site.device.advance_to_end();
    site.pool.inspect().check_conserved().unwrap();
}

#[test]
fn release_that_panics_ends_its_block_alone() {
    let site = Site::new();
    let panicking = |is_late: bool| {
        Owner::that(&site.memory, move |_, after| match is_late {
            false => panic!("a release that panics"),
            true => after.then(|| panic!("a job that panics")),
        })
    };
    let stream = &site.streams[0].1;
    for is_late in [false, true] {
        let block = adopt(stream, panicking(is_late));
        drop(block);
        let mut freed = adopt(stream, panicking(is_late)).deallocate();
        eventually(|| {
            site.device.advance(us(10));
            poll(&mut freed).is_ready()
        });
    }
    eventually(|| site.foreign() == 0);
    assert_eq!(site.memory.released(), 4);
    // What comes next is released, on the same thread.
    let next = Memory::new(&site.device);
    drop(adopt(stream, Owner::of(&next)));
    next.settle();
    drop(site.pool.try_allocate(stream, MIB).unwrap());
    site.pool.inspect().check_conserved().unwrap();
}

/// A panic of the user unwinds through the owner of a block.
#[test]
fn memory_is_released_by_a_block_that_unwinding_drops() {
    let site = Site::new();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let block = site.adopt();
        use_block(&site.streams[0].0, &block, us(100));
        panic!("in user code");
    }));
    assert!(ended.is_err());
    site.memory.settle();
}

#[test]
fn memory_is_released_after_the_end_of_its_pool() {
    for is_closed in [true, false] {
        let site = Site::new();
        let block = site.adopt();
        use_block(&site.streams[0].0, &block, us(100));
        if is_closed {
            site.pool.close();
            let other = Memory::new(&site.device);
            drop(adopt(&site.streams[1].1, Owner::of(&other)));
            assert_eq!(other.released(), 1);
        }
        let Site {
            memory,
            pool,
            streams,
            ..
        } = site;
        drop((pool, streams));
        drop(block);
        memory.settle();
    }
}

#[test]
fn memory_is_released_after_the_launches_of_graphs_that_use_it() {
    let site = Site::new();
    let [(_, stream), _, (_, other)] = &site.streams;
    let block = site.adopt();
    let address = block.address();
    let capture = site.pool.capture(stream).unwrap();
    let kernel = |work: &SimStream, memory: weirpool::device::Argument<'_>| {
        work.submit(Operation::new(us(300)).writes(memory.address(), memory.size()));
    };
    let mut block = block;
    drop(stream.submit(&mut block, kernel).unwrap());
    let graph = capture.end().unwrap();
    drop(block);
    assert_eq!(site.memory.released(), 0, "the graph keeps it");
    graph.launch(other).unwrap();
    drop(graph);
    assert!(site.device.is_mapped(address, BYTES));
    site.device.advance(us(250));
    assert_eq!(site.memory.over_at(), None);
    site.memory.settle();
    assert!(site.memory.over_at() >= Some(us(300)));
}

#[test]
fn memory_of_a_broken_device_never_goes_back() {
    let site = Site::new();
    let block = site.adopt();
    use_block(&site.streams[0].0, &block, us(100));
    site.device
        .faults()
        .script(Call::Record, 1, Fault::Fails(DeviceErrorKind::Sticky));
    drop(block);
    site.device.advance_to_end();
    // Jobs run one after the other: this one is behind.
    let healthy = Site::new();
    drop(healthy.adopt());
    healthy.memory.settle();
    assert_eq!((site.memory.released(), site.memory.over_at()), (1, None));
}

#[test]
fn event_that_cannot_be_recorded_now_is_recorded_later() {
    let site = Site::new();
    let block = site.adopt();
    use_block(&site.streams[0].0, &block, us(100));
    for call in 1..=6 {
        site.device
            .faults()
            .script(Call::Record, call, Fault::Fails(DeviceErrorKind::Other));
    }
    drop(block);
    eventually(|| {
        site.device.advance(us(1000));
        site.memory.over_at().is_some()
    });
    assert_eq!(site.memory.released(), 1);
}

/// Passages are a future as well. Dropping them releases nothing and harms no other.
#[test]
fn passages_are_awaited_or_dropped() {
    let site = Site::new();
    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let (work, stream) = &site.streams[0];
    let block = adopt(
        stream,
        Owner::that(&site.memory, move |_, after| {
            *keep.lock().unwrap() = Some(after);
        }),
    );
    use_block(work, &block, us(100));
    drop(block);
    let mut passages = not_ready(kept.lock().unwrap().take().unwrap());
    site.device.advance(us(50));
    assert!(poll(&mut passages).is_pending());
    site.device.advance(us(50));
    now(&mut passages).unwrap();
    assert_eq!(site.foreign(), BYTES);
    drop(passages);
    assert_eq!(site.foreign(), 0);
    drop(adopt(
        stream,
        Owner::that(&site.memory, |_, after| drop(after)),
    ));
    assert_eq!(site.foreign(), 0);
    now(Passages::default()).unwrap();
}

#[test]
fn charged_bytes_are_the_capacitys() {
    let site = Site::new();
    let (pool, stream) = (&site.pool, &site.streams[0].1);
    drop(pool.try_allocate(stream, 12 * MIB).unwrap());
    site.device.advance_to_end();
    // Free memory is released for it.
    let charge = pool.charge(12 * MIB).unwrap();
    assert_eq!(pool.inspect().statistics().charged, charge.bytes());
    let refused = pool.charge(8 * MIB);
    let Err(AllocError::Exhausted(shortfall)) = refused else {
        panic!("{refused:?}")
    };
    let seen = (shortfall.requested, shortfall.capacity);
    assert_eq!(seen, (8 * MIB, 16 * MIB));
    assert_matches!(pool.charge(17 * MIB), Err(AllocError::TooLarge { .. }));
    let mut waiting = not_ready(pool.allocate(stream, 8 * MIB));
    drop(charge);
    eventually(|| poll(&mut waiting).is_ready());
    assert_eq!(pool.inspect().statistics().charged, 0);
    let charge = pool.charge(MIB).unwrap();
    pool.close();
    assert_matches!(pool.charge(MIB), Err(AllocError::Closed));
    drop(waiting);
    let Site { pool, streams, .. } = site;
    drop((pool, streams));
    drop(charge);
}

/// An exporter waits for writes, and not for reads.
#[test]
fn writes_of_a_block_are_awaited() {
    let site = Site::new();
    let [(work, stream), (other_work, other), (reader_work, reader)] = &site.streams;
    let mut block = site.pool.try_allocate(stream, BYTES).unwrap();
    use_block(work, &block, us(100));
    let written = other.record_use(&mut block).unwrap();
    other_work.submit(Operation::new(us(100)).writes(written.address(), BYTES));
    let read = reader.record_use(&block).unwrap();
    reader_work.submit(Operation::new(us(1000)).reads(read.address(), BYTES));
    let mut writes = not_ready(block.writes().unwrap());
    site.device.advance(us(190));
    assert!(poll(&mut writes).is_pending());
    site.device.advance(us(10));
    now(writes).unwrap();
    drop(block);
    site.device.advance_to_end();
    site.device.assert_ordered();
}
