//! A device that fails in the middle of something.

use crate::bench::Bench;
use crate::common::{Count, MIB, poll_with};
use crate::probe::Probe;
use crate::site::{Site, Worker};
use futures::executor::block_on;
use std::sync::Arc;
use weirpool::device::{DeviceErrorKind, MemoryKind};
use weirpool::testing::Invariants;
use weirpool::{AllocError, Block};

/// Every call that growing makes, as often as it makes it.
const GROWING: [(&str, u64); 4] = [("create", 4), ("map", 4), ("unmap", 2), ("allocate", 1)];

/// [23] RMM `UpstreamFailure`; pytorch#188008, where a mapping that failed half way ended the process:
/// growing that fails at any of its calls, with any error, leaves a pool that works.
pub(crate) fn growing_that_fails_half_way_loses_nothing<B: Bench>() {
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

/// Whether the call was made so often, and failed.
fn grows_in_spite_of<B: Bench>(call: &'static str, nth: u64, kind: DeviceErrorKind) -> bool {
    let (site, probe) = Site::<B>::probed(16 * MIB, |builder| builder);
    let worker = site.worker();
    let kept = pieces(&worker, 2 * MIB);
    probe.fail(call, nth, kind);
    let first = worker.try_take(8 * MIB);
    site.pool.check().unwrap();
    assert_eq!(site.pool.statistics().reserved.current, probe.held());
    assert!(probe.held() <= 16 * MIB);
    let has_failed = probe.has_failed(call);
    // Out of memory the pool looks elsewhere; anything else it reports.
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

/// Four of five handles are in use or pieces of the way: a larger block needs some that are moved, and
/// some that are new.
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
    assert_eq!(site.pool.statistics().reserved.current, probe.held());
}

/// [23] Growing that fails at any step of its plan takes nothing along that nobody knows of: the pool goes on, and
/// once it is trimmed the device has as much as before.
pub(crate) fn what_failed_half_way_goes_back_to_the_device<B: Bench>() {
    let mut failures = 0;
    for (call, _) in GROWING {
        let steps = (1..32).take_while(|nth| goes_back::<B>(call, *nth));
        failures += steps.count();
    }
    assert!((1..100).contains(&failures), "{failures} calls failed");
}

/// Whether the call was made so often, and failed.
fn goes_back<B: Bench>(call: &'static str, nth: u64) -> bool {
    const CHUNK: u64 = 8 * MIB;
    let (site, probe) = Site::<B>::probed(8 * CHUNK, |builder| {
        builder.chunk_bytes(CHUNK).lane_bytes(0)
    });
    let worker = site.worker();
    // What the driver takes for itself when it is first asked is taken by now.
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
    site.pool.check().unwrap();
    assert_eq!(site.pool.statistics().reserved.current, probe.held());
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

/// What the device says that it has left. Of the host's memory others take and give.
fn left<B: Bench>(site: &Site<B>) -> u64 {
    let kind = MemoryKind::Device;
    if B::UPSTREAM.kind() != kind {
        return 0;
    }
    site.bench.device().memory_info(kind).unwrap().free
}

/// LMCache#3336: a call that failed leaked the waker.
pub(crate) fn a_failed_call_leaks_no_waker<B: Bench>() {
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
