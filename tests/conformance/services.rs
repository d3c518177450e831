//! The needs of services: limits, turns, reservations, memory that a hook frees, and shutdown.

use crate::bench::Bench;
use crate::common::{MIB, assert_matches, not_ready, poll};
use crate::site::{Site, settle_all};
use async_trait::async_trait;
use futures::executor::block_on;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirpool::{AllocError, Block, Layout, Overtaking, Shortfall, Source, Tag};
use weirpool_observe::Recorded as _;
use weirpool_pressure::{Pressure, PressureHook, RelieveWith};

/// RMM `limiting_resource_adaptor`, per tenant: a tenant over its limit fails or waits, and does not affect the
/// others.
pub(crate) fn tag_limit_throttles_only_its_own_requests<B: Bench>() {
    let guest = Tag::new("services: guest");
    let site = Site::<B>::new(32 * MIB);
    site.pool.tag(guest).set_limit(Some(8 * MIB));
    let worker = site.worker();
    let allocate = |bytes| site.pool.allocate(&worker.stream, bytes).tag(guest);
    let first = allocate(6 * MIB).try_now().unwrap();
    let refused = allocate(4 * MIB).try_now().unwrap_err();
    assert_matches!(refused, AllocError::LimitReached { tag, .. } if *tag == guest);
    let waiting = not_ready(allocate(4 * MIB));
    let other = worker.take(20 * MIB);
    worker.use_up(&other, 1);
    worker.use_up(&first, 2);
    drop(first);
    let second = block_on(waiting).unwrap();
    worker.use_up(&second, 3);
    assert_eq!(site.pool.tag(guest).statistics().used.current, 4 * MIB);
    worker.settle();
    drop((other, second));
    assert_eq!(site.pool.tag(guest).statistics().used.current, 0);
    site.assert_sound();
}

/// Deadlines and priorities decide which request is served next.
pub(crate) fn request_due_first_is_served_first<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let all = worker.take(8 * MIB);
    let allocate = || site.pool.allocate(&worker.stream, 8 * MIB);
    let far = Duration::from_secs(500);
    let mut plain = allocate();
    let mut late = allocate().deadline(far * 2);
    let mut urgent = allocate().deadline(far * 2).priority(1_000_000);
    for waiting in [&mut plain, &mut late, &mut urgent] {
        assert!(poll(waiting).is_pending());
    }
    drop(all);
    let mut order = Vec::new();
    for (name, waiting) in [("urgent", urgent), ("plain", plain), ("late", late)] {
        let block = block_on(waiting).unwrap();
        worker.use_up(&block, 1);
        order.push((name, site.pool.inspect().statistics().waits.served));
    }
    assert_eq!(order, [("urgent", 1), ("plain", 2), ("late", 3)]);
    worker.settle();
    site.assert_sound();
}

/// A small request may pass the head of the queue a configured number of times.
pub(crate) fn head_is_overtaken_a_bounded_number_of_times<B: Bench>() {
    let bound = Overtaking {
        times: 2,
        bytes: 4 * MIB,
    };
    let site = Site::<B>::with(16 * MIB, |builder| {
        // No deadlock is detected, however far a virtual clock moves while a thread of the pool works.
        let builder = builder.fail_deadlocks_after(Duration::from_secs(1 << 24));
        builder.tuning(|tuning| {
            tuning.overtaking = bound;
            tuning.lane_bytes = 0;
        })
    });
    let worker = site.worker();
    let held = worker.take(8 * MIB);
    let head = not_ready(site.pool.allocate(&worker.stream, 16 * MIB));
    let small = || site.pool.allocate(&worker.stream, MIB);
    let passed: Vec<Block> = (0..2).map(|_| block_on(small()).unwrap()).collect();
    let third = not_ready(small());
    drop((held, passed));
    let head = block_on(head).unwrap();
    worker.use_up(&head, 1);
    drop(head);
    drop(block_on(third).unwrap());
    worker.settle();
    site.assert_sound();
}

