//! Streams that alternate with a large block: how long it stays in their cache, and how others get it.

use crate::common::*;
use std::task::Poll;
use weirpool::device::sim::{Call, Checker, SimDevice, SimStream};
use weirpool::*;
use weirpool_compat::RawPool;

const LARGE: u64 = 8 * MIB;

/// After this many turns, a stream has shown that it reuses the block.
const TURNS: usize = 10;

fn pool(device: &SimDevice, capacity: u64) -> TestPool {
    builder(device, capacity).made()
}

/// Allocates, uses and frees a block. Returns its source.
fn turn(pool: &Pool, (work, stream): &(SimStream, Stream), bytes: u64) -> Source {
    let block = pool.try_allocate(stream, bytes).unwrap();
    use_block(work, &block, us(10));
    block.source()
}

fn take_turns(pool: &Pool, line: &(SimStream, Stream)) {
    for _ in 0..TURNS {
        turn(pool, line, LARGE);
    }
    assert_eq!(pool.inspect().statistics().cached_in_lanes, LARGE);
}

#[test]
fn streams_that_alternate_make_no_device_calls() {
    let device = manual();
    let pool = pool(&device, 128 * MIB);
    let lines: [_; 4] = streams(&device, &pool);
    for line in lines.iter().cycle().take(TURNS * lines.len()) {
        turn(&pool, line, LARGE);
    }
    let calls = || device.counters().device_calls;
    let before = calls();
    for line in lines.iter().cycle().take(100) {
        assert_eq!(turn(&pool, line, LARGE), Source::Lane);
    }
    assert_eq!(calls(), before);
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 4 * LARGE);
    assert_eq!(reserved(&pool), 4 * LARGE);
    device.advance(us(10_000));
}

/// A search of the stream's cache that counted twice would end the alternation. Each way is tried with an observer of blocks
/// and without: they take different paths.
#[test]
fn every_way_to_ask_finds_the_block_that_alternates() {
    type Way = fn(&Pool, &Stream) -> Block;
    let ways: [Way; 5] = [
        |pool, stream| pool.try_allocate(stream, LARGE).unwrap(),
        |pool, stream| pool.allocate(stream, LARGE).try_now().unwrap(),
        |pool, stream| pool.allocate(stream, LARGE).blocking().unwrap(),
        |pool, stream| now(pool.allocate(stream, LARGE)).unwrap(),
        |pool, stream| now(pool.allocate_owned(stream, LARGE)).unwrap(),
    ];
    for checker in [Checker::Off, Checker::Panic] {
        for (number, way) in ways.into_iter().enumerate() {
            let device = manual_builder().checker(checker).build();
            let pool = pool(&device, 128 * MIB);
            let (work, stream) = stream(&device, &pool);
            for turn in 0..100 {
                let block = way(&pool, &stream);
                use_block(&work, &block, us(10));
                if turn >= TURNS {
                    let turn = format!("way {number}, turn {turn}, {checker:?}");
                    assert_eq!(block.source(), Source::Lane, "{turn}");
                }
            }
            let Statistics {
                allocations, hits, ..
            } = pool.inspect().statistics();
            assert_eq!((allocations, hits.total()), (100, 100));
        }
    }
}

/// The requests of a capture are not the stream's own: they take memory of the graph.
#[test]
fn capture_does_not_end_the_alternation() {
    for checker in [Checker::Off, Checker::Panic] {
        let device = manual_builder().checker(checker).build();
        let pool = pool(&device, 128 * MIB);
        let line = stream(&device, &pool);
        take_turns(&pool, &line);
        let capture = pool.capture(&line.1).unwrap();
        drop(pool.try_allocate(&line.1, LARGE).unwrap());
        drop(now(pool.allocate(&line.1, 2 * LARGE)).unwrap());
        drop(capture.end().unwrap());
        device.advance(us(10_000));
        turn(&pool, &line, LARGE);
        assert_eq!(turn(&pool, &line, LARGE), Source::Lane, "{checker:?}");
    }
}

