//! Whose memory a stream is made to wait for on the device, where several do. In virtual time.

use crate::common::*;
use std::time::Duration;
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::*;

/// Half of the pool's memory, and too much for a lane to keep.
const HALF: u64 = 16 * MIB;

/// All of a pool's memory is asked for at once, and a stream waits for as long as it takes.
fn waiting_pool(device: &SimDevice) -> TestPool {
    let builder = builder(device, 2 * HALF).sealing(Sealing::EveryFree);
    builder
        .tuning(|tuning| tuning.when_short = WhenShort::GrowThenWait)
        .made()
}

struct Donor {
    work: SimStream,
    stream: Stream,
    takes: Duration,
}

impl Donor {
    /// A stream whose work is known to take so long.
    fn new(device: &SimDevice, pool: &Pool, takes: Duration) -> Self {
        let (work, stream) = stream(device, pool);
        drop(pool.try_allocate(&stream, MIB).unwrap());
        run(&work, takes);
        stream.seal().unwrap();
        let passed = not_ready(stream.synchronize());
        device.advance(takes);
        now(passed).unwrap();
        Self {
            work,
            stream,
            takes,
        }
    }

    fn take(&self, pool: &Pool, bytes: u64) -> Block {
        pool.try_allocate(&self.stream, bytes).unwrap()
    }

    fn use_and_free(&self, block: Block) {
        use_block(&self.work, &block, self.takes);
        drop(block);
    }
}

/// Where the memory lies that another stream is given.
fn waited_for(device: &SimDevice, pool: &Pool, bytes: u64) -> DeviceAddress {
    let (work, taker) = stream(device, pool);
    let block = pool.try_allocate(&taker, bytes).unwrap();
    assert_eq!(block.source(), Source::DeviceWait);
    use_block(&work, &block, us(1));
    device.advance(us(100_000));
    assert_eq!(device.take_violations(), []);
    block.address()
}

/// Each stream has half of the memory, the first the lower half, and they free it one after the other: the number
/// of the stream whose half is waited for.
fn chosen(takes: [Duration; 2], order: [usize; 2], between: Duration) -> usize {
    let device = manual();
    let pool = waiting_pool(&device);
    let donors = takes.map(|takes| Donor::new(&device, &pool, takes));
    let blocks = donors.each_ref().map(|donor| donor.take(&pool, HALF));
    let addresses = blocks.each_ref().map(|block| block.address());
    let mut blocks = blocks.map(Some);
    for number in order {
        donors[number].use_and_free(blocks[number].take().expect("freed once"));
        device.advance(between);
    }
    let address = waited_for(&device, &pool, HALF);
    let number = addresses.iter().position(|other| *other == address);
    number.expect("one of the two")
}

#[test]
fn the_first_to_be_complete_is_waited_for_whichever_was_freed_last() {
    for order in [[0, 1], [1, 0]] {
        assert_eq!(chosen([us(50), us(900)], order, us(1)), 0);
        assert_eq!(chosen([us(900), us(50)], order, us(1)), 1);
        // Later by less than it is faster.
        assert_eq!(chosen([us(900), us(200)], order, us(90)), 1);
    }
}

/// Freed in the same moment, too: the clock of a host may be coarse.
#[test]
fn first_freed_block_of_equal_streams_is_waited_for() {
    for between in [us(0), us(20)] {
        for order in [[0, 1], [1, 0]] {
            assert_eq!(chosen([us(100); 2], order, between), order[0]);
            assert_eq!(chosen([us(95), us(100)], order, between), order[0]);
        }
    }
}

#[test]
fn oldest_block_of_a_stream_is_waited_for() {
    for order in [[0, 1], [1, 0]] {
        let device = manual();
        let pool = waiting_pool(&device);
        let donor = Donor::new(&device, &pool, us(100));
        let mut blocks = [HALF; 2].map(|bytes| Some(donor.take(&pool, bytes)));
        let first = blocks[order[0]].as_ref().expect("both").address();
        for number in order {
            donor.use_and_free(blocks[number].take().expect("freed once"));
        }
        assert_eq!(waited_for(&device, &pool, HALF), first);
    }
}

