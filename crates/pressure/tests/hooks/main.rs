//! The pressure hook: when it is asked, and what it cannot break. In virtual time.
//!
//! | file | about |
//! |---|---|
//! | `random` | many requests with hooks and without, against an oracle |

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod random;

use crate::common::*;
use async_trait::async_trait;
use futures::executor::block_on;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use weirpool::device::sim::SimDevice;
use weirpool::*;
use weirpool_pressure::*;

const ALL: u64 = 8 * MIB;

/// Streams wait on the host only.
fn base(device: &SimDevice) -> PoolBuilder {
    builder(device, ALL).tuning(|tuning| tuning.reuse = only_host_waits())
}

fn waiting(pool: &Pool) -> usize {
    pool.inspect().statistics().waits.waiting
}

type Answer = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A hook that is a function.
struct Hook<F>(F);

#[async_trait]
impl<F, A> PressureHook for Hook<F>
where
    F: Fn(Shortfall) -> A + Send + Sync,
    A: Future<Output = Answer> + Send,
{
    async fn relieve(&self, shortfall: Shortfall) -> Answer {
        (self.0)(shortfall).await
    }
}

/// State of the hooks in tests: blocks, how often they were asked, and how many are at work.
#[derive(Clone, Default)]
struct Cache {
    blocks: Arc<Mutex<Vec<Block>>>,
    asked: Arc<Mutex<Vec<Shortfall>>>,
    at_work: Arc<AtomicUsize>,
}

impl Cache {
    /// Fills the pool with blocks of 1 MiB each that can be evicted.
    fn fill(&self, pool: &Pool, stream: &Stream) {
        let all = std::iter::from_fn(|| pool.try_allocate(stream, MIB).ok());
        self.blocks.lock().unwrap().extend(all);
    }

    fn evict(&self, count: usize) {
        let mut blocks = self.blocks.lock().unwrap();
        let left = blocks.len().saturating_sub(count);
        let evicted = blocks.split_off(left);
        drop(blocks);
        drop(evicted);
    }

    fn note(&self, shortfall: Shortfall) -> AtWork {
        self.asked.lock().unwrap().push(shortfall);
        let before = self.at_work.fetch_add(1, Ordering::SeqCst);
        assert_eq!(before, 0, "one at a time");
        AtWork(self.at_work.clone())
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn at_work(&self) -> usize {
        self.at_work.load(Ordering::SeqCst)
    }
}

/// Counts the hook as at work until this is dropped.
struct AtWork(Arc<AtomicUsize>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A full pool, and a hook that works on the cache that fills it.
fn site<A: Future<Output = Answer> + Send + 'static>(
    device: &SimDevice,
    relieve: impl Fn(Cache, Shortfall) -> A + Send + Sync + 'static,
) -> (Pool, Stream, Cache, Pressure) {
    let cache = Cache::default();
    let hook = {
        let cache = cache.clone();
        Hook(move |shortfall| {
            let at_work = cache.note(shortfall);
            let relieving = relieve(cache.clone(), shortfall);
            async move {
                let _at_work = at_work;
                relieving.await
            }
        })
    };
    let pool = base(device).build().unwrap();
    let (_, stream) = stream(device, &pool);
    cache.fill(&pool, &stream);
    (pool, stream, cache, Pressure::new(hook))
}

/// The hook is asked with the shortfall, and memory that it frees is granted at once.
#[test]
fn memory_that_the_hook_frees_is_granted_at_once() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |cache, shortfall| async move {
        cache.evict((shortfall.requested / MIB) as usize);
        Ok(())
    });
    let block = now(pool.allocate(&stream, 3 * MIB).relieve_with(&pressure)).unwrap();
    assert_eq!(block.size(), 3 * MIB);
    let shortfall = cache.asked.lock().unwrap()[0];
    let figures = (shortfall.requested, shortfall.used, shortfall.free);
    assert_eq!(figures, (3 * MIB, ALL, 0));
    assert_eq!((cache.asked(), cache.at_work()), (1, 0));
    // Every kind of request that waits asks, while there are blocks to evict.
    drop(
        now(pool
            .allocate_many(&stream, [MIB, MIB])
            .relieve_with(&pressure))
        .unwrap(),
    );
    drop(block);
    drop(now(pool.reserve(ALL).relieve_with(&pressure)).unwrap());
    assert_eq!(cache.asked(), 2 + 1);
    pool.inspect().check_conserved().unwrap();
}

