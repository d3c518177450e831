//! Umpire's scenario: memory is touched, a long kernel runs, the memory is checked, all on one stream. It is
//! freed, and another owner has it, on another stream. The check must never see what the next owner wrote.
//!
//! The long kernel ends some time after it was told to, so that nothing here rests on how fast the host is:
//! until then the next owner's work must not run. That the check would see it if it did is tested as well,
//! with a device that lies about the order.

use crate::bench::{Bench, Gate};
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Setting};
use crate::probe::Probe;
use crate::site::{ONLY_COMPLETE, Site, Worker, settle_all};
use futures::executor::block_on;
use std::time::Duration;
use weirpool::{Block, Reuse, Source};

/// All that there is.
const BYTES: u64 = 8 * MIB;
const TOUCHED: u8 = 0xAA;
const OVERWRITTEN: u8 = 0xBB;

/// What the kernel takes after it was told to end.
const LONG: Duration = Duration::from_millis(30);

/// The first stream's part. Tells the kernel to end when the gate is opened.
fn touch_and_check<S: Setting>(worker: &Worker<Cuda<S>>, block: &Block) -> Gate {
    worker.fill(block, TOUCHED);
    // Whatever is written from now on was not written by this.
    worker.settle();
    let gate = worker.bench.hold(&worker.work);
    worker.bench.spend_time(&worker.work, LONG);
    worker.expect(block, TOUCHED);
    gate
}

/// The second stream's part.
fn overwrite<S: Setting>(worker: &Worker<Cuda<S>>, block: &Block) {
    worker.fill(block, OVERWRITTEN);
    worker.expect(block, OVERWRITTEN);
}

/// Without waits on the device: the allocation is awaited, and given only when the check is over.
pub(crate) fn waiter_on_the_host_comes_after_a_long_kernel<S: Setting>() {
    let site = Site::<Cuda<S>>::without_device_waits(BYTES);
    let [first, second] = site.workers();
    for _ in 0..3 {
        let block = first.take(BYTES);
        let address = block.address();
        let gate = touch_and_check(&first, &block);
        drop(block);
        second.take_nothing(BYTES);
        let mut waiting = site.pool.allocate(&second.stream, BYTES);
        assert!(poll(&mut waiting).is_pending(), "the kernel runs still");
        gate.open();
        let block = block_on(waiting).unwrap();
        assert_eq!((block.address(), block.source()), (address, Source::Free));
        overwrite(&second, &block);
        second.free_and_settle(block);
    }
    assert_eq!(site.pool.inspect().statistics().device_waits, 0);
    site.assert_sound();
}

/// Behind a wait on the device: the memory is given at once, and overwritten only when the check is over.
pub(crate) fn stream_waiting_on_the_device_comes_after_a_long_kernel<S: Setting>() {
    let site = Site::<Cuda<S>>::new(BYTES);
    let [first, second] = site.workers();
    for _ in 0..3 {
        let block = first.take(BYTES);
        let address = block.address();
        let gate = touch_and_check(&first, &block);
        drop(block);
        let block = second.take_from(Source::DeviceWait, BYTES);
        assert_eq!(block.address(), address);
        overwrite(&second, &block);
        site.bench.let_run();
        gate.open();
        settle_all(&[&first, &second]);
        second.free_and_settle(block);
    }
    site.assert_sound();
}

/// Had the allocation not been awaited: the check sees it.
pub(crate) fn wrong_result_of_a_query_is_detected<S: Setting>() {
    let taken_by = assert_seen::<S>(ONLY_COMPLETE, "query");
    assert_eq!(taken_by, Source::Free, "the pool takes it for complete");
}

/// Had the wait on the device been left out: the check sees it.
pub(crate) fn missing_wait_is_detected<S: Setting>() {
    let taken_by = assert_seen::<S>(Reuse::ALL, "wait");
    assert_eq!(
        taken_by,
        Source::DeviceWait,
        "the pool takes it for ordered"
    );
}

/// Overwrites the memory before it is checked, because the device lies. Returns why the pool gave it away.
fn assert_seen<S: Setting>(reuse: Reuse, lie: &'static str) -> Source {
    let (site, probe): (Site<Cuda<S>>, Probe) = Site::probed(BYTES, |builder| {
        builder.tuning(|tuning| tuning.reuse = reuse)
    });
    let [first, second] = site.workers();
    let block = first.take(BYTES);
    let address = block.address();
    let gate = touch_and_check(&first, &block);
    drop(block);
    probe.lie(lie);
    let block = second.take(BYTES);
    assert_eq!(block.address(), address);
    // Over before the gate is opened: nothing keeps it back.
    overwrite(&second, &block);
    second.settle();
    assert_eq!(site.witness.corruptions(), 0, "the check was not made yet");
    gate.open();
    first.settle();
    assert_eq!(site.witness.corruptions(), 1, "the check sees no mistake");
    block.source()
}
