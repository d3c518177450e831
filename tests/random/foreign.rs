//! Blocks of memory of an owner that uses it again as soon as it may, among blocks of a pool. The checker of the device
//! finds a use that is not ordered.

use crate::common::*;
use crate::over_seeds;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weirpool::device::Device;
use weirpool::device::sim::{Operation, SimDevice};
use weirpool::device::{DeviceAddress, MemoryKind};
use weirpool::extend::{Charge, ForeignMemory, Passages};
use weirpool::{Block, Pool, Stream};

const PIECE: u64 = 2 * MIB;
const PIECES: usize = 4;

#[derive(Debug, Default)]
struct Arena {
    free: Mutex<Vec<u64>>,
    released: AtomicU64,
}

#[derive(Debug)]
struct Piece {
    arena: Arc<Arena>,
    address: u64,
    _charge: Charge,
}

// SAFETY: the arena gives out each piece once, and has it back after the passages.
unsafe impl ForeignMemory for Piece {
    fn range(&self) -> (DeviceAddress, u64) {
        (DeviceAddress::from_bits(self.address), PIECE)
    }

    fn release(self: Box<Self>, after: Passages) {
        self.arena.released.fetch_add(1, Ordering::SeqCst);
        after.then(move || {
            let Self { arena, address, .. } = *self;
            arena.free.lock().unwrap().push(address);
        });
    }
}

impl Arena {
    fn new(device: &SimDevice) -> Arc<Self> {
        let piece = |_| device.allocate(MemoryKind::Device, PIECE).unwrap();
        let arena = Self::default();
        arena.free.lock().unwrap().extend((0..PIECES).map(piece));
        Arc::new(arena)
    }

    fn block(self: &Arc<Self>, pool: &Pool, stream: &Stream) -> Option<Block> {
        let charge = pool.charge(PIECE).ok()?;
        let address = self.free.lock().unwrap().pop()?;
        let piece = Box::new(Piece {
            arena: self.clone(),
            address,
            _charge: charge,
        });
        // SAFETY: the pool's device allocated it.
        Some(unsafe { stream.adopt(piece) })
    }
}

#[test]
fn foreign_memory_keeps_its_order_among_blocks_of_the_pool() {
    let adopted = over_seeds(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = manual();
        let pool = pool(&device, 16 * MIB);
        let streams: [_; 3] = streams(&device, &pool);
        let arena = Arena::new(&device);
        let (mut blocks, mut threads) = (Vec::<Block>::new(), Vec::new());
        let mut adopted = 0;
        for step in 0..400 {
            if step % 25 == 0 {
                // Threads are slow to give memory back, beside a clock that is moved.
                blocks.clear();
                let free = || arena.free.lock().unwrap().len();
                eventually(|| {
                    device.advance(us(50));
                    free() >= PIECES / 2
                });
            }
            let (work, stream) = &streams[random.usize(..3)];
            match random.u32(..8) {
                0 | 1 => {
                    if let Some(block) = arena.block(&pool, stream) {
                        blocks.push(block);
                        adopted += 1;
                    }
                }
                2 => blocks.extend(pool.try_allocate(stream, PIECE).ok()),
                3 | 4 if !blocks.is_empty() => {
                    let at = random.usize(..blocks.len());
                    let operation = Operation::new(us(random.u64(1..100)));
                    let operation = match random.bool() {
                        true => {
                            let argument = stream.record_use(&blocks[at]).unwrap();
                            operation.reads(argument.address(), argument.size())
                        }
                        false => {
                            let argument = stream.record_use(&mut blocks[at]).unwrap();
                            operation.writes(argument.address(), argument.size())
                        }
                    };
                    work.submit(operation);
                }
                5 if !blocks.is_empty() => {
                    let at = random.usize(..blocks.len());
                    blocks[at].move_to(stream).unwrap();
                }
                6 if !blocks.is_empty() => {
                    let block = blocks.swap_remove(random.usize(..blocks.len()));
                    match random.u32(..3) {
                        0 => threads.push(std::thread::spawn(move || drop(block))),
                        1 => drop(block.deallocate()),
                        _ => drop(block),
                    }
                }
                _ => device.advance(us(random.u64(..60))),
            }
        }
        drop(blocks);
        let joined = threads.into_iter().map(std::thread::JoinHandle::join);
        joined.for_each(Result::unwrap);
        eventually(|| {
            device.advance(us(100));
            arena.free.lock().unwrap().len() == PIECES
        });
        assert_eq!(arena.released.load(Ordering::SeqCst), adopted);
        eventually(|| {
            let figures = pool.inspect().statistics();
            (figures.foreign, figures.charged) == (0, 0)
        });
        device.advance_to_end();
        device.assert_ordered();
        pool.inspect().check_conserved().unwrap();
        adopted
    });
    assert!(adopted > 500, "{adopted}");
}
