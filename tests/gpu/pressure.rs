//! A full device, whose memory other pools or other processes hold.

use crate::bench::Bench;
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Setting};
use futures::executor::block_on;
use weirpool::PoolBuilder;
use weirpool::device::MemoryKind;
use weirpool::testing::Invariants;
use weirpool::{AllocError, Pool, Source, Stream};

const STEP: u64 = 512 * MIB;

/// Creates a pool over the whole device, with few large chunks.
fn pool<S: Setting>(bench: &Cuda<S>) -> (Pool, Stream) {
    let builder = PoolBuilder::new(bench.device()).chunk_bytes(STEP);
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
    assert_eq!(one.statistics().reserved.current, bytes);
    let block = other.try_allocate(&b, bytes).unwrap();
    assert_eq!(block.source(), Source::Grown);
    let left = one.statistics().reserved.current;
    assert!((STEP..bytes).contains(&left), "{left} of {bytes}");
    let refused = one.try_allocate(&a, bytes).unwrap_err();
    assert!(matches!(refused, AllocError::Exhausted(_)), "{refused}");
    drop((kept, block));
    one.check_conserved().unwrap();
    other.check_conserved().unwrap();
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
    one.check_conserved().unwrap();
    other.check_conserved().unwrap();
}