/// The free of a block that may come back records no event. The stream's next request of another size does it instead.
#[test]
fn request_of_another_size_seals_the_block_that_the_stream_left() {
    let (device, pool, [line, other]) = set_up(128 * MIB);
    take_turns(&pool, &line);
    // Complete memory for the requests of another size: they search no further.
    turn(&pool, &other, 2 * LARGE);
    device.advance(us(10_000));
    pool.maintain().reap().unwrap();
    let records = || device.counters().calls(Call::Record);
    let before = records();
    turn(&pool, &line, LARGE);
    assert_eq!(records(), before);
    let _other = pool.try_allocate(&line.1, 4 * MIB).unwrap();
    assert_eq!(records(), before + 1);
    let _another = pool.try_allocate(&line.1, 4 * MIB).unwrap();
    assert_eq!(records(), before + 1, "once");
}

/// Another stream grows the pool instead. If the block is not reused for a while, any stream may take it.
#[test]
fn large_block_stays_with_its_stream_for_a_while() {
    let (device, pool, [line, other]) = set_up(128 * MIB);
    take_turns(&pool, &line);
    device.advance(us(150));
    assert_eq!(reserved(&pool), LARGE);
    let own = pool.try_allocate(&other.1, LARGE).unwrap();
    assert_eq!((own.source(), reserved(&pool)), (Source::Grown, 2 * LARGE));
    assert_eq!(turn(&pool, &line, LARGE), Source::Lane);
    device.advance(us(250));
    let more = pool.try_allocate(&other.1, LARGE).unwrap();
    assert_eq!((more.source(), reserved(&pool)), (Source::Free, 2 * LARGE));
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    assert_ne!(turn(&pool, &line, LARGE), Source::Lane);
}

/// A size that the cache never keeps is no other large size: the stream goes on alternating.
#[test]
fn block_too_large_for_the_cache_does_not_end_the_alternation() {
    let device = manual();
    let pool = pool(&device, 512 * MIB);
    let line = stream(&device, &pool);
    // A capacity that was below the bytes held, and is not any more, changes nothing.
    let held = pool.try_allocate(&line.1, 64 * MIB).unwrap();
    let _ = [32, 512].map(|capacity| pool.resize(capacity * MIB).unwrap());
    drop(held);
    take_turns(&pool, &line);
    for _ in 0..3 {
        assert_eq!(turn(&pool, &line, LARGE), Source::Lane);
        drop(pool.try_allocate(&line.1, 200 * MIB).unwrap());
    }
}

/// If the pool cannot grow, another stream gets the block immediately, once its last use is complete.
#[test]
fn request_does_not_wait_for_cached_large_blocks() {
    let (device, pool, [line, other]) = set_up_with(|device| host_waits_only(device, 16 * MIB));
    let rest = pool.try_allocate(&other.1, 16 * MIB - LARGE).unwrap();
    for _ in 0..TURNS {
        turn(&pool, &line, LARGE);
    }
    device.advance(us(1000));
    turn(&pool, &line, LARGE);
    assert_eq!(pool.inspect().statistics().cached_in_lanes, LARGE);
    // The last use is still running.
    assert!(pool.try_allocate(&other.1, LARGE).is_err());
    let mut waiting = not_ready(pool.allocate(&other.1, LARGE));
    device.advance(us(10));
    let block = now(&mut waiting).expect("it is complete");
    use_block(&other.0, &block, us(10));
    drop((block, rest));
    device.advance(us(10));
}

/// A block in the large-block cache has no event yet. The next free of its stream records one, or the next allocation
/// of another size. If the block is reused, it needs none.
#[test]
fn event_of_a_large_block_is_recorded_by_the_next_call_that_does_not_take_it() {
    let device = manual();
    let pool = pool(&device, 128 * MIB);
    let line = stream(&device, &pool);
    take_turns(&pool, &line);
    let records = || device.counters().calls(Call::Record);
    let before = records();
    turn(&pool, &line, LARGE);
    assert_eq!(records(), before);
    let other_size = pool.try_allocate(&line.1, 3 * LARGE).unwrap();
    assert_eq!(records(), before + 1);
    turn(&pool, &line, LARGE);
    drop(other_size);
    assert!(records() > before + 1);
}

/// A stream that also takes other sizes frees each block for all streams.
#[test]
fn stream_that_does_not_alternate_caches_no_large_block() {
    let device = manual();
    let pool = pool(&device, 128 * MIB);
    let line = stream(&device, &pool);
    for _ in 0..TURNS {
        turn(&pool, &line, LARGE);
        turn(&pool, &line, 2 * LARGE);
    }
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    for _ in 0..TURNS {
        let both = [LARGE, LARGE].map(|bytes| pool.try_allocate(&line.1, bytes).unwrap());
        drop(both);
    }
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
}

