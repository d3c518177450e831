//! Charges that are awaited: memory of others is admitted in the order of the queue.

use crate::common::*;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::extend::{BoundedPool, Bounds, CapacitySource, Charge, Joining};
use weirpool::{AllocError, ErrorClass, Pool, QueueLimit, Tag};

static_assertions::assert_impl_all!(weirpool::extend::ChargeFor<'static>: Send, Unpin);

fn charged(pool: &Pool) -> u64 {
    pool.inspect().statistics().charged
}

#[track_caller]
fn check_empty(pool: &Pool) {
    assert_eq!(charged(pool), 0);
    assert_eq!(pool.inspect().statistics().waits.waiting, 0);
    pool.inspect().check_conserved().unwrap();
    pool.inspect().check().unwrap();
}

#[test]
fn charges_and_allocations_are_served_in_the_order_in_which_they_came() {
    for device in devices() {
        let pool = pool(&device, 16 * MIB);
        let (_, a) = stream(&device, &pool);
        let held = pool.try_allocate(&a, 16 * MIB).unwrap();
        let mut first = not_ready(pool.charge_for(12 * MIB));
        let mut second = not_ready(pool.allocate(&a, 8 * MIB));
        let mut third = not_ready(pool.charge_for(4 * MIB));
        assert_matches!(pool.charge(0), Err(AllocError::Exhausted(_)));
        let listed = pool.inspect().waiting_requests(9);
        let listed: Vec<_> = listed.iter().map(|request| request.requested).collect();
        assert_eq!(listed, [12 * MIB, 8 * MIB, 4 * MIB]);
        drop(held);
        let admitted = now(&mut first).unwrap();
        assert_eq!((admitted.bytes(), charged(&pool)), (12 * MIB, 12 * MIB));
        assert!(
            poll(&mut third).is_pending(),
            "there is room for it, but it came last"
        );
        drop(admitted);
        let block = now(&mut second).unwrap();
        let last = now(&mut third).unwrap();
        assert!(reserved(&pool) + charged(&pool) <= 16 * MIB);
        drop((block, last));
        check_empty(&pool);
    }
}

#[test]
fn dropped_charge_serves_a_charge_or_an_allocation() {
    for device in devices() {
        let pool = pool(&device, 16 * MIB);
        let (_, a) = stream(&device, &pool);
        let all = pool.charge(16 * MIB).unwrap();
        let mut tasks = [
            Woken::new(async { pool.charge_for(16 * MIB).await.map(drop) }),
            Woken::new(async { pool.allocate(&a, 16 * MIB).await.map(drop) }),
            Woken::new(async { pool.charge_for(9 * MIB).await.map(drop) }),
        ];
        assert_eq!(settle(&mut tasks), 0, "nothing wakes them");
        drop(all);
        settle(&mut tasks);
        pass(&device, 20, us(100), &mut tasks);
        assert!(tasks.iter().all(|task| matches!(task.output, Some(Ok(())))));
        drop(tasks);
        check_empty(&pool);
    }
}

/// Pending memory is released for a charge as it completes. A charge that cannot be served yet does not wake itself.
#[test]
fn charge_that_waits_for_work_is_woken_by_changes_alone() {
    for device in devices() {
        let pool = pool(&device, 16 * MIB);
        let (work, a) = stream(&device, &pool);
        let blocks = several(&pool, &a, 8, 2 * MIB);
        let mut tasks = [
            Woken::new(async { pool.charge_for(14 * MIB).await.map(drop) }),
            Woken::new(async { pool.charge_for(16 * MIB).await.map(drop) }),
        ];
        let mut polls = 0;
        for block in blocks {
            use_block(&work, &block, us(100));
            drop(block);
            polls += settle(&mut tasks);
            assert!(reserved(&pool) <= 16 * MIB);
        }
        assert_eq!(reserved(&pool), 16 * MIB, "nothing is released in vain");
        for _ in 0..40 {
            device.advance(us(50));
            polls += settle(&mut tasks);
        }
        assert!(tasks.iter().all(|task| matches!(task.output, Some(Ok(())))));
        assert!(polls < 40, "{polls} polls for 8 frees and their work");
        drop(tasks);
        check_empty(&pool);
    }
}

#[test]
fn charge_that_can_never_fit_fails_at_once() {
    let device = manual();
    let pool = pool(&device, 16 * MIB);
    let tag = Tag::new("charges: never");
    pool.tag(tag).set_limit(Some(4 * MIB));
    let too_large = now(pool.charge_for(17 * MIB));
    assert_matches!(too_large, Err(AllocError::TooLarge { .. }));
    let over = now(pool.charge_for(5 * MIB).tag(tag));
    assert_matches!(over, Err(AllocError::OverLimit { .. }));
    let held = pool.charge(16 * MIB).unwrap();
    let mut large = not_ready(pool.charge_for(12 * MIB));
    let mut tagged = not_ready(pool.charge_for(4 * MIB).tag(tag));
    pool.tag(tag).set_limit(Some(MIB));
    assert_matches!(
        poll(&mut tagged),
        Poll::Ready(Err(AllocError::OverLimit { .. }))
    );
    let _ = pool.resize(8 * MIB).unwrap();
    assert_matches!(
        poll(&mut large),
        Poll::Ready(Err(AllocError::TooLarge { .. }))
    );
    let mut closing = not_ready(pool.charge_for(MIB));
    pool.close();
    assert_matches!(poll(&mut closing), Poll::Ready(Err(AllocError::Closed)));
    assert_matches!(now(pool.charge_for(MIB)), Err(AllocError::Closed));
    drop((held, large, tagged, closing));
    assert_eq!(pool.tag(tag).statistics().used.current, 0);
    check_empty(&pool);
}

#[test]
fn charge_that_is_given_up_leaves_nothing() {
    for device in devices() {
        let pool = pool(&device, 16 * MIB);
        let (_, a) = stream(&device, &pool);
        let tag = Tag::new("charges: given up");
        let held = pool.try_allocate(&a, 16 * MIB).unwrap();
        drop(pool.charge_for(MIB));
        let waiting = not_ready(pool.charge_for(8 * MIB).tag(tag));
        let mut next = not_ready(pool.charge_for(16 * MIB));
        drop(waiting);
        let granted = not_ready(pool.charge_for(MIB).tag(tag));
        drop(held);
        drop(now(&mut next).unwrap());
        device.advance(us(3000)); // until the queue is served though no task answers
        // It was granted meanwhile, and is dropped with its grant.
        assert_eq!(charged(&pool), MIB);
        let mut last = not_ready(pool.charge_for(16 * MIB));
        drop(granted);
        drop(now(&mut last).unwrap());
        assert_eq!(pool.tag(tag).statistics().used.current, 0);
        check_empty(&pool);
    }
}

#[test]
fn charges_are_the_tags_and_wait_for_its_limit() {
    let (_, pool, [(_, a)]) = set_up(16 * MIB);
    let tag = Tag::new("charges: limit");
    pool.tag(tag).set_limit(Some(8 * MIB));
    let block = now(pool.allocate(&a, 6 * MIB).tag(tag)).unwrap();
    let at_limit = pool.charge_for(4 * MIB).tag(tag).try_now();
    assert_matches!(at_limit, Err(AllocError::LimitReached { .. }));
    let mut waiting = not_ready(pool.charge_for(4 * MIB).tag(tag));
    assert!(pool.inspect().waiting_requests(1)[0].is_over_limit);
    drop(now(pool.charge_for(MIB)).unwrap());
    drop(block);
    let charge = now(&mut waiting).unwrap();
    let figures = pool.tag(tag).statistics();
    assert_eq!((figures.used.current, charged(&pool)), (4 * MIB, 4 * MIB));
    let mut waiting = not_ready(pool.allocate(&a, 8 * MIB).tag(tag));
    drop(charge);
    drop(now(&mut waiting).unwrap());
    let figures = pool.tag(tag).statistics();
    let seen = (figures.used.current, figures.allocations, figures.frees);
    assert_eq!(seen, (0, 3, 3));
    check_empty(&pool);
}

#[test]
fn terms_of_a_charge_are_those_of_any_request() {
    let (device, pool, [(_, a)]) =
        set_up_with(|device| builder(device, 16 * MIB).queue_limit(QueueLimit::requests(2)));
    let held = pool.try_allocate(&a, 16 * MIB).unwrap();
    let mut waiting = [
        Woken::new(pool.charge_for(MIB).timeout(us(100))),
        Woken::new(pool.charge_for(16 * MIB).deadline(us(500))),
    ];
    let refused = now(pool.charge_for(MIB)).unwrap_err();
    assert_matches!(refused, AllocError::QueueFull(_));
    device.advance(us(100));
    settle(&mut waiting);
    let timed_out = waiting[0].output.take();
    assert_matches!(timed_out, Some(Err(AllocError::TimedOut { .. })));
    // It is due before the block, which came first.
    let mut urgent = not_ready(pool.charge_for(8 * MIB).priority(2));
    drop(held);
    device.advance(us(1));
    let urgent_charge = now(&mut urgent).unwrap();
    settle(&mut waiting);
    assert!(waiting[1].is_waiting());
    drop(urgent_charge);
    settle(&mut waiting);
    assert_matches!(waiting[1].output, Some(Ok(charge)) if charge.bytes() == 16 * MIB);
    drop(waiting);
    check_empty(&pool);
}

#[test]
fn charge_that_nothing_serves_is_told_of_it_and_fails_as_a_deadlock() {
    let (device, pool, [(_, a)]) =
        set_up_with(|device| builder(device, 16 * MIB).fail_deadlocks_after(us(10_000)));
    let held = pool.try_allocate(&a, 10 * MIB).unwrap();
    let mut charge = not_ready(pool.charge_for(8 * MIB));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let stalled = std::pin::Pin::new(&mut charge).poll_stalled(context);
    assert_matches!(stalled, Poll::Ready(shortfall) if shortfall.requested == 8 * MIB);
    // It holds nothing, and is behind the first: every request that can be served is.
    let mut small = not_ready(pool.charge_for(2 * MIB));
    let mut found = None;
    for _ in 0..40 {
        device.advance(us(500));
        if found.is_none()
            && let Poll::Ready(granted) = poll(&mut small)
        {
            found = Some(granted.unwrap());
        }
    }
    let refused = now(&mut charge).unwrap_err();
    assert_matches!(refused, AllocError::Deadlocked(_));
    assert_eq!(found.map(|charge| charge.bytes()), Some(2 * MIB));
    drop((held, charge, small));
    check_empty(&pool);
}

#[test]
fn evictable_memory_makes_room_for_a_charge_if_it_is_enough() {
    for device in devices() {
        let pool = pool(&device, 16 * MIB);
        let (_, a) = stream(&device, &pool);
        let cached: Vec<_> = (0..4)
            .map(|_| pool.try_allocate(&a, 2 * MIB).unwrap().into_evictable())
            .collect();
        let held = pool.try_allocate(&a, 8 * MIB).unwrap();
        let charge = pool.charge_for(4 * MIB).try_now().unwrap();
        assert_eq!(pool.inspect().statistics().evictions, 2);
        let mut waiting = not_ready(pool.charge_for(8 * MIB));
        assert_eq!(figures(&pool).evictions, 2, "all of it is not enough");
        drop(charge);
        let charge = now(&mut waiting).unwrap();
        assert_eq!(pool.inspect().statistics().evictions, 4);
        drop((charge, held, cached));
        check_empty(&pool);
    }
}

/// Where memory calls block, a thread releases memory for a charge.
#[test]
fn memory_is_released_off_the_task_where_that_blocks() {
    for is_virtual in [true, false] {
        let device = manual_builder().blocking_memory_calls(true);
        let device = device.virtual_memory(is_virtual).build();
        let pool = pool(&device, 16 * MIB);
        let (_, a) = stream(&device, &pool);
        drop(pool.try_allocate(&a, 16 * MIB).unwrap());
        device.advance_to_end();
        let mut tasks = [Woken::new(pool.charge_for(16 * MIB))];
        eventually(|| {
            settle(&mut tasks);
            !tasks[0].is_waiting()
        });
        assert_matches!(tasks[0].output, Some(Ok(_)));
        drop(tasks);
        let held = pool.charge_for(16 * MIB).blocking().unwrap();
        let waiting = thread::spawn({
            let pool = pool.clone();
            move || pool.charge_for(MIB).blocking().map(drop)
        });
        eventually(|| pool.inspect().statistics().waits.waiting == 1);
        drop(held);
        waiting.join().unwrap().unwrap();
        check_empty(&pool);
    }
}

#[test]
fn charge_is_served_under_a_dead_runtime_and_a_panicking_waker() {
    for device in devices() {
        let pool = pool(&device, 16 * MIB);
        let held = pool.charge(16 * MIB).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let entered = runtime.enter();
        let dead = not_ready(pool.charge_for(8 * MIB));
        drop(entered);
        let mut panicking = Woken::panicking(pool.charge_for(8 * MIB));
        drop(runtime);
        drop(held);
        device.advance(Duration::from_millis(200));
        let mut dead = dead;
        assert_matches!(poll(&mut dead), Poll::Ready(Ok(_)));
        panicking.poll();
        assert_matches!(panicking.output, Some(Ok(_)));
        drop((dead, panicking));
        check_empty(&pool);
    }
}

/// A source of capacity that notes the needs, and applies the bounds of the test.
#[derive(Debug, Default)]
struct Lends {
    pool: Mutex<Option<BoundedPool>>,
    needed: AtomicU64,
    asked_now: AtomicU64,
}

impl Lends {
    fn lend(&self, bound: u64, is_binding: bool) -> u64 {
        let bounds = Bounds {
            first: bound,
            bound,
            is_binding,
            ..Bounds::default()
        };
        let mut pool = self.pool.lock().unwrap();
        pool.as_mut().unwrap().apply(bounds).unwrap().held
    }
}

impl CapacitySource for Lends {
    fn join(&self, _: &Joining<'_>) -> Result<Option<u64>, Box<dyn Error + Send + Sync>> {
        Ok(Some(u64::MAX))
    }

    fn start(&self, pool: BoundedPool) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self.pool.lock().unwrap() = Some(pool);
        Ok(())
    }

    fn need(&self, bytes: u64) {
        self.needed.store(bytes, Ordering::SeqCst);
    }

    fn need_now(&self, bytes: u64) -> bool {
        self.asked_now.store(bytes, Ordering::SeqCst);
        false
    }

    fn satisfied(&self) {
        self.needed.store(0, Ordering::SeqCst);
    }
}