/// A request that does not wait, or finds memory, does not ask.
#[test]
fn try_allocate_does_not_ask_the_hook() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |cache, _| async move {
        cache.evict(1);
        Ok(())
    });
    assert!(pool.try_allocate(&stream, MIB).is_err());
    assert!(pool.reserve(MIB).try_now().is_err());
    cache.evict(1);
    drop(now(pool.allocate(&stream, MIB).relieve_with(&pressure)).unwrap());
    assert_eq!(cache.asked(), 0);
}

/// A hook that fails or panics is reported and not asked again for that request, which waits on. The next request asks.
#[test]
fn hook_that_fails_or_panics_affects_no_request() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |cache, _| async move {
        match cache.asked() {
            1 => Err("nothing to evict".into()),
            _ => panic!("a hook of a test"),
        }
    });
    let (woken, waker) = Count::new();
    let mut waiters =
        [MIB, 2 * MIB].map(|bytes| pool.allocate(&stream, bytes).relieve_with(&pressure));
    for round in 0..3 {
        for waiter in &mut waiters {
            assert!(poll_with(waiter, &waker).is_pending(), "round {round}");
        }
    }
    assert_eq!(cache.asked(), 1, "the second is not the head");
    cache.evict(1);
    let [mut first, mut second] = waiters;
    let before = woken.get();
    let first = match poll(&mut first) {
        Poll::Ready(block) => block.unwrap(),
        Poll::Pending => panic!("there is memory"),
    };
    assert!(woken.get() > before, "the new head is to ask");
    assert!(poll_with(&mut second, &waker).is_pending());
    assert_eq!((cache.asked(), cache.at_work()), (2, 0));
    drop(first);
    cache.evict(1);
    assert!(poll(&mut second).is_ready());
}

/// A hook that never ends is dropped with its request, however that ends. Memory that others free is granted meanwhile.
#[test]
fn hook_that_never_ends_delays_no_request() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |_, _| std::future::pending());
    let mut served = not_ready(pool.allocate(&stream, MIB).relieve_with(&pressure));
    assert_eq!(cache.at_work(), 1);
    cache.evict(1);
    assert!(poll(&mut served).is_ready());
    assert_eq!(cache.at_work(), 0);

    let mut late = not_ready(
        pool.allocate(&stream, 2 * MIB)
            .timeout(us(100))
            .relieve_with(&pressure),
    );
    assert_eq!((cache.asked(), cache.at_work()), (2, 1));
    device.advance(us(100));
    let Poll::Ready(Err(AllocError::TimedOut { .. })) = poll(&mut late) else {
        panic!("its time is over");
    };
    assert_eq!(cache.at_work(), 0);
    assert_eq!(waiting(&pool), 0);
}

/// A request that gives up takes its hook's work with it. The next request is woken, and asks.
#[test]
fn request_that_gives_up_passes_the_hook_on() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |cache, _| async move {
        if cache.asked() == 1 {
            std::future::pending::<()>().await;
        }
        cache.evict(1);
        Ok(())
    });
    let first = not_ready(pool.allocate(&stream, MIB).relieve_with(&pressure));
    let (woken, waker) = Count::new();
    let mut second = pool.allocate(&stream, MIB).relieve_with(&pressure);
    assert!(poll_with(&mut second, &waker).is_pending());
    // Due before the first request, whose hook is at work: hooks do not work at the same time.
    let mut urgent = pool
        .allocate(&stream, MIB)
        .priority(1)
        .relieve_with(&pressure);
    assert!(poll_with(&mut urgent, &waker).is_pending());
    assert_eq!((cache.asked(), cache.at_work()), (1, 1));
    let before = woken.get();
    drop(first);
    assert_eq!(cache.at_work(), 0);
    assert!(woken.get() > before);
    assert!(poll_with(&mut urgent, &waker).is_ready());
    assert_eq!(cache.asked(), 2);
    assert!(poll_with(&mut second, &waker).is_ready());
    assert_eq!(waiting(&pool), 0);
}