/// With settings that favour other streams or the device, large blocks are not cached.
#[test]
fn no_large_block_is_cached_where_memory_comes_first() {
    let device = manual();
    let builder = || builder(&device, 128 * MIB);
    let pools = [
        builder().tuning(|tuning| tuning.when_short = WhenShort::WaitBriefly),
        builder().release_threshold(ReleaseThreshold::Bytes(64 * MIB)),
        builder()
            .tuning(|tuning| tuning.coalesce = Some(CoalesceHeuristic::percent_releasable(50))),
        builder().sealing(Sealing::EveryFree),
        builder().tuning(|tuning| tuning.lane_bytes = LARGE / 8 - 1),
        builder().tuning(|tuning| tuning.lane_bytes = 0),
    ];
    for pool in pools {
        let pool = pool.made();
        let line = stream(&device, &pool);
        for _ in 0..TURNS {
            turn(&pool, &line, LARGE);
        }
        assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    }
}

/// The cache has four slots, one for each size.
#[test]
fn cached_large_blocks_are_bounded() {
    let device = manual();
    let pool = pool(&device, 512 * MIB);
    let line = stream(&device, &pool);
    for bytes in [LARGE, 2 * LARGE, 3 * LARGE, 6 * LARGE] {
        for _ in 0..TURNS {
            turn(&pool, &line, bytes);
        }
    }
    // The last size exceeds the bound.
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 6 * LARGE);
    drop(pool.try_allocate(&line.1, 512 * MIB).unwrap());
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    drop(line);
    device.advance(us(10_000));
}

/// An external stream may be destroyed after any free on it, so each free records its event itself.
#[test]
fn external_stream_owes_no_event_for_a_large_block() {
    let device = manual();
    let pool = pool(&device, 16 * MIB);
    let raw = RawPool::new(&pool);
    let work = device.create_stream();
    let line = (work.clone(), raw.stream(&External::of(&work)).unwrap());
    let other = stream(&device, &pool);
    take_turns(&pool, &line);
    assert_eq!(turn(&pool, &line, LARGE), Source::Lane);
    let block = pool.try_allocate(&line.1, LARGE).unwrap();
    use_block(&work, &block, us(10));
    let mut deallocation = not_ready(block.deallocate());
    device.advance(us(1000));
    let all = pool.try_allocate(&other.1, 16 * MIB).unwrap();
    use_block(&other.0, &all, us(10));
    assert_eq!(poll(&mut deallocation), Poll::Ready(Ok(())));
}

/// A cached block above another block does not prevent its growth.
#[test]
fn cached_large_block_makes_room_for_growth() {
    let (_, pool, [line, other]) = set_up(16 * MIB);
    let mut block = pool.try_allocate(&other.1, LARGE).unwrap();
    take_turns(&pool, &line);
    block.grow(LARGE).try_now().unwrap();
    use_block(&other.0, &block, us(10));
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    pool.inspect().check().unwrap();
}

/// The pieces of a reservation are exchanged for a contiguous block that a stream caches.
#[test]
fn draw_exchanges_pieces_for_a_cached_large_block() {
    let (device, pool, [line, other]) =
        set_up_with(|device| builder(device, 16 * MIB).chunk_bytes(16 * MIB));
    let reservation = pool.reserve(LARGE).try_now().unwrap();
    let mut pieces: Vec<_> = (0..8)
        .map(|_| Some(reservation.allocate(&other.1, MIB).unwrap()))
        .collect();
    take_turns(&pool, &line);
    device.advance(us(1000));
    pieces
        .iter_mut()
        .step_by(2)
        .for_each(|piece| drop(piece.take()));
    let one = reservation.allocate(&other.1, 3 * MIB).unwrap();
    use_block(&other.0, &one, us(10));
    assert_eq!(pool.inspect().statistics().cached_in_lanes, 0);
    pool.inspect().check().unwrap();
}

