//! Kernels that write beside a guarded block.

use crate::common::MIB;
use crate::cuda::{Cuda, Setting};
use crate::site::Site;
use futures::executor::block_on;
use std::sync::{Arc, Mutex};
use weirpool::CopyError;
use weirpool_canaries::{Canaries, Found, Overrun, Side};

const BYTES: u64 = 4096;

/// One word before and one behind a block, written by a kernel, are found when the block is freed and by a check. A kernel
/// that writes all of the block, and no more, is not reported.
pub(crate) fn kernel_that_writes_beside_a_block_is_found<S: Setting>() {
    let site = Site::<Cuda<S>>::new(8 * MIB);
    let worker = site.worker();
    let reports = Arc::<Mutex<Vec<Overrun>>>::default();
    let report = {
        let reports = reports.clone();
        move |found: Result<_, CopyError>| reports.lock().unwrap().push(found.unwrap())
    };
    let canaries = Canaries::new(&site.pool, report).unwrap();
    let block = || {
        let block = canaries
            .guard(worker.take(Canaries::around(BYTES)))
            .unwrap();
        worker.fill(&block, 7);
        block
    };
    let write = |at: u64| {
        site.bench.gpu.fill(&worker.work, at, 4, 0x0707_0707);
        block_on(worker.stream.synchronize()).unwrap();
    };
    drop(block());
    let (line, damaged) = (line!(), block());
    write(damaged.address().to_bits() - 4);
    drop(damaged.deallocate());
    block_on(site.pool.drain()).unwrap();
    let found = reports.lock().unwrap().pop().expect("it is found");
    assert_eq!(
        (found.side, found.distance, found.written),
        (Side::Before, 0, 4)
    );
    assert!(found.allocated.line() < line, "{found}");
    assert!(
        matches!(found.found, Found::Freed(Some(at)) if at.line() == line + 2),
        "{found}"
    );
    assert!(
        reports.lock().unwrap().is_empty(),
        "of the first block there is no report"
    );
    let damaged = block();
    write(damaged.address().to_bits() + BYTES);
    let found = block_on(canaries.check()).unwrap();
    let [found] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (found.address, found.side),
        (damaged.address(), Side::Behind)
    );
    drop(damaged);
    block_on(site.pool.drain()).unwrap();
    assert!(reports.lock().unwrap().is_empty(), "it was reported");
    drop(canaries);
    worker.settle();
    site.assert_conserved();
}