#[test]
fn charge_asks_the_source_of_the_capacity_for_what_free_memory_does_not_give() {
    let source = Arc::new(Lends::default());
    let device = SimDevice::builder().memory(1 << 30).clock(Clock::Wall);
    let pool = Pool::builder(device.build()).capacity(64 * MIB);
    let pool = pool.chunk_bytes(CHUNK).capacity_source(source.clone());
    let pool = pool.made();
    let stream = pool.create_stream().unwrap();
    source.lend(8 * MIB, false);
    drop(pool.try_allocate(&stream, 8 * MIB).unwrap());
    assert!(pool.charge(12 * MIB).is_err());
    assert_eq!(source.asked_now.load(Ordering::SeqCst), 4 * MIB);
    assert_eq!(reserved(&pool), 8 * MIB, "nothing is released in vain");
    let mut waiting = not_ready(pool.charge_for(12 * MIB));
    assert_eq!(source.needed.load(Ordering::SeqCst), 4 * MIB);
    source.lend(12 * MIB, false);
    let charge = soon(&mut waiting).unwrap();
    let seen = (source.needed.load(Ordering::SeqCst), reserved(&pool));
    assert_eq!(seen, (0, 0));
    // A recall: the charge stays, and others wait.
    let mut waiting = not_ready(pool.charge_for(2 * MIB));
    assert_eq!(source.lend(4 * MIB, true), 12 * MIB);
    assert!(poll(&mut waiting).is_pending());
    drop(charge);
    assert!(source.lend(4 * MIB, true) <= 4 * MIB);
    let charge = soon(&mut waiting).unwrap();
    assert_eq!(charged(&pool), 2 * MIB);
    drop((charge, waiting));
    check_empty(&pool);
}