/// A slow hook is polled by the request's own polls.
#[test]
fn slow_hook_is_polled_by_the_request() {
    let device = SimDevice::new();
    let clock = device.clone();
    let (pool, stream, cache, pressure) = site(&device, move |cache, _| {
        let clock = clock.clone();
        async move {
            for _ in 0..4 {
                clock.sleep(us(1000)).await;
                cache.evict(1);
            }
            Ok(())
        }
    });
    let (block, waited) = device.block_on(async {
        let start = device.now();
        let block = pool
            .allocate(&stream, 3 * MIB)
            .relieve_with(&pressure)
            .await
            .unwrap();
        (block, device.now() - start)
    });
    // The hook was interrupted before it freed the fourth block.
    assert_eq!((waited, cache.at_work()), (us(3000), 0));
    drop(block);
    assert_eq!(cache.blocks.lock().unwrap().len(), 5);
}

/// Memory of the reservation that the hook frees serves the request that was made in its scope, and no other.
#[test]
fn memory_that_the_hook_frees_into_a_reservation_serves_its_scope() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |cache, _| async move {
        cache.evict(1);
        Ok(())
    });
    cache.evict(2);
    let mut reservation = pool.reserve(2 * MIB).try_now().unwrap();
    let drawn = reservation.allocate(&stream, 2 * MIB).unwrap();
    cache.blocks.lock().unwrap().push(drawn);
    let block =
        now(reservation.scope(pool.allocate(&stream, MIB).relieve_with(&pressure))).unwrap();
    assert_eq!((cache.asked(), reservation.left()), (1, MIB));
    assert_eq!(waiting(&pool), 0);
    let rest = reservation.split(MIB).unwrap();
    drop((block, rest, reservation));
    cache.evict(8);
    pool.inspect().check_conserved().unwrap();
}

/// A tenant whose evictable cache fills its limit.
#[test]
fn hook_is_asked_at_a_tags_limit() {
    let device = manual();
    let tag = Tag::new("hook: a tenant");
    let held = Arc::new(Mutex::new(None));
    let evicted = held.clone();
    let (pool, stream, cache, pressure) = site(&device, move |_, shortfall: Shortfall| {
        let evicted = evicted.clone();
        async move {
            assert_eq!(
                shortfall.tag.map(|of| (of.used, of.limit)),
                Some((MIB, MIB))
            );
            drop(evicted.lock().unwrap().take());
            Ok(())
        }
    });
    cache.evict(4);
    let block = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    *held.lock().unwrap() = Some(block);
    pool.tag(tag).set_limit(Some(MIB));
    let (woken, waker) = Count::new();
    let mut throttled = pool.allocate(&stream, MIB).tag(tag).relieve_with(&pressure);
    let mut polled = poll_with(&mut throttled, &waker);
    for _ in 0..3 {
        if polled.is_pending() && woken.take() > 0 {
            polled = poll_with(&mut throttled, &waker);
        }
    }
    assert_eq!(cache.asked(), 1);
    assert!(polled.is_ready(), "what was evicted serves it");
    drop(polled);
    pool.close();
}

/// A hook with blocks of its own pool keeps neither the pool nor a request of it from ending.
#[test]
fn closing_ends_the_request_and_the_work_of_its_hook() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |_, _| std::future::pending());
    let mut waiter = not_ready(pool.allocate(&stream, MIB).relieve_with(&pressure));
    assert_eq!(cache.at_work(), 1);
    pool.close();
    assert!(matches!(
        poll(&mut waiter),
        Poll::Ready(Err(AllocError::Closed))
    ));
    assert_eq!(cache.at_work(), 0);
    drop((waiter, cache, pressure));
    assert_eq!(now(pool.drain()), Ok(()));
}