/// Registered and external streams alternate, among others that wait, draw, grow, trim and resize. Once all work is
/// complete, no request is left waiting, and all memory returns.
#[test]
fn no_memory_is_lost_while_streams_alternate_among_others() {
    for seed in 0..200 {
        let device = manual();
        let reuse = Reuse {
            internal_dependencies: seed % 2 == 0,
            ..Reuse::ALL
        };
        let builder = builder(&device, 64 * MIB).tuning(|tuning| tuning.reuse = reuse);
        let is_sharded = seed % 3 == 0;
        let builder = match is_sharded {
            true => builder,
            false => builder.chunk_bytes(4 * MIB),
        };
        let crossroads = Crossroads::new(device, builder.made(), seed);
        for (_, stream) in crossroads.lines.iter().filter(|_| is_sharded) {
            weirpool::testing::give_threads_caches(stream);
        }
        crossroads.play();
    }
}

/// A random mix of all operations.
struct Crossroads {
    device: SimDevice,
    pool: TestPool,
    lines: Vec<(SimStream, Stream)>,
    random: fastrand::Rng,
    held: Vec<(usize, Block)>,
}

impl Crossroads {
    fn new(device: SimDevice, pool: TestPool, seed: u64) -> Self {
        let raw = RawPool::new(&pool);
        let mut lines: Vec<_> = (0..3).map(|_| stream(&device, &pool)).collect();
        let work = device.create_stream();
        let external = raw.stream(&External::of(&work)).unwrap();
        lines.push((work, external));
        Self {
            device,
            pool,
            lines,
            random: fastrand::Rng::with_seed(seed),
            held: Vec::new(),
        }
    }

    fn play(mut self) {
        for _ in 0..60 {
            self.step();
            self.pool.inspect().check().unwrap();
        }
        self.held.clear();
        self.device.advance(us(100_000));
        now(self.pool.drain()).unwrap();
        self.pool.inspect().check_conserved().unwrap();
        let all = self.pool.try_allocate(&self.lines[0].1, 64 * MIB).unwrap();
        use_block(&self.lines[0].0, &all, us(10));
    }

    fn step(&mut self) {
        let at = self.random.usize(..self.lines.len());
        let bytes = self.random.u64(1..=6) * 4 * MIB;
        let line = self.lines[at].clone();
        match self.random.u8(..12) {
            0..=4 => self.take_turns(&line, bytes),
            5 => {
                if let Ok(block) = self.pool.try_allocate(&line.1, bytes) {
                    use_block(&line.0, &block, us(20));
                    self.held.push((at, block));
                }
            }
            6 if !self.held.is_empty() => {
                let at = self.random.usize(..self.held.len());
                drop(self.held.swap_remove(at));
            }
            7 if !self.held.is_empty() => {
                let which = self.random.usize(..self.held.len());
                let (at, block) = &mut self.held[which];
                if block.grow(4 * MIB).try_now().is_ok() {
                    use_block(&self.lines[*at].0, block, us(10));
                }
            }
            8 => self.wait(&line, bytes),
            9 => {
                if let Ok(reservation) = self.pool.reserve(bytes).try_now() {
                    let block = reservation.allocate(&line.1, 4 * MIB).unwrap();
                    use_block(&line.0, &block, us(10));
                }
            }
            10 => drop(self.pool.trim_to(16 * MIB).unwrap()),
            _ => self.device.advance(us(self.random.u64(1..400))),
        }
    }

    fn take_turns(&self, line: &(SimStream, Stream), bytes: u64) {
        for _ in 0..TURNS {
            let Ok(block) = self.pool.try_allocate(&line.1, bytes) else {
                return;
            };
            use_block(&line.0, &block, us(10));
        }
    }

    /// Waits for memory. Memory that is not held must be granted once it is complete.
    fn wait(&mut self, line: &(SimStream, Stream), bytes: u64) {
        let mut waiting = self.pool.allocate(&line.1, bytes);
        let mut polled = poll(&mut waiting);
        let held: u64 = self.held.iter().map(|(_, block)| block.size()).sum();
        if polled.is_pending() && held + bytes > 64 * MIB {
            return;
        }
        if polled.is_pending() {
            self.device.advance(us(10_000));
            polled = poll(&mut waiting);
        }
        let Poll::Ready(block) = polled else {
            panic!("{bytes} bytes wait for nothing: {:?}", self.pool);
        };
        use_block(&line.0, &block.unwrap(), us(10));
    }
}
