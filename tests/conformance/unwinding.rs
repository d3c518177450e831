//! Panics: unwinding frees all memory that it drops, and other tasks go on.

use crate::bench::Bench;
use crate::common::{MIB, not_ready};
use crate::site::{ONLY_COMPLETE, Site, Worker, eventually};
use futures::channel::oneshot::{Receiver, Sender, channel};
use futures::executor::block_on;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use weirpool_observe::Recorded as _;

/// Unwinds without printing a message.
fn panic_on_purpose() -> ! {
    resume_unwind(Box::new("a deliberate panic"))
}

/// A task panics while it holds blocks, a reservation, a block of that, a host view of a block, and a wait. All of it
/// is freed, and the next waiter is served.
pub(crate) fn panicking_task_frees_all_its_memory<B: Bench>() {
    let site = Site::<B>::without_device_waits(16 * MIB);
    let [worker, other] = site.workers();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).build().unwrap();
    let waiting = || site.pool.inspect().statistics().waits.waiting;
    let ((full, is_full), (go, may_go)) = (channel(), channel());
    let panics = runtime.spawn(panics_with_hands_full(worker.clone(), full, may_go));
    block_on(is_full).unwrap();
    let waits = runtime.spawn(async move {
        let block = other.allocate(16 * MIB).await;
        other.use_up(&block, 5);
        block.deallocate().await.unwrap();
    });
    eventually(|| waiting() == 2);
    go.send(()).unwrap();
    let panicked = block_on(panics).unwrap_err().into_panic();
    let words = panicked.downcast_ref::<&str>();
    assert_eq!(words, Some(&"a deliberate panic"));
    block_on(waits).unwrap();
    worker.settle();
    assert_eq!(waiting(), 0);
    let leaks = site.pool.leaks();
    assert!(leaks.is_empty(), "{leaks}");
    site.assert_sound();
}

async fn panics_with_hands_full<B: Bench>(
    worker: Worker<B>,
    full: Sender<()>,
    may_go: Receiver<()>,
) {
    let (pool, stream) = (&worker.pool, &worker.stream);
    let blocks = [4 * MIB, MIB].map(|bytes| worker.take(bytes));
    blocks.iter().for_each(|block| worker.use_up(block, 1));
    let reservation = pool.reserve(4 * MIB).await.unwrap();
    let drawn = reservation.allocate(stream, MIB).unwrap();
    worker.use_up(&drawn, 2);
    let mut seen = worker.take(MIB);
    worker.use_up(&seen, 3);
    let is_seen = pool.inspect().describe().memory_kind.is_seen_by_host();
    let mut guard = None;
    if is_seen {
        let bytes = guard.insert(seen.host().await.unwrap());
        assert!(bytes.iter().all(|byte| *byte == 3));
        bytes[0] = 4;
    }
    let _waiting = not_ready(pool.allocate(stream, 12 * MIB));
    full.send(()).unwrap();
    may_go.await.unwrap();
    panic_on_purpose();
}

/// A pool with all its handles is dropped by unwinding while work runs. The memory in use is not released early, and no
/// memory is lost.
pub(crate) fn panic_may_drop_the_pool<B: Bench>() {
    let (site, probe) = Site::<B>::probed(64 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    let worker = site.worker();
    let (small, large) = (worker.take(MIB), worker.take(8 * MIB));
    let gate = worker.use_until_opened(&large, 1);
    let (work, bench, witness) = (
        worker.work.clone(),
        site.bench.clone(),
        site.witness.clone(),
    );
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let (site, worker) = (site, worker);
        let _blocks = (small, large);
        let _reservation = site.pool.reserve(4 * MIB).try_now().unwrap();
        let _waiting = not_ready(site.pool.allocate(&worker.stream, 64 * MIB));
        panic_on_purpose();
    }));
    let words = unwound.unwrap_err().downcast_ref::<&str>().copied();
    assert_eq!(words, Some("a deliberate panic"));
    let held = probe.held();
    assert!(held >= 9 * MIB, "{held} bytes, and work uses them");
    bench.let_run();
    assert_eq!(probe.held(), held);
    gate.open();
    bench.settle(&work);
    eventually(|| probe.held() == 0);
    eventually(|| probe.events() == 0);
    witness.assert_content();
}