/// The future of the hook owns blocks. They serve requests behind the one that ends.
#[test]
fn blocks_of_a_hook_that_is_interrupted_come_back() {
    for device in devices() {
        let (pool, stream, cache, pressure) = site(&device, |cache, _| async move {
            let _moved = cache.blocks.lock().unwrap().split_off(6);
            std::future::pending().await
        });
        let (woken, waker) = Count::new();
        let first = not_ready(pool.allocate(&stream, 3 * MIB).relieve_with(&pressure));
        assert_eq!(cache.at_work(), 1);
        let mut second = pool.allocate(&stream, 2 * MIB);
        assert!(poll_with(&mut second, &waker).is_pending());
        drop(first);
        assert!(woken.get() > 0);
        assert!(poll(&mut second).is_ready());
        drop(second);
        cache.evict(8);
        pool.inspect().check_conserved().unwrap();
    }
}

/// Inside the hook, `try_allocate` fails while its request is in the queue. A reservation made before serves it.
#[test]
fn hook_allocates_from_a_reservation_of_its_own() {
    let device = manual();
    let own = Arc::new(Mutex::new(None::<(Pool, Stream, Reservation)>));
    let of_hook = own.clone();
    let (pool, stream, cache, pressure) = site(&device, move |cache, _| {
        let own = of_hook.lock().unwrap().take();
        async move {
            let (pool, stream, staging) = own.expect("it is there by now");
            let refused = pool.try_allocate(&stream, MIB);
            assert!(matches!(refused, Err(AllocError::Exhausted(_))));
            drop(staging.allocate(&stream, MIB)?);
            cache.evict(3);
            Ok(())
        }
    });
    cache.evict(1);
    let staging = pool.reserve(MIB).try_now().unwrap();
    *own.lock().unwrap() = Some((pool.clone(), stream.clone(), staging));
    drop(now(pool.allocate(&stream, 3 * MIB).relieve_with(&pressure)).unwrap());
    assert_eq!((cache.asked(), waiting(&pool)), (1, 0));
    assert_eq!(cache.blocks.lock().unwrap().len(), 4, "it came to its end");
}

/// A request that was throttled asks again as the head of the queue.
#[test]
fn throttled_request_asks_once_in_each_queue() {
    let device = manual();
    let tag = Tag::new("hook: another tenant");
    let (pool, stream, cache, pressure) = site(&device, |cache, _| async move {
        if cache.asked() == 2 {
            cache.evict(1);
        }
        Ok(())
    });
    cache.evict(1);
    let held = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    pool.tag(tag).set_limit(Some(MIB));
    let (woken, waker) = Count::new();
    let mut throttled = pool.allocate(&stream, MIB).tag(tag).relieve_with(&pressure);
    for _ in 0..3 {
        assert!(poll_with(&mut throttled, &waker).is_pending());
    }
    assert_eq!(cache.asked(), 1);
    woken.take();
    pool.tag(tag).set_limit(Some(2 * MIB));
    assert!(woken.get() > 0);
    assert!(poll_with(&mut throttled, &waker).is_ready());
    assert_eq!(cache.asked(), 2);
    drop(held);
}

/// Pools that share a hook take turns.
#[test]
fn two_pools_share_a_hook() {
    let device = manual();
    let (pool, stream, cache, pressure) = site(&device, |_, _| std::future::pending());
    let other = base(&device).build().unwrap();
    let (_, others) = common::stream(&device, &other);
    let _full = other.try_allocate(&others, ALL).unwrap();
    let first = not_ready(pool.allocate(&stream, MIB).relieve_with(&pressure));
    let (woken, waker) = Count::new();
    let mut second = other.allocate(&others, MIB).relieve_with(&pressure);
    assert!(poll_with(&mut second, &waker).is_pending());
    woken.take();
    assert!(poll_with(&mut second, &waker).is_pending());
    assert_eq!((cache.asked(), woken.get()), (1, 0));
    drop(first);
    assert_eq!(woken.get(), 1);
    assert!(poll_with(&mut second, &waker).is_pending());
    assert_eq!((cache.asked(), cache.at_work()), (2, 1));
}

