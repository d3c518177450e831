//! A full device, whose memory other pools or other processes hold.

use crate::bench::Bench;
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Setting};
use futures::executor::block_on;
use std::time::Duration;
use weirpool::device::MemoryKind;
use weirpool::{AllocError, Pool, Source, Stream};

const STEP: u64 = 512 * MIB;

/// Creates a pool over the whole device, with few large chunks.
fn pool<S: Setting>(bench: &Cuda<S>) -> (Pool, Stream) {
    let builder = Pool::builder(bench.device()).chunk_bytes(STEP);
    let pool = builder.build().expect("a pool over the whole device");
    let stream = pool.register(&bench.stream()).expect("a stream of it");
    (pool, stream)
}

/// Returns three fifths of the device's free memory.
fn most<S: Setting>(bench: &Cuda<S>) -> u64 {
    let free = bench.device().memory_info(MemoryKind::Device);
    let free = free.expect("the device tells").free;
    free / 5 * 3 / STEP * STEP
}

/// Another pool of the process gives up its unused memory.
pub(crate) fn another_pool_spills<S: Setting>() {
    let bench = Cuda::<S>::new();
    let ((one, a), (other, b)) = (pool(&bench), pool(&bench));
    let bytes = most(&bench);
    let kept = one.try_allocate(&a, STEP).unwrap();
    drop(one.try_allocate(&a, bytes - STEP).unwrap());
    assert_eq!(one.inspect().statistics().reserved.current, bytes);
    let block = other.try_allocate(&b, bytes).unwrap();
    assert_eq!(block.source(), Source::Grown);
    let left = one.inspect().statistics().reserved.current;
    assert!((STEP..bytes).contains(&left), "{left} of {bytes}");
    let refused = one.try_allocate(&a, bytes).unwrap_err();
    assert!(matches!(refused, AllocError::Exhausted(_)), "{refused}");
    drop((kept, block));
    one.inspect().check_conserved().unwrap();
    other.inspect().check_conserved().unwrap();
}

/// Two pools fill the device to the last chunk. The device refuses some memory that it reports as free, so the second
/// pool waits for a chunk that would fit there, and gets the first one's memory.
pub(crate) fn last_chunk_of_a_full_device_is_waited_for<S: Setting>() {
    let bench = Cuda::<S>::new();
    let [one, other] = [(); 2].map(|()| {
        let builder = Pool::builder(bench.device()).chunk_bytes(2 * MIB);
        let pool = builder.build().expect("a pool over the whole device");
        let stream = pool.register(&bench.stream()).expect("a stream of it");
        (pool, stream)
    });
    let mut blocks = Vec::new();
    for bytes in [STEP, 2 * MIB] {
        while let Ok(block) = one.0.try_allocate(&one.1, bytes) {
            blocks.push(block);
        }
    }
    let left = bench.device().memory_info(MemoryKind::Device).unwrap().free;
    let mut waiting = other.0.allocate(&other.1, 2 * MIB);
    for _ in 0..3 {
        assert!(poll(&mut waiting).is_pending(), "{left} bytes are left");
        std::thread::sleep(Duration::from_millis(20));
    }
    blocks.clear();
    drop(block_on(waiting.timeout(Duration::from_secs(20))).unwrap());
    one.0.inspect().check_conserved().unwrap();
    other.0.inspect().check_conserved().unwrap();
}

/// A waiter gets the device's memory once another pool releases it, although no notification tells so.
pub(crate) fn refused_waiter_asks_again<S: Setting>() {
    let bench = Cuda::<S>::new();
    let ((one, a), (other, b)) = (pool(&bench), pool(&bench));
    let bytes = most(&bench);
    let block = one.try_allocate(&a, bytes).unwrap();
    let mut waiting = other.allocate(&b, bytes);
    assert!(poll(&mut waiting).is_pending());
    drop(block);
    let block = block_on(waiting).unwrap();
    drop(block);
    one.inspect().check_conserved().unwrap();
    other.inspect().check_conserved().unwrap();
}