/// Reserved memory is available while the rest is in use. A freed part comes back in the order of its streams, on
/// another stream behind a wait on the device.
pub(crate) fn reserved_memory_neither_waits_nor_is_overwritten<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let [first, second] = site.workers();
    let reservation = site.pool.reserve(8 * MIB).try_now().unwrap();
    let others = first.take(8 * MIB);
    first.take_nothing(MIB);
    let block = reservation.allocate(&first.stream, 8 * MIB).unwrap();
    let address = block.address();
    let gate = first.use_until_opened(&block, 1);
    drop(block);
    let again = reservation.allocate(&first.stream, 8 * MIB).unwrap();
    let found = (again.address(), again.source());
    assert_eq!(found, (address, Source::SameStream));
    first.use_up(&again, 2);
    drop(again);
    let elsewhere = reservation.allocate(&second.stream, 8 * MIB).unwrap();
    assert_eq!(elsewhere.source(), Source::DeviceWait);
    second.use_up(&elsewhere, 3);
    gate.open();
    settle_all(&[&first, &second]);
    drop((elsewhere, reservation, others));
    site.assert_sound();
}

/// Several blocks are granted together or not at all, from one position in the queue, each with its alignment.
pub(crate) fn several_blocks_are_granted_together<B: Bench>() {
    let site = Site::<B>::new(16 * MIB);
    let worker = site.worker();
    let held = worker.take(8 * MIB);
    let layouts = [
        Layout::new(MIB),
        Layout::new(6 * MIB).alignment(4096),
        Layout::new(5 * MIB),
    ];
    let refused = site.pool.allocate_many(&worker.stream, layouts).try_now();
    assert_matches!(refused, Err(AllocError::Exhausted(_)));
    assert_eq!(site.pool.inspect().statistics().used.current, 8 * MIB);
    let waiting = not_ready(site.pool.allocate_many(&worker.stream, layouts));
    worker.use_up(&held, 1);
    drop(held);
    let blocks = block_on(waiting).unwrap();
    for (block, value) in blocks.iter().zip(2..) {
        worker.use_up(block, value);
    }
    assert!(blocks[1].address().is_aligned_to(4096));
    worker.settle();
    drop(blocks);
    site.assert_sound();
}

/// The cached memory, and the bytes that the hook was asked for.
#[derive(Clone, Default)]
struct Cache {
    blocks: Arc<Mutex<Vec<Block>>>,
    asked: Arc<Mutex<Vec<Shortfall>>>,
}

#[async_trait]
impl PressureHook for Cache {
    async fn relieve(
        &self,
        shortfall: Shortfall,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.asked.lock().unwrap().push(shortfall);
        let evicted = self.blocks.lock().unwrap().pop();
        drop(evicted);
        Ok(())
    }
}

/// RMM `failure_callback`: memory that the hook frees, behind running work, serves the request that called it.
pub(crate) fn hook_frees_memory_that_a_request_lacks<B: Bench>() {
    let cache = Cache::default();
    let site = Site::<B>::new(8 * MIB);
    let pressure = Pressure::new(cache.clone());
    let [caching, worker] = site.workers();
    for value in 1..=2 {
        let block = caching.take(4 * MIB);
        caching.use_up(&block, value);
        cache.blocks.lock().unwrap().push(block);
    }
    worker.take_nothing(4 * MIB);
    let request = worker.pool.allocate(&worker.stream, 4 * MIB);
    let block = block_on(request.relieve_with(&pressure)).unwrap();
    worker.use_up(&block, 3);
    let asked: Vec<_> = std::mem::take(&mut *cache.asked.lock().unwrap());
    let figures = asked.iter().map(|asked| (asked.requested, asked.used));
    assert_eq!(figures.collect::<Vec<_>>(), [(4 * MIB, 8 * MIB)]);
    assert_eq!(cache.blocks.lock().unwrap().len(), 1);
    let kept = std::mem::take(&mut *cache.blocks.lock().unwrap());
    drop((block, kept));
    settle_all(&[&caching, &worker]);
    site.pool.close();
    site.assert_sound();
}

/// A closed pool is drained once the device has completed all its work. Live blocks stay valid.
pub(crate) fn draining_waits_for_the_device<B: Bench>() {
    let site = Site::<B>::new(8 * MIB);
    let worker = site.worker();
    let (block, live) = (worker.take(4 * MIB), worker.take(4 * MIB));
    let gate = worker.use_until_opened(&block, 1);
    drop(block);
    let mut drain = not_ready(site.pool.drain());
    site.pool.close();
    assert_eq!(site.pool.leaks().blocks.len(), 1);
    worker.use_up(&live, 2);
    drop(live);
    assert!(poll(&mut drain).is_pending(), "the stream is held");
    gate.open();
    block_on(drain).unwrap();
    let statistics = site.pool.inspect().statistics();
    let found = (statistics.used.current, statistics.pending.current);
    assert_eq!(found, (0, 0));
    site.assert_sound();
}