/// A waker that panics when a turn ends loses no other one.
#[test]
fn turn_passes_over_wakers_that_panic_and_tasks_that_are_dead() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("a waker that panics"));
        }
    }
    let device = manual();
    let tags = ["hook: one", "hook: two", "hook: three"].map(Tag::new);
    let (pool, stream, cache, pressure) = site(&device, |_, _| std::future::pending());
    cache.evict(3);
    let held = tags.map(|tag| {
        pool.tag(tag).set_limit(Some(MIB));
        pool.allocate(&stream, MIB).tag(tag).try_now().unwrap()
    });
    let first = not_ready(pool.allocate(&stream, MIB).relieve_with(&pressure));
    let (woken, waker) = Count::new();
    let wakers = [Waker::from(Arc::new(Panics)), Waker::noop().clone(), waker];
    let mut requests = tags.map(|tag| pool.allocate(&stream, MIB).tag(tag).relieve_with(&pressure));
    for (request, waker) in requests.iter_mut().zip(&wakers) {
        assert!(poll_with(request, waker).is_pending());
        assert!(poll_with(request, waker).is_pending());
    }
    assert_eq!(cache.asked(), 1);
    woken.take();
    drop(first);
    assert!(woken.get() > 0);
    assert!(poll_with(&mut requests[2], &wakers[2]).is_pending());
    assert_eq!((cache.asked(), cache.at_work()), (2, 1));
    drop((requests, held));
    assert_eq!(cache.at_work(), 0);
}

/// Many threads are short at once: one request asks at a time, and all are served.
#[test]
fn one_request_asks_the_hook_at_a_time() {
    let device = manual();
    let (pool, _, cache, pressure) = site(&device, |cache, _| async move {
        cache.evict(1);
        Ok(())
    });
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (pool, (_, stream)) = (pool.clone(), stream(&device, &pool));
            let pressure = pressure.clone();
            std::thread::spawn(move || {
                let request = pool.allocate(&stream, MIB).relieve_with(&pressure);
                block_on(request).unwrap()
            })
        })
        .collect();
    let blocks: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!((blocks.len(), cache.asked(), cache.at_work()), (8, 8, 0));
    assert!(cache.blocks.lock().unwrap().is_empty());
}

/// The thread-local that owns the future was made first, so it is dropped after those of the crate.
#[test]
fn future_with_a_hook_at_work_may_outlive_the_threads_other_locals() {
    use std::cell::RefCell;
    use std::pin::Pin;

    type Kept = RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>;
    thread_local! {
        static KEPT: Kept = const { RefCell::new(None) };
    }

    let thread = std::thread::spawn(|| {
        KEPT.with_borrow_mut(|kept| *kept = None);
        let device = manual();
        let hook = Hook(|_| std::future::pending::<Answer>());
        let pressure = Pressure::new(hook);
        let pool = builder(&device, 2 * MIB).build().unwrap();
        let (_, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, 2 * MIB).unwrap();
        let mut waits: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            let request = pool.allocate(&stream, 2 * MIB).relieve_with(&pressure);
            let _ = request.await;
            drop(held);
        });
        assert!(poll(&mut waits).is_pending());
        assert!(poll(&mut waits).is_pending(), "the hook is at work");
        KEPT.with_borrow_mut(|kept| *kept = Some(waits));
    });
    thread.join().unwrap();
}

/// A hook's future that panics when it is dropped neither reaches the request's owner nor ends the hook.
#[test]
fn hook_survives_a_future_that_panics_when_dropped() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("a hook's own bug");
            }
        }
    }
    let device = manual();
    let asked = Arc::new(AtomicUsize::new(0));
    let hook = {
        let asked = asked.clone();
        Hook(move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            let panics = Panics;
            async move {
                let _panics = panics;
                std::future::pending::<Answer>().await
            }
        })
    };
    let pressure = Pressure::new(hook);
    let pool = builder(&device, 8 * MIB).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let _full = pool.try_allocate(&stream, 8 * MIB).unwrap();
    for times in 1..=2 {
        let mut waiting = pool.allocate(&stream, MIB).relieve_with(&pressure);
        for _ in 0..4 {
            assert!(poll(&mut waiting).is_pending());
        }
        assert_eq!(asked.load(Ordering::SeqCst), times);
        drop(waiting);
    }
}
