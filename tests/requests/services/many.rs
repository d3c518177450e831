//! Thousands of requests that wait, and give up at random.

use super::*;
use futures::future::{Either, join_all, select};
use futures::task::LocalSpawnExt;
use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const TASKS: u64 = 10_000;
const STREAMS: usize = 64;

/// How many tasks ended in which way.
#[derive(Default)]
struct Counts {
    served: Cell<u64>,
    late: Cell<u64>,
    cancelled: Cell<u64>,
}

fn add(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// The request of a task, and when it gives up.
struct Plan {
    bytes: u64,
    priority: i32,
    timeout: Duration,
    cancelled_after: Duration,
    work: Duration,
}

impl Plan {
    fn random(random: &mut fastrand::Rng) -> Self {
        let mut up_to = |most| us(random.u64(1..most));
        Self {
            timeout: up_to(200_000),
            cancelled_after: up_to(200_000),
            work: up_to(500),
            bytes: random.u64(1..4 * MIB),
            priority: random.i32(0..3),
        }
    }
}

/// All requests come at once, so that nearly all wait at once. A third of them give up meanwhile, by a timeout or by
/// being dropped. A reclaimer serves the queue.
#[test]
fn ten_thousand_wait_on_64_streams() {
    let device = SimDevice::builder().memory(1 << 30).seed(1).build();
    let pool = builder(&device, 64 * MIB).made();
    let streams: Vec<_> = (0..STREAMS).map(|_| stream(&device, &pool)).collect();
    let streams: Rc<[_]> = streams.into();
    let counts = Rc::new(Counts::default());
    let mut random = fastrand::Rng::with_seed(7);
    let most_waiting = device.run(|spawner| {
        spawner.spawn_local(pool.maintain().reclaimer()).unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|n| {
                let plan = Plan::random(&mut random);
                let (device, pool) = (device.clone(), pool.clone());
                let (streams, counts) = (streams.clone(), counts.clone());
                let task = async move {
                    let (work, stream) = &streams[n as usize % STREAMS];
                    let allocate = pool.allocate(stream, plan.bytes).priority(plan.priority);
                    let allocate = allocate.timeout(plan.timeout);
                    let giving_up = device.sleep(plan.cancelled_after);
                    match select(pin!(allocate), pin!(giving_up)).await {
                        Either::Left((Ok(block), _)) => {
                            use_block(work, &block, plan.work);
                            add(&counts.served);
                        }
                        Either::Left((Err(error), _)) => {
                            assert_matches!(error, AllocError::TimedOut { .. });
                            add(&counts.late);
                        }
                        Either::Right(_) => add(&counts.cancelled),
                    }
                };
                spawner.spawn_local_with_handle(task).unwrap()
            })
            .collect();
        let pool = pool.clone();
        let device = device.clone();
        async move {
            device.sleep(us(1)).await;
            let most_waiting = waiting(&pool);
            join_all(tasks).await;
            pool.drain().await.unwrap();
            most_waiting
        }
    });
    let (served, late, cancelled) = (
        counts.served.get(),
        counts.late.get(),
        counts.cancelled.get(),
    );
    assert_eq!(served + late + cancelled, TASKS);
    assert!(most_waiting > 9_000, "{most_waiting} waited at once");
    assert!(
        served > 1000 && late > 1000 && cancelled > 1000,
        "{served} served, {late} late, {cancelled} cancelled"
    );
    let statistics = pool.inspect().statistics();
    let waits = statistics.waits;
    assert_eq!(waits.waiting, 0);
    assert_eq!((waits.timed_out, waits.cancelled), (late, cancelled));
    assert!(waits.served <= served);
    let found = (statistics.used.current, statistics.pending.current);
    assert_eq!(found, (0, 0));
    pool.inspect().check_conserved().unwrap();
}

/// A pool of 8 MiB, half of which is in use, with a thousand waiting requests and no reclaimer. The head asks for all
/// of the memory, the others for this many bytes each.
fn many_waiting(
    overtaking: Overtaking,
    each: u64,
    check: impl FnOnce(&mut VecDeque<Allocate<'_>>, &Arc<Count>),
) {
    let device = manual();
    let pool = builder(&device, 8 * MIB).tuning(|tuning| tuning.reuse = only_host_waits());
    let pool = pool.tuning(|tuning| tuning.overtaking = overtaking).made();
    let (_, stream) = stream(&device, &pool);
    let half = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let (woken, waker) = Count::new();
    let mut waiters: VecDeque<_> = (0..1000)
        .map(|n| pool.allocate(&stream, if n == 0 { 8 * MIB } else { each }))
        .collect();
    for waiter in &mut waiters {
        assert!(poll_with(waiter, &waker).is_pending());
    }
    assert_eq!((waiting(&pool), woken.get()), (1000, 0));
    check(&mut waiters, &woken);
    drop((waiters, half));
    assert_eq!(waiting(&pool), 0);
}

/// A request that gives up behind the head wakes no other. The head wakes the next request that can be served.
#[test]
fn request_that_gives_up_wakes_only_the_next_head() {
    many_waiting(Overtaking::NONE, 4 * MIB, |waiters, woken| {
        drop(waiters.pop_back());
        drop(waiters.remove(500));
        assert_eq!(woken.get(), 0);
        drop(waiters.pop_front());
        assert_eq!(woken.get(), 1, "there is memory for the next");
        let granted = poll(&mut waiters[0]);
        assert!(granted.is_ready() && poll(&mut waiters[1]).is_pending());
    });
    many_waiting(Overtaking::NONE, 8 * MIB, |waiters, woken| {
        for _ in 0..10 {
            drop(waiters.pop_front());
        }
        assert_eq!(woken.get(), 0, "there is memory for none of them");
    });
}

/// Where overtaking is allowed, each of the requests that are looked at may stand in the way of others.
#[test]
fn request_that_gives_up_in_front_lets_others_overtake() {
    let overtaking = overtaking(1, 8 * MIB);
    many_waiting(overtaking, 8 * MIB, |waiters, woken| {
        drop(waiters.pop_back());
        drop(waiters.remove(10));
        assert_eq!(woken.get(), 0);
    });
    let (_, pool, [(_, stream)]) =
        set_up_with(|device| tuned(device, 8 * MIB, |tuning| tuning.overtaking = overtaking));
    let half = pool.try_allocate(&stream, 4 * MIB).unwrap();
    let passed = not_ready(pool.allocate(&stream, 8 * MIB));
    let small = now(pool.allocate(&stream, MIB)).unwrap();
    let mut head = not_ready(pool.allocate(&stream, 8 * MIB).priority(1));
    let (mut behind, woken, _) = not_ready_counted(pool.allocate(&stream, MIB));
    drop(passed);
    assert_eq!(woken.get(), 1, "the head may still be passed");
    assert!(poll(&mut behind).is_ready() && poll(&mut head).is_pending());
    drop((half, small));
}
