//! Every future is polled any number of times and dropped: no byte is lost, and no wake-up is missed.

use super::*;
use async_trait::async_trait;
use futures::future::join;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use weirpool::device::sim::SimStream;
use weirpool_pressure::{Pressure, PressureHook, RelieveWith};

type Subject<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A pool with cached, used and free memory.
struct World {
    device: SimDevice,
    pool: TestPool,
    work: SimStream,
    stream: Stream,
    other: Stream,
    held: Option<Block>,
    cache: Arc<Mutex<Vec<Block>>>,
    pressure: Pressure,
}

struct Evict(Weak<Mutex<Vec<Block>>>, SimDevice);

#[async_trait]
impl PressureHook for Evict {
    async fn relieve(&self, _: Shortfall) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.1.sleep(us(10)).await;
        let evicted = self
            .0
            .upgrade()
            .and_then(|cache| cache.lock().unwrap().pop());
        drop(evicted);
        Ok(())
    }
}

impl World {
    fn new() -> Self {
        let device = manual();
        let cache = Arc::new(Mutex::new(Vec::new()));
        let hook = Evict(Arc::downgrade(&cache), device.clone());
        let pool = base(&device).made();
        let (work, stream) = stream(&device, &pool);
        let other = pool.create_stream().unwrap();
        cache
            .lock()
            .unwrap()
            .push(pool.try_allocate(&stream, 2 * MIB).unwrap());
        let held = pool.try_allocate(&stream, 4 * MIB).unwrap();
        use_block(&work, &held, us(100));
        Self {
            device,
            pool,
            work,
            stream,
            other,
            held: Some(held),
            cache,
            pressure: Pressure::new(hook),
        }
    }

    /// The changes around the future, one after each of its polls.
    fn step(held: &mut Option<Block>, device: &SimDevice, number: usize) {
        match number {
            0 | 4 => drop(held.take()),
            _ => device.advance(us(10 * number as u64)),
        }
    }
}

const STEPS: usize = 8;

/// Polls the future `times` times, drops it, and makes the remaining changes. A request that waits behind it is polled
/// only when it is woken, and must be granted. Returns whether the future was ready before.
fn drop_after(times: usize, first_step: usize, make: &dyn Fn(&World) -> Subject<'_>) -> bool {
    let mut world = World::new();
    let mut held = world.held.take();
    let device = world.device.clone();
    let (woken, waker) = Count::new();
    let mut seen = usize::MAX;
    let mut bystander = world.pool.allocate(&world.other, 5 * MIB);
    let mut got = None;
    let mut follow = || {
        while got.is_none() && seen != woken.get() {
            seen = woken.get();
            if let Poll::Ready(block) = poll_with(&mut bystander, &waker) {
                got = Some(block.unwrap());
            }
        }
        got.is_some()
    };
    let mut subject = Some(make(&world));
    let mut is_ready = false;
    let mut step = first_step;
    for _ in 0..times {
        let future = subject.as_mut().unwrap().as_mut();
        let context = &mut Context::from_waker(Waker::noop());
        is_ready = future.poll(context).is_ready();
        follow();
        World::step(&mut held, &device, step);
        step += 1;
        if is_ready {
            break;
        }
    }
    drop(subject);
    follow();
    for step in step..STEPS {
        World::step(&mut held, &device, step);
        follow();
    }
    drop(held);
    world.cache.lock().unwrap().clear();
    for _ in 0..STEPS {
        device.advance(us(100));
    }
    assert!(follow(), "a wake-up is missing after {times} polls");
    drop((got, bystander));
    assert_eq!(waiting(&world.pool), 0);
    assert_eq!(now(world.pool.drain()), Ok(()));
    // Caches are in use again: the gate is open.
    drop(world.pool.try_allocate(&world.stream, 4096).unwrap());
    let again = world.pool.try_allocate(&world.stream, 4096).unwrap();
    assert_eq!(again.source(), Source::Lane);
    drop(again);
    world.pool.inspect().check_conserved().unwrap();
    assert!(world.work.backlog() == 0);
    is_ready
}

/// Tries every number of polls, and every first change.
fn drop_after_every_poll(make: impl Fn(&World) -> Subject<'_>) {
    for first_step in 0..=STEPS {
        let mut times = 0;
        while !drop_after(times, first_step, &make) && times < 2 * STEPS {
            times += 1;
        }
        assert!(times > 0);
    }
}

#[test]
fn allocation_dropped_after_any_poll_loses_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let request = world.pool.allocate(&world.stream, 3 * MIB);
            let block = request.relieve_with(&world.pressure).await.unwrap();
            use_block(&world.work, &block, us(10));
        })
    });
}

