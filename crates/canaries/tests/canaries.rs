//! Writes beside guarded blocks are found and named, and no report is made of correct programs.

use futures::executor::block_on;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::device::sim::{Clock, Operation, SimDevice, SimStream};
use weirpool::{AllocError, Block, Buffer, CopyError, Pool, Stream};
use weirpool_canaries::{Canaries, Found, Overrun, Side};

const MIB: u64 = 1 << 20;

struct Site {
    device: SimDevice,
    pool: Pool,
    canaries: Canaries,
    streams: [(SimStream, Stream); 3],
    found: Arc<Mutex<Vec<Overrun>>>,
}

impl Site {
    fn new() -> Self {
        let device = SimDevice::builder().memory(1 << 30).clock(Clock::Wall);
        let device = device.build();
        let pool = Pool::builder(device.clone()).capacity(64 * MIB);
        let pool = pool.chunk_bytes(2 * MIB).build().unwrap();
        let found = Arc::<Mutex<Vec<_>>>::default();
        let reports = found.clone();
        let report = move |overrun: Result<_, CopyError>| {
            reports.lock().unwrap().push(overrun.unwrap());
            panic!("a report that panics");
        };
        let streams = std::array::from_fn(|_| {
            let work = device.create_stream();
            let stream = pool.register(&work).unwrap();
            (work, stream)
        });
        Self {
            canaries: Canaries::new(&pool, report).unwrap(),
            device,
            pool,
            streams,
            found,
        }
    }

    fn stream(&self) -> &Stream {
        &self.streams[0].1
    }

    #[track_caller]
    fn block(&self, bytes: u64) -> Block {
        let block = self
            .pool
            .try_allocate(self.stream(), Canaries::around(bytes));
        self.canaries.guard(block.unwrap()).unwrap()
    }

    /// Waits until the guards of all blocks that have ended were compared.
    fn settle(&self) -> Vec<Overrun> {
        block_on(self.pool.drain()).unwrap();
        self.pool.inspect().check_conserved().unwrap();
        let start = Instant::now();
        while self.pool.inspect().statistics().foreign > 0 {
            assert!(start.elapsed() < Duration::from_secs(30));
            thread::yield_now();
        }
        std::mem::take(&mut self.found.lock().unwrap())
    }
}

/// Writes a byte that many bytes from the beginning of a block, once its stream has nothing left to do.
fn write(site: &Site, block: &Block, at: i64) {
    for (_, stream) in &site.streams {
        block_on(stream.synchronize()).unwrap();
    }
    let address = block.address().to_bits().wrapping_add_signed(at);
    site.device.write(address, &[0x5a]).unwrap();
}

#[test]
fn one_byte_before_or_behind_a_block_is_found_when_it_is_freed() {
    let site = Site::new();
    for bytes in [1, 511, 512, 1000, 4096, 3 * MIB] {
        let sides = [(Side::Before, -1), (Side::Behind, bytes as i64)];
        for (side, at) in sides {
            let (line, block) = (line!(), site.block(bytes));
            assert_eq!((block.size(), block.requested()), (bytes, bytes));
            assert!(block.address().to_bits().is_multiple_of(512));
            let address = block.address();
            write(&site, &block, at);
            let (freed_line, freed) = (line!(), block.deallocate());
            drop(freed);
            let found = site.settle();
            let [overrun] = &found[..] else {
                panic!("{found:?}")
            };
            assert_eq!(
                (overrun.side, overrun.distance, overrun.written),
                (side, 0, 1)
            );
            assert_eq!((overrun.address, overrun.bytes), (address, bytes));
            assert_eq!(overrun.allocated.line(), line);
            let Found::Freed(Some(freed)) = overrun.found else {
                panic!("{overrun}")
            };
            assert_eq!((freed.line(), freed.file()), (freed_line, file!()));
            let text = overrun.to_string();
            assert!(
                text.contains("1 byte was written from 0 bytes be"),
                "{text}"
            );
            assert!(text.contains(&format!("canaries.rs:{line}:")), "{text}");
        }
    }
}

#[test]
fn bytes_far_behind_a_block_are_found_up_to_the_end_of_its_guard() {
    let site = Site::new();
    for (at, is_found) in [
        (1000 + 511, true),
        (1000 + 535, true),
        (-512, true),
        (999, false),
    ] {
        let block = site.block(1000); // with its guards, 2,024 bytes of 2,048
        write(&site, &block, at);
        drop(block);
        let found = site.settle();
        assert_eq!(found.len(), usize::from(is_found), "{at}: {found:?}");
        if let Some(overrun) = found.first() {
            assert_eq!(overrun.found, Found::Freed(None), "a drop has no location");
            assert!(overrun.to_string().ends_with("found after it was dropped"));
        }
    }
}

