//! Streams, pools and threads that end while work runs.

use crate::bench::Bench;
use crate::common::{MIB, not_ready};
use crate::site::{ONLY_COMPLETE, Site, Worker, eventually};
use std::cell::RefCell;
use weirpool::{Block, Pool, PoolBuilder, Stream};

/// RMM `DeletedStream`: a stream is destroyed while blocks are pending. Its memory is reused only after its work
/// has ended.
pub(crate) fn memory_of_a_destroyed_stream_is_reused_after_its_work<B: Bench>() {
    let site = Site::<B>::without_device_waits(8 * MIB);
    let heir = site.worker();
    for bytes in [8 * MIB, MIB] {
        let gone = site.worker();
        let block = gone.take(bytes);
        let gate = gone.use_until_opened(&block, 1);
        drop(gone);
        drop(block);
        heir.take_nothing(8 * MIB);
        let waiting = not_ready(site.pool.allocate(&heir.stream, 8 * MIB));
        gate.open();
        let block = futures::executor::block_on(waiting).unwrap();
        heir.use_up(&block, 2);
        heir.free_and_settle(block);
    }
    site.assert_sound();
}

/// RMM `SharedOwnership`, rmm#2366: the last handle is dropped while work runs. No memory is released before the
/// work has ended, all of it is released afterwards, and no thread waits meanwhile.
pub(crate) fn pool_ends_while_work_runs<B: Bench>() {
    let (site, probe) = Site::<B>::probed(64 * MIB, |builder| builder);
    let worker = site.worker();
    let small = worker.take(MIB);
    let large = worker.take(8 * MIB);
    let gate = worker.use_until_opened(&large, 1);
    let (work, bench) = (worker.work.clone(), site.bench.clone());
    let Site { pool, witness, .. } = site;
    drop((pool, worker));
    drop((small, large));
    let held = probe.held();
    assert!(held >= 9 * MIB);
    bench.let_run();
    assert_eq!(probe.held(), held);
    gate.open();
    bench.settle(&work);
    eventually(|| probe.held() == 0);
    eventually(|| probe.events() == 0);
    // Later than the memory that was mapped there.
    eventually(|| probe.calls("reserve") == probe.calls("unreserve"));
    witness.assert_content();
}

/// A block, a stream and a wait each keep the pool alive.
pub(crate) fn blocks_and_waits_outlive_the_handle<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let [first, second] = site.workers();
    let Worker { stream, .. } = second.clone();
    let block = first.take(8 * MIB);
    let Site {
        pool,
        witness,
        bench,
    } = site;
    let waiting = async move {
        let block = pool.allocate(&stream, 8 * MIB).await.unwrap();
        block.address()
    };
    let waiting = not_ready(Box::pin(waiting));
    first.use_up(&block, 1);
    let (address, work) = (block.address(), first.work.clone());
    drop((first, second));
    drop(block);
    assert_eq!(futures::executor::block_on(waiting), address);
    bench.settle(&work);
    eventually(|| probe.held() == 0);
    witness.assert_content();
}

/// A runtime shuts down while its tasks and a thread outside it wait. The thread is served, and the pool continues
/// without the runtime until its own end.
pub(crate) fn runtime_can_end_before_the_pool<B: Bench>() {
    let set = |builder: PoolBuilder| builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE);
    let (site, probe) = Site::<B>::probed(8 * MIB, set);
    let [holder, inside, outside] = site.workers();
    let block = holder.take(8 * MIB);
    let gate = holder.use_until_opened(&block, 1);
    drop(block);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).build().unwrap();
    runtime.spawn(site.pool.maintain().reclaimer());
    let tasks = [MIB, 8 * MIB].map(|bytes| {
        let worker = inside.clone();
        runtime.spawn(async move { worker.allocate(bytes).await })
    });
    let waiting = || site.pool.inspect().statistics().waits.waiting;
    eventually(|| waiting() == 2);
    let thread = std::thread::spawn(move || {
        let block = futures::executor::block_on(outside.allocate(4 * MIB));
        outside.use_up(&block, 2);
        outside.free_and_settle(block);
    });
    eventually(|| waiting() == 3);
    drop(runtime);
    for task in tasks {
        let ended = futures::executor::block_on(task);
        assert!(ended.is_err_and(|error| error.is_cancelled()));
    }
    assert_eq!(waiting(), 1);
    gate.open();
    thread.join().unwrap();
    let block = futures::executor::block_on(inside.allocate(8 * MIB));
    inside.use_up(&block, 3);
    inside.free_and_settle(block);
    holder.settle();
    site.assert_sound();
    drop((site, holder, inside));
    eventually(|| probe.held() == 0);
}

thread_local! {
    static OF_THE_THREAD: RefCell<Option<(Pool, Stream, Block)>> = const { RefCell::new(None) };
}

/// rmm#1371: thread-local objects outlived the runtime. Here a thread can end with its own pool, stream and block, in
/// any order of their drops.
pub(crate) fn thread_can_end_with_its_own_pool<B: Bench>() {
    let (site, probe) = Site::<B>::probed(8 * MIB, |builder| builder);
    let worker = site.worker();
    let Site { pool, bench, .. } = site;
    let thread = std::thread::spawn(move || {
        let block = worker.take(4 * MIB);
        worker.bench.spend(&worker.work);
        OF_THE_THREAD.set(Some((pool, worker.stream, block)));
        worker.work
    });
    let work = thread.join().unwrap();
    bench.settle(&work);
    eventually(|| probe.held() == 0);
}