#[test]
fn charges_and_allocations_of_many_threads_stay_within_the_capacity() {
    for is_virtual in [true, false] {
        let device = SimDevice::builder().memory(1 << 30).clock(Clock::Wall);
        let device = device.virtual_memory(is_virtual).build();
        let pool = pool(&device, 16 * MIB);
        let held = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..6)
            .map(|seed| {
                let (pool, held) = (pool.clone(), held.clone());
                let stream = pool.create_stream().unwrap();
                thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for _ in 0..60 {
                        let bytes = random.u64(1..=8) * MIB;
                        let hold = || {
                            let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                            assert!(now <= 16 * MIB, "{now} bytes at once");
                            thread::yield_now();
                            held.fetch_sub(bytes, Ordering::SeqCst);
                        };
                        match random.u8(..4) {
                            0 => {
                                let block = pool.allocate(&stream, bytes).blocking().unwrap();
                                hold();
                                drop(block);
                            }
                            1 => drop(poll(&mut pool.charge_for(bytes))),
                            _ => {
                                let charge = pool.charge_for(bytes).blocking().unwrap();
                                hold();
                                drop(charge);
                            }
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        check_empty(&pool);
    }
}

#[test]
fn charge_outlives_its_pool() {
    let device = manual();
    let pool = pool(&device, 16 * MIB);
    let charge: Charge = now(pool.charge_for(MIB).tag(Tag::new("charges: late"))).unwrap();
    assert_eq!(format!("{charge:?}"), "Charge(1.0 MiB)");
    let full = pool.charge(16 * MIB).unwrap_err();
    assert_matches!(full.class(), ErrorClass::Busy { .. });
    let weak = pool.downgrade();
    drop(pool);
    assert!(weak.upgrade().is_none());
    drop(charge);
}