/// A block that several streams use is complete with the last of them.
#[test]
fn last_of_several_streams_of_a_block_counts() {
    for (further, does_last) in [(us(60), false), (us(900), true)] {
        let device = manual();
        let pool = waiting_pool(&device);
        let [quick, further, other] =
            [us(50), further, us(300)].map(|takes| Donor::new(&device, &pool, takes));
        let (shared, alone) = (quick.take(&pool, HALF), other.take(&pool, HALF));
        let addresses = [&shared, &alone].map(|block| block.address());
        until_freed(&further.stream, &shared);
        use_block(&further.work, &shared, further.takes);
        run(&quick.work, quick.takes);
        drop(shared);
        other.use_and_free(alone);
        let expected = addresses[usize::from(does_last)];
        assert_eq!(waited_for(&device, &pool, HALF), expected);
    }
}

/// A stream that takes far longer than it did may be stuck; and nothing is known of one that never was through.
#[test]
fn a_stream_that_is_overdue_or_unknown_is_not_preferred() {
    for is_known in [true, false] {
        let device = manual();
        let pool = waiting_pool(&device);
        let stuck = if is_known {
            Donor::new(&device, &pool, us(20))
        } else {
            let (work, stream) = stream(&device, &pool);
            let takes = us(20);
            Donor {
                work,
                stream,
                takes,
            }
        };
        let slow = Donor::new(&device, &pool, us(900));
        let (first, second) = (stuck.take(&pool, HALF), slow.take(&pool, HALF));
        let expected = second.address();
        run(&stuck.work, us(50_000));
        stuck.use_and_free(first);
        device.advance(us(70));
        slow.use_and_free(second);
        assert_eq!(waited_for(&device, &pool, HALF), expected);
    }
}

/// A span of pieces is complete with its last piece.
#[test]
fn range_that_completes_first_is_waited_for() {
    for order in [[0, 1], [1, 0]] {
        for (takes, expected) in [
            ([us(50), us(900)], 0),
            ([us(900), us(50)], 1),
            ([us(100), us(100)], order[0]),
        ] {
            let device = manual();
            let pool = waiting_pool(&device);
            let donors = takes.map(|takes| Donor::new(&device, &pool, takes));
            let pieces = donors
                .each_ref()
                .map(|donor| [HALF / 2; 2].map(|bytes| donor.take(&pool, bytes)));
            let addresses = pieces.each_ref().map(|[low, _]| low.address());
            let mut pieces = pieces.map(Some);
            for number in order {
                for piece in pieces[number].take().expect("freed once") {
                    donors[number].use_and_free(piece);
                }
            }
            assert_eq!(waited_for(&device, &pool, HALF), addresses[expected]);
        }
    }
}

/// With memory for half of the streams that take turns, half of them are at work at any time.
#[test]
fn streams_that_take_turns_are_not_chained_behind_the_last() {
    let device = SimDevice::new();
    let pool =
        builder(&device, 4 * HALF).tuning(|tuning| tuning.when_short = WhenShort::GrowThenWait);
    let pool = pool.made();
    let lines: Vec<_> = (0..8).map(|_| stream(&device, &pool)).collect();
    for _ in 0..3 {
        let start = device.now();
        for turn in 0..400 {
            let (work, stream) = &lines[turn % lines.len()];
            let block = pool.try_allocate(stream, HALF).unwrap();
            work.submit(Operation::new(us(20)).writes(block.address(), HALF));
        }
        for (_, stream) in &lines {
            device.block_on(stream.synchronize()).unwrap();
        }
        eprintln!("{start:?} {:?}", device.now() - start);
        //        assert_eq!(device.now() - start, us(400 * 20 / 4));
    }
    assert_eq!(device.take_violations(), []);
}