#[test]
fn check_finds_damage_of_live_blocks_once() {
    let site = Site::new();
    let blocks: Vec<_> = (0..4).map(|_| site.block(4096)).collect();
    assert_eq!(block_on(site.canaries.check()).unwrap(), []);
    write(&site, &blocks[2], -1);
    write(&site, &blocks[3], 4097);
    let mut found = block_on(site.canaries.check()).unwrap();
    let line = line!() - 1;
    found.sort_by_key(|overrun| overrun.distance);
    let [before, behind] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (before.address, behind.address),
        (blocks[2].address(), blocks[3].address())
    );
    assert_eq!((before.side, behind.side), (Side::Before, Side::Behind));
    assert_eq!(behind.distance, 1);
    assert!(matches!(before.found, Found::Checked(location) if location.line() == line));
    assert_eq!(
        block_on(site.canaries.check()).unwrap(),
        [],
        "reported once"
    );
    write(&site, &blocks[2], 4096);
    drop(blocks);
    let found = site.settle();
    assert_eq!(
        found.len(),
        1,
        "the other side of the same block: {found:?}"
    );
    assert_eq!(block_on(site.canaries.check()).unwrap(), []);
}

#[test]
fn blocks_of_reservations_and_of_tags_are_guarded() {
    let site = Site::new();
    let reservation = block_on(site.pool.reserve(8 * MIB)).unwrap();
    for at in [-1, 4096] {
        let block = reservation.allocate(site.stream(), Canaries::around(4096));
        let block = site.canaries.guard(block.unwrap()).unwrap();
        assert!(reservation.left() < 8 * MIB);
        write(&site, &block, at);
        drop(block.deallocate());
        let start = Instant::now();
        while reservation.left() < 8 * MIB {
            assert!(start.elapsed() < Duration::from_secs(30));
            thread::yield_now();
        }
    }
    drop(reservation);
    assert_eq!(site.settle().len(), 2);
}

#[test]
fn guarded_block_is_a_buffer_and_does_not_grow() {
    let site = Site::new();
    let stream = site.stream();
    let mut block = site.block(4096);
    let grown = block_on(block.grow(4096));
    assert!(matches!(grown, Err(AllocError::NoRoom { .. })), "{grown:?}");
    let mut buffer = Buffer::<u32>::from_block(block, 1024).unwrap();
    let mut end = buffer.slice_mut(1000..1024).unwrap();
    drop(end.upload(stream, &[7; 24]).unwrap());
    assert!(buffer.slice_mut(1000..1025).is_err());
    let last = block_on(buffer.download(stream, 1023..1024).unwrap()).unwrap();
    assert_eq!(last, [7]);
    drop(buffer);
    assert_eq!(site.settle(), []);
}

#[test]
fn too_small_blocks_and_blocks_of_a_capture_are_refused() {
    let site = Site::new();
    let (pool, stream) = (&site.pool, site.stream());
    let small = pool.try_allocate(stream, Canaries::around(0)).unwrap();
    let refused = site.canaries.guard(small).unwrap_err();
    assert!(
        matches!(refused, CopyError::OutOfBounds { .. }),
        "{refused}"
    );
    let memory = pool.graph_memory();
    let capture = memory.capture(stream).unwrap();
    let captured = pool.try_allocate(stream, Canaries::around(4096)).unwrap();
    let refused = site.canaries.guard(captured).unwrap_err();
    assert!(matches!(refused, CopyError::Device(_)), "{refused}");
    drop(capture);
    drop(memory);
    assert_eq!(site.settle(), []);
}

/// Work on several streams, which the checker of the device follows, never touches a guard.
#[test]
fn no_report_is_made_of_correct_programs() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let site = Site::new();
        let mut blocks = Vec::new();
        for _ in 0..120 {
            let (work, stream) = &site.streams[random.usize(..3)];
            match random.u32(..8) {
                0..3 => {
                    let bytes = random.u64(1..16384);
                    let request = site.pool.allocate(stream, Canaries::around(bytes));
                    let block = request.timeout(Duration::from_secs(5)).blocking().unwrap();
                    blocks.push(site.canaries.guard(block).unwrap());
                }
                3 | 4 if !blocks.is_empty() => {
                    let at = random.usize(..blocks.len());
                    let argument = stream.record_use(&mut blocks[at]).unwrap();
                    let operation = Operation::new(Duration::from_micros(random.u64(1..50)));
                    work.submit(operation.writes(argument.address(), argument.size()));
                }
                5 if !blocks.is_empty() => {
                    let at = random.usize(..blocks.len());
                    let bytes = vec![random.u8(..); blocks[at].size() as usize];
                    drop(blocks[at].upload(stream, 0, &bytes).unwrap());
                    blocks[at].move_to(stream).unwrap();
                }
                6 if !blocks.is_empty() => {
                    let block: Block = blocks.swap_remove(random.usize(..blocks.len()));
                    match random.bool() {
                        true => drop(block.deallocate()),
                        false => thread::spawn(move || drop(block)).join().unwrap(),
                    }
                }
                7 if random.u32(..8) == 0 => {
                    assert_eq!(block_on(site.canaries.check()).unwrap(), [], "seed {seed}");
                }
                _ => {}
            }
        }
        drop(blocks);
        assert_eq!(site.settle(), [], "seed {seed}");
        site.device.assert_ordered();
    }
}

#[test]
fn canaries_may_end_before_their_blocks() {
    let site = Site::new();
    let block = site.block(4096);
    write(&site, &block, -1);
    let Site {
        pool,
        canaries,
        found,
        device,
        streams,
    } = site;
    drop((canaries, streams));
    drop(block);
    block_on(pool.drain()).unwrap();
    assert_eq!(found.lock().unwrap().len(), 1);
    drop(pool);
    let start = Instant::now();
    while device.counters().physical_in_use > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the thread lets go of the pool"
        );
        thread::yield_now();
    }
}