#[test]
fn allocation_with_a_deadline_dropped_after_any_poll_loses_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let block = world.pool.allocate(&world.other, 7 * MIB);
            let block = block.deadline(us(70)).relieve_with(&world.pressure);
            drop(block.await);
        })
    });
}

#[test]
fn allocations_at_the_limit_of_a_tag_dropped_after_any_poll_lose_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let tag = Tag::new("dropped: a tenant");
            world.pool.tag(tag).set_limit(Some(2 * MIB));
            let request = || world.pool.allocate(&world.stream, 2 * MIB).tag(tag);
            let allocate = || request().relieve_with(&world.pressure);
            let one = async { drop(allocate().await.unwrap()) };
            let other = async { drop(allocate().await.unwrap()) };
            join(one, other).await;
        })
    });
}

#[test]
fn allocation_of_many_blocks_dropped_after_any_poll_loses_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let many = world
                .pool
                .allocate_many(&world.stream, [MIB, 2 * MIB, 4096])
                .relieve_with(&world.pressure);
            assert_eq!(many.await.unwrap().len(), 3);
        })
    });
}

#[test]
fn reservation_that_grows_dropped_after_any_poll_loses_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let reservation = world.pool.reserve(3 * MIB);
            let mut reservation = reservation.relieve_with(&world.pressure).await.unwrap();
            let block = reservation.allocate(&world.stream, MIB).unwrap();
            let growth = reservation.grow(MIB).relieve_with(&world.pressure);
            growth.await.unwrap();
            assert_eq!(reservation.size(), 4 * MIB);
            use_block(&world.work, &block, us(10));
        })
    });
}

#[test]
fn scope_of_a_reservation_dropped_after_any_poll_loses_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let reservation = world.pool.reserve(3 * MIB).await.unwrap();
            let within = reservation.scope(async {
                let block = world.pool.allocate(&world.stream, 2 * MIB).await.unwrap();
                let more = world.pool.allocate(&world.other, 2 * MIB).await.unwrap();
                drop((block, more));
            });
            within.await;
        })
    });
}

#[test]
fn deallocation_dropped_after_any_poll_loses_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let block = world.pool.allocate(&world.stream, MIB).await.unwrap();
            use_block(&world.work, &block, us(20));
            block.deallocate().await.unwrap();
            world.stream.synchronize().await.unwrap();
        })
    });
}

#[test]
fn drain_dropped_after_any_poll_loses_no_memory_or_wake_up() {
    drop_after_every_poll(|world| Box::pin(async { world.pool.drain().await.unwrap() }));
}

/// Two drains, one of them with a limit, beside a waiting request.
#[test]
fn drains_beside_a_request_dropped_after_any_poll_lose_no_memory_or_wake_up() {
    drop_after_every_poll(|world| {
        Box::pin(async {
            let limited = world.pool.drain().timeout(us(50));
            let allocate = world.pool.allocate(&world.stream, 3 * MIB);
            let (_, block) = join(limited, allocate).await;
            drop(block.unwrap());
            world.pool.drain().await.unwrap();
        })
    });
}

struct Never;

#[async_trait]
impl PressureHook for Never {
    async fn relieve(&self, _: Shortfall) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        std::future::pending().await
    }
}

/// One request is forgotten while it waits with a pressure hook at work for it, two others at the limit of their tag.
#[test]
fn forgotten_request_does_not_keep_the_pool_alive() {
    let device = manual();
    let pool = base(&device).made();
    let pressure = Pressure::new(Never);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("dropped: forgotten");
    pool.tag(tag).set_limit(Some(MIB));
    let mut reclaimer = pool.maintain().reclaimer();
    let held = pool.try_allocate(&stream, pool.capacity()).unwrap();
    let waiting = pool.allocate(&stream, 2 * MIB).timeout(us(1000));
    let mut waiting = waiting.relieve_with(&pressure);
    let mut throttled = pool.allocate(&stream, MIB).tag(tag).relieve_with(&pressure);
    let mut over_limit = pool.allocate(&stream, MIB).tag(tag).relieve_with(&pressure);
    assert!(poll(&mut waiting).is_pending() && poll(&mut reclaimer).is_pending());
    assert!(poll(&mut throttled).is_pending() && poll(&mut over_limit).is_pending());
    for future in [waiting, throttled, over_limit] {
        std::mem::forget(future);
    }
    drop((held, stream, pool));
    assert!(poll(&mut reclaimer).is_ready());
    device.advance(us(2000));
    assert_eq!(device.counters().physical_in_use, 0);
}
