//! A device that fails in the middle of an operation.

use crate::bench::Bench;
use crate::common::{Count, MIB, poll_with};
use crate::probe::Probe;
use crate::site::{Site, Worker};
use futures::executor::block_on;
use std::sync::Arc;
use weirpool::device::{DeviceErrorKind, MemoryKind};
use weirpool::{AllocError, Block};

/// The calls that growing makes, and how often it makes each.
const GROWING: [(&str, u64); 4] = [("create", 4), ("map", 4), ("unmap", 2), ("allocate", 1)];

/// RMM `UpstreamFailure`; pytorch#188008, where a mapping that failed halfway ended the process: growth that fails
/// at any of its calls, with any error, leaves a pool that works.
pub(crate) fn growth_that_fails_halfway_leaves_a_working_pool<B: Bench>() {
    let mut failures = 0;
    for (call, times) in GROWING {
        for nth in 1..=times {
            for kind in [DeviceErrorKind::OutOfMemory, DeviceErrorKind::Other] {
                failures += u64::from(grows_in_spite_of::<B>(call, nth, kind));
            }
        }
    }
    assert!(failures > 0, "no call failed at all");
}

/// Grows with this call failing. Returns whether the call was made that often, and failed.
fn grows_in_spite_of<B: Bench>(call: &'static str, nth: u64, kind: DeviceErrorKind) -> bool {
    let (site, probe) = Site::<B>::probed(16 * MIB, |builder| builder);
    let worker = site.worker();
    let kept = pieces(&worker, 2 * MIB);
    probe.fail(call, nth, kind);
    let first = worker.try_take(8 * MIB);
    site.pool.inspect().check().unwrap();
    let found = site.pool.inspect().statistics().reserved.current;
    assert_eq!(found, probe.held());
    assert!(probe.held() <= 16 * MIB);
    let has_failed = probe.has_failed(call);
    // When out of memory, the pool tries other sources. It reports any other error.
    let may_fail = has_failed && (first.is_err() || kind == DeviceErrorKind::OutOfMemory);
    assert_eq!(may_fail, has_failed, "{call} {nth} {kind:?}: {first:?}");
    assert!(has_failed || first.is_ok(), "{call} {nth}: {first:?}");
    drop(first);
    works_as_before((&site, &probe), &worker, &kept, 8 * MIB);
    drop(kept);
    worker.settle();
    site.assert_sound();
    has_failed
}

/// Returns two live blocks that leave two holes between and above them, so that a larger block needs chunks that are
/// moved, and new ones.
fn pieces<B: Bench>(worker: &Worker<B>, bytes: u64) -> [Block; 2] {
    let blocks = [(); 4].map(|()| worker.take(bytes));
    blocks.iter().for_each(|block| worker.fill(block, 1));
    let [first, hole, second, end] = blocks;
    drop((hole, end));
    block_on(worker.stream.synchronize()).unwrap();
    [first, second]
}

fn works_as_before<B: Bench>(
    (site, probe): (&Site<B>, &Probe),
    worker: &Worker<B>,
    kept: &[Block],
    bytes: u64,
) {
    let block = worker.take(bytes);
    worker.use_up(&block, 2);
    kept.iter().for_each(|block| worker.expect(block, 1));
    worker.free_and_settle(block);
    let found = site.pool.inspect().statistics().reserved.current;
    assert_eq!(found, probe.held());
}

/// Growth that fails at any step of its plan leaks no memory: the pool still works, and after a trim the device
/// has as much memory as before.
pub(crate) fn growth_that_fails_halfway_returns_its_memory_to_the_device<B: Bench>() {
    let mut failures = 0;
    for (call, _) in GROWING {
        let steps = (1..32).take_while(|nth| goes_back::<B>(call, *nth));
        failures += steps.count();
    }
    assert!((1..100).contains(&failures), "{failures} calls failed");
}

/// Grows with this call failing. Returns whether the call was made that often, and failed.
fn goes_back<B: Bench>(call: &'static str, nth: u64) -> bool {
    const CHUNK: u64 = 8 * MIB;
    let (site, probe) = Site::<B>::probed(8 * CHUNK, |builder| {
        builder
            .chunk_bytes(CHUNK)
            .tuning(|tuning| tuning.lane_bytes = 0)
    });
    let worker = site.worker();
    // The driver's own memory is allocated by these first calls.
    worker.free_and_settle(worker.take(8 * CHUNK));
    let _ = site.pool.trim_to(0).unwrap();
    let before = left(&site);
    let kept = pieces(&worker, CHUNK);
    probe.fail(call, nth, DeviceErrorKind::OutOfMemory);
    let first = worker.try_take(4 * CHUNK);
    let has_failed = probe.has_failed(call);
    probe.fail_no_more(call);
    let is_told = matches!(&first, Ok(_) | Err(AllocError::Exhausted(_)));
    assert!(
        is_told || has_failed && call == "unmap",
        "{call} {nth}: {first:?}"
    );
    site.pool.inspect().check().unwrap();
    let found = site.pool.inspect().statistics().reserved.current;
    assert_eq!(found, probe.held());
    drop(first);
    works_as_before((&site, &probe), &worker, &kept, 4 * CHUNK);
    drop(kept);
    block_on(worker.stream.synchronize()).unwrap();
    let _ = site.pool.trim_to(0).unwrap();
    site.assert_sound();
    assert_eq!(probe.held(), 0, "{call} {nth}");
    let after = left(&site);
    let lost = before.abs_diff(after);
    assert!(
        lost < CHUNK,
        "{call} {nth}: {before} bytes were free, and {after} are"
    );
    has_failed
}

/// Returns how much memory the device has left; 0 for memory of the host, which other processes change.
fn left<B: Bench>(site: &Site<B>) -> u64 {
    let kind = MemoryKind::Device;
    if B::UPSTREAM.kind() != kind {
        return 0;
    }
    site.bench.device().memory_info(kind).unwrap().free
}

/// LMCache#3336: a failed call leaked the waker.
pub(crate) fn failed_call_leaks_no_waker<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let [first, second] = site.workers();
    let (count, waker) = Count::new();
    let owners = Arc::strong_count(&count);

    probe.fail("record", 1, DeviceErrorKind::Other);
    let mut synchronized = first.stream.synchronize();
    assert!(poll_with(&mut synchronized, &waker).is_ready());
    drop(synchronized);

    let block = first.take(8 * MIB);
    let gate = first.use_until_opened(&block, 1);
    let mut waiting = site.pool.allocate(&second.stream, MIB);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    probe.fail("record", 1, DeviceErrorKind::Other);
    let mut freed = block.deallocate();
    let _ = poll_with(&mut freed, &waker);
    assert!(probe.has_failed("record"));
    drop((waiting, freed));
    assert_eq!(Arc::strong_count(&count), owners);
    gate.open();
    first.settle();
    site.assert_sound();
}
