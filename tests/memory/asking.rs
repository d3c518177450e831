//! Complete memory that no stream was asked about yet, while a block of exactly the size is on its way and new memory would
//! do as well. A query takes time, and whatever the pool does to make fewer, it must not overlook such memory.

use crate::common::*;
use weirpool::device::sim::{Backing, Checker, SimBuilder, SimDevice, SimStream};
use weirpool::*;

/// The size of the requests. A block of that size is pending on a stream that stays busy.
const SIZE: u64 = 8 * MIB;

/// A pool whose streams were asked many times, and just now.
struct Tried {
    device: SimDevice,
    taker: Stream,
    /// Keeps blocks and streams.
    _held: Vec<Block>,
    _streams: Vec<(SimStream, Stream)>,
    pool: TestPool,
}

impl Tried {
    /// Also frees a block of twice the size on a stream that needs 10 us more.
    fn new(device: SimBuilder, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let device = device.build();
        let pool = set(builder(&device, 512 * MIB)).made();
        let [slow, quick, taker] = streams(&device, &pool);
        let blocks = [(&slow, SIZE, 100_000), (&quick, 2 * SIZE, 10)].map(|(on, bytes, time)| {
            let block = pool.try_allocate(&on.1, bytes).unwrap();
            use_block(&on.0, &block, us(time));
            block
        });
        drop(blocks);
        let grown = |_| pool.try_allocate(&taker.1, SIZE).unwrap();
        let held: Vec<_> = (0..40).map(grown).collect();
        assert!(held.iter().all(|block| block.source() == Source::Grown));
        Self {
            device,
            pool,
            taker: taker.1.clone(),
            _held: held,
            _streams: vec![slow, quick, taker],
        }
    }

    /// Lets the larger block be complete.
    fn complete(&self) {
        self.device.advance(us(10));
    }
}

#[test]
fn complete_block_comes_before_a_wait_on_the_device() {
    for limit in [WhenShort::GrowFirst, WhenShort::GrowThenWait] {
        let tried = Tried::new(manual_builder(), |builder| {
            builder.tuning(|tuning| tuning.when_short = limit)
        });
        // Another process takes all that is left.
        let _others = tried.device.faults().occupy(u64::MAX);
        tried.complete();
        let block = tried.pool.try_allocate(&tried.taker, SIZE).unwrap();
        assert_eq!(block.source(), Source::Free, "{limit:?}");
    }
}

#[test]
fn every_stream_is_asked_before_a_request_fails() {
    let reuse = only_host_waits();
    let tried = Tried::new(manual_builder(), |builder| {
        builder.tuning(|tuning| tuning.reuse = reuse)
    });
    let _others = tried.device.faults().occupy(u64::MAX);
    tried.pool.try_allocate(&tried.taker, SIZE).unwrap_err();
    tried.complete();
    let block = tried.pool.try_allocate(&tried.taker, SIZE).unwrap();
    assert_eq!(block.source(), Source::Free);
}

/// Memory calls block here, so that a poll makes none beyond those of a chunk or two.
#[test]
fn first_poll_finds_complete_memory_where_growth_needs_a_thread() {
    for is_virtual in [true, false] {
        let device = manual_builder().virtual_memory(is_virtual);
        let device = device.blocking_memory_calls(true);
        let tried = Tried::new(device, |builder| builder.queue_limit(0));
        tried.complete();
        let block = ready(tried.pool.allocate(&tried.taker, SIZE)).unwrap();
        assert_eq!(block.source(), Source::Free, "virtual: {is_virtual}");
        let layouts = [Layout::new(4 * MIB), Layout::new(2 * MIB)];
        let blocks = ready(tried.pool.allocate_many(&tried.taker, layouts));
        assert!(
            blocks
                .unwrap()
                .iter()
                .all(|block| block.source() == Source::Free)
        );
        assert_eq!(tried.pool.inspect().statistics().waits.served, 0);
    }
}

/// The result of a future that is ready at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match poll(&mut Box::pin(future)) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("the request waits"),
    }
}

/// Streams that stay busy are registered first, so that a search comes to them first.
#[test]
fn memory_of_a_stream_is_found_whatever_others_are_asked() {
    for (busy, step) in [(1, 10), (8, 10), (8, 100), (32, 500)] {
        let builder = manual_builder().memory(1 << 34);
        let device = builder.backing(Backing::AddressesOnly).build();
        let pool = pool(&device, 1 << 33);
        let busy: Vec<_> = (0..busy).map(|_| stream(&device, &pool)).collect();
        let [quick, taker] = streams(&device, &pool);
        let all: Vec<_> = busy.iter().chain([&quick]).collect();
        let idle = pool.try_allocate(&quick.1, 4096 * MIB).unwrap();
        let blocks: Vec<_> = all
            .iter()
            .map(|on| pool.try_allocate(&on.1, SIZE).unwrap())
            .collect();
        busy.iter().for_each(|on| run(&on.0, us(10_000_000)));
        run(&quick.0, us(10));
        drop((blocks, idle));
        let mut held = Vec::new();
        for _ in 0..200 {
            device.advance(us(step));
            held.push(pool.try_allocate(&taker.1, SIZE).unwrap());
        }
        let grown = held.iter().filter(|block| block.source() == Source::Grown);
        // As many as come within 64 us: a search may leave out a stream that was asked a moment ago.
        let most = 64_u64.div_ceil(step) + 1;
        let grown = grown.count() as u64;
        assert!(grown <= most, "{} busy, {step} us: {grown}", busy.len());
    }
}

/// The taker's blocks go to further streams, and merge while they are pending: no block has exactly the size, except for
/// one that stays pending.
#[test]
fn steady_loop_holds_little_more_than_its_live_memory() {
    const SMALL: u64 = 256 << 10;
    for further in [8, 128] {
        let builder = manual_builder().memory(1 << 34).checker(Checker::Off);
        let device = builder.backing(Backing::AddressesOnly).build();
        let pool = pool(&device, 1 << 33);
        let slow = stream(&device, &pool);
        let lines: Vec<_> = (0..further).map(|_| stream(&device, &pool)).collect();
        let taker = stream(&device, &pool);
        let block = pool.try_allocate(&slow.1, SMALL).unwrap();
        run(&slow.0, us(100_000_000));
        drop(block);
        slow.1.seal().unwrap();
        let mut live = std::collections::VecDeque::new();
        for at in 0..20_000 {
            device.advance(us(2));
            let block = pool.try_allocate(&taker.1, SMALL).unwrap();
            let on = &lines[at / 64 % further];
            run(&on.0, us(1));
            on.1.record_use(Unordered::UntilFreed(&block)).unwrap();
            live.push_back(block);
            if live.len() > 8 {
                live.pop_front();
            }
        }
        let held = pool.inspect().statistics().reserved.high;
        // 2 MiB are live, and 8 MiB are allocated in 64 us.
        assert!(held <= 16 * MIB, "{further} streams: {} MiB", held / MIB);
    }
}
