//! The pressure hook: when it is asked, and what it cannot break.

use super::*;
use async_trait::async_trait;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use weirpool::testing::Invariants;

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
) -> (Pool, Stream, Cache) {
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
    let pool = base(device).pressure_hook(hook).build().unwrap();
    let (_, stream) = stream(device, &pool);
    cache.fill(&pool, &stream);
    (pool, stream, cache)
}

/// The hook is asked with the shortfall, and memory that it frees is granted at once.
#[test]
fn memory_that_the_hook_frees_is_granted_at_once() {
    let device = manual();
    let (pool, stream, cache) = site(&device, |cache, shortfall| async move {
        cache.evict((shortfall.requested / MIB) as usize);
        Ok(())
    });
    let block = now(pool.allocate(&stream, 3 * MIB)).unwrap();
    assert_eq!(block.size(), 3 * MIB);
    let shortfall = cache.asked.lock().unwrap()[0];
    let figures = (shortfall.requested, shortfall.used, shortfall.free);
    assert_eq!(figures, (3 * MIB, ALL, 0));
    assert_eq!((cache.asked(), cache.at_work()), (1, 0));
    // Every kind of request that waits asks, while there are blocks to evict.
    drop(now(pool.allocate_many(&stream, [MIB, MIB])).unwrap());
    drop(block);
    drop(now(pool.reserve(ALL)).unwrap());
    assert_eq!(cache.asked(), 2 + 1);
    pool.check_conserved().unwrap();
}

/// A request that does not wait, or finds memory, does not ask.
#[test]
fn try_allocate_does_not_ask_the_hook() {
    let device = manual();
    let (pool, stream, cache) = site(&device, |cache, _| async move {
        cache.evict(1);
        Ok(())
    });
    assert!(pool.try_allocate(&stream, MIB).is_err());
    assert!(pool.reserve(MIB).try_now().is_err());
    cache.evict(1);
    drop(now(pool.allocate(&stream, MIB)).unwrap());
    assert_eq!(cache.asked(), 0);
}

/// A hook that fails or panics is reported and not asked again for that request, which waits on. The next request asks.
#[test]
fn hook_that_fails_or_panics_affects_no_request() {
    let device = manual();
    let (pool, stream, cache) = site(&device, |cache, _| async move {
        match cache.asked() {
            1 => Err("nothing to evict".into()),
            _ => panic!("a hook of a test"),
        }
    });
    let (woken, waker) = Count::new();
    let mut waiters = [MIB, 2 * MIB].map(|bytes| pool.allocate(&stream, bytes));
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
    let (pool, stream, cache) = site(&device, |_, _| std::future::pending());
    let mut served = not_ready(pool.allocate(&stream, MIB));
    assert_eq!(cache.at_work(), 1);
    cache.evict(1);
    assert!(poll(&mut served).is_ready());
    assert_eq!(cache.at_work(), 0);

    let mut late = not_ready(pool.allocate(&stream, 2 * MIB).timeout(us(100)));
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
    let (pool, stream, cache) = site(&device, |cache, _| async move {
        if cache.asked() == 1 {
            std::future::pending::<()>().await;
        }
        cache.evict(1);
        Ok(())
    });
    let first = not_ready(pool.allocate(&stream, MIB));
    let (woken, waker) = Count::new();
    let mut second = pool.allocate(&stream, MIB);
    assert!(poll_with(&mut second, &waker).is_pending());
    // Due before the first request, whose hook is at work: hooks do not work at the same time.
    let mut urgent = pool.allocate(&stream, MIB).priority(1);
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
    let (pool, stream, cache) = site(&device, move |cache, _| {
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
        let block = pool.allocate(&stream, 3 * MIB).await.unwrap();
        (block, device.now() - start)
    });
    // The hook was interrupted before it freed the fourth block.
    assert_eq!((waited, cache.at_work()), (us(3000), 0));
    drop(block);
    assert_eq!(cache.blocks.lock().unwrap().len(), 5);
}

/// Inside the hook, allocations from its own pool pass the queue, and neither wait nor ask: it cannot wait for itself.
#[test]
fn hook_may_allocate_from_its_own_pool() {
    let device = manual();
    let own = Arc::new(Mutex::new(None::<(Pool, Stream)>));
    let of_hook = own.clone();
    let (pool, stream, cache) = site(&device, move |cache, _| {
        let own = of_hook.lock().unwrap().clone();
        async move {
            let (pool, stream) = own.expect("it is there by now");
            let refused = pool.allocate(&stream, MIB).await;
            assert!(matches!(refused, Err(AllocError::Exhausted(_))));
            let refused = pool.allocate(&stream, MIB).blocking();
            assert!(matches!(refused, Err(AllocError::Exhausted(_))));
            cache.evict(1);
            let staging = pool.allocate(&stream, MIB).await?;
            let refused = pool.reserve(MIB).await;
            assert!(matches!(refused, Err(AllocError::Exhausted(_))));
            drop(staging);
            drop(pool.try_allocate(&stream, MIB)?);
            cache.evict(3);
            Ok(())
        }
    });
    *own.lock().unwrap() = Some((pool.clone(), stream.clone()));
    drop(now(pool.allocate(&stream, 4 * MIB)).unwrap());
    assert_eq!((cache.asked(), waiting(&pool)), (1, 0));
    assert_eq!(cache.blocks.lock().unwrap().len(), 4, "it came to its end");
}

/// Handles of the hook's own pool, set once they exist.
type Own = Arc<Mutex<Option<(Pool, Stream)>>>;

/// The hook works for the pool: it is outside the scopes of its request, and inside those that it enters itself.
#[test]
fn hook_draws_from_no_scope_of_the_request() {
    let device = manual();
    let own = Own::default();
    let of_hook = own.clone();
    let (pool, stream, cache) = site(&device, move |cache, _| {
        let own = of_hook.lock().unwrap().clone();
        async move {
            let (pool, stream) = own.expect("it is there by now");
            let refused = pool.allocate(&stream, MIB).await;
            assert!(matches!(refused, Err(AllocError::Exhausted(_))));
            assert!(pool.try_allocate(&stream, MIB).is_err());
            cache.evict(1);
            let staging = pool.reserve(MIB).await?;
            let block = staging.scope(pool.allocate(&stream, MIB)).await?;
            assert_eq!(staging.left(), 0);
            drop((block, staging));
            cache.evict(1);
            Ok(())
        }
    });
    *own.lock().unwrap() = Some((pool.clone(), stream.clone()));
    cache.evict(2);
    let reservation = pool.reserve(2 * MIB).try_now().unwrap();
    // More than is left: the request waits, and its poll asks the hook.
    let mut block = not_ready(Box::pin(reservation.scope(pool.allocate(&stream, 3 * MIB))));
    assert_eq!(
        (cache.asked(), cache.at_work()),
        (1, 0),
        "it came to its end"
    );
    assert_eq!((reservation.left(), reservation.size()), (2 * MIB, 2 * MIB));
    cache.evict(1);
    assert!(poll(&mut block).is_ready());
    assert_eq!(reservation.left(), 2 * MIB);
    drop((block, reservation));
    pool.close();
    *own.lock().unwrap() = None;
}

/// The hook is dropped with the request, inside the scope.
#[test]
fn dropped_hook_draws_from_no_scope_of_the_request() {
    struct Last(Option<(Pool, Stream)>, Arc<AtomicUsize>);

    impl Drop for Last {
        fn drop(&mut self) {
            let (pool, stream) = self.0.take().expect("it is there by now");
            assert!(pool.try_allocate(&stream, MIB).is_err());
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    let device = manual();
    let own = Own::default();
    let of_hook = own.clone();
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    let (pool, stream, cache) = site(&device, move |_, _| {
        let last = Last(of_hook.lock().unwrap().clone(), count.clone());
        async move {
            let _last = last;
            std::future::pending().await
        }
    });
    *own.lock().unwrap() = Some((pool.clone(), stream.clone()));
    cache.evict(1);
    let reservation = pool.reserve(MIB).try_now().unwrap();
    let block = not_ready(Box::pin(reservation.scope(pool.allocate(&stream, 2 * MIB))));
    assert_eq!(cache.at_work(), 1);
    drop(block);
    assert_eq!(
        (dropped.load(Ordering::SeqCst), reservation.left()),
        (1, MIB)
    );
    drop(reservation);
    *own.lock().unwrap() = None;
}

/// Memory of the reservation that the hook frees serves the request that was made in its scope, and no other.
#[test]
fn memory_that_the_hook_frees_into_a_reservation_serves_its_scope() {
    let device = manual();
    let (pool, stream, cache) = site(&device, |cache, _| async move {
        cache.evict(1);
        Ok(())
    });
    cache.evict(2);
    let mut reservation = pool.reserve(2 * MIB).try_now().unwrap();
    let drawn = reservation.allocate(&stream, 2 * MIB).unwrap();
    cache.blocks.lock().unwrap().push(drawn);
    let block = now(reservation.scope(pool.allocate(&stream, MIB))).unwrap();
    assert_eq!((cache.asked(), reservation.left()), (1, MIB));
    assert_eq!(waiting(&pool), 0);
    let rest = reservation.split(MIB).unwrap();
    drop((block, rest, reservation));
    cache.evict(8);
    pool.check_conserved().unwrap();
}

/// A tenant whose evictable cache fills its limit.
#[test]
fn hook_is_asked_at_a_tags_limit() {
    let device = manual();
    let tag = Tag::new("hook: a tenant");
    let held = Arc::new(Mutex::new(None));
    let evicted = held.clone();
    let (pool, stream, cache) = site(&device, move |_, shortfall: Shortfall| {
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
    let mut throttled = pool.allocate(&stream, MIB).tag(tag);
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

/// A hook with blocks of its own pool keeps the pool alive until it is closed.
#[test]
fn closing_drops_the_hook() {
    let device = manual();
    let (pool, stream, cache) = site(&device, |_, _| std::future::pending());
    let blocks = Arc::downgrade(&cache.blocks);
    let mut waiter = not_ready(pool.allocate(&stream, MIB));
    drop(cache);
    assert!(blocks.upgrade().is_some());
    pool.close();
    assert!(matches!(
        poll(&mut waiter),
        Poll::Ready(Err(AllocError::Closed))
    ));
    assert!(blocks.upgrade().is_none());
    assert_eq!(now(pool.drain()), Ok(()));
}

/// Many threads are short at once: one request asks at a time, and all are served.
#[test]
fn one_request_asks_the_hook_at_a_time() {
    let device = manual();
    let (pool, _, cache) = site(&device, |cache, _| async move {
        cache.evict(1);
        Ok(())
    });
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (pool, (_, stream)) = (pool.clone(), stream(&device, &pool));
            std::thread::spawn(move || pool.allocate(&stream, MIB).blocking().unwrap())
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
        let builder = builder(&device, 2 * MIB).pressure_hook(hook);
        let pool = builder.build().unwrap();
        let (_, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, 2 * MIB).unwrap();
        let mut waits: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            let _ = pool.allocate(&stream, 2 * MIB).await;
            drop(held);
        });
        assert!(poll(&mut waits).is_pending());
        assert!(poll(&mut waits).is_pending(), "the hook is at work");
        KEPT.with_borrow_mut(|kept| *kept = Some(waits));
    });
    thread.join().unwrap();
}

/// A request of the hook does not wait: not even for a thread that would grow the pool, nor for memory that is expected.
#[test]
fn hook_is_granted_all_that_the_pool_may_take() {
    for order in [Order::GrowFirst, Order::WaitFirst] {
        let device = manual_builder().blocking_memory_calls(true).build();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let site: Arc<Mutex<Option<(Pool, Stream)>>> = Arc::default();
        let (of_pool, answered) = (site.clone(), answers.clone());
        let hook = Hook(move |_| {
            let (pool, stream) = of_pool.lock().unwrap().take().unwrap();
            let answered = answered.clone();
            async move {
                let staging = pool.allocate(&stream, 3 * CHUNK).await;
                let too_much = pool.allocate(&stream, 2 * CHUNK).blocking();
                let rest = pool.allocate(&stream, CHUNK).blocking();
                let all = [&staging, &too_much, &rest].map(Result::is_ok);
                answered.lock().unwrap().push(all);
                Ok(())
            }
        });
        let pool = builder(&device, 8 * CHUNK).order(order).pressure_hook(hook);
        let pool = pool.build().unwrap();
        let [(_, a), (work, b)] = streams(&device, &pool);
        let held = pool.try_allocate(&a, 3 * CHUNK).unwrap();
        let pending = pool.try_allocate(&b, CHUNK).unwrap();
        use_block(&work, &pending, us(100));
        *site.lock().unwrap() = Some((pool.clone(), a.clone()));
        let request = not_ready(pool.allocate(&b, 6 * CHUNK));
        assert_eq!(*answers.lock().unwrap(), [[true, false, true]]);
        drop((request, held, pending));
        pool.check_conserved().unwrap();
    }
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
    let pool = builder(&device, 8 * MIB)
        .pressure_hook(hook)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let _full = pool.try_allocate(&stream, 8 * MIB).unwrap();
    for times in 1..=2 {
        let mut waiting = pool.allocate(&stream, MIB);
        for _ in 0..4 {
            assert!(poll(&mut waiting).is_pending());
        }
        assert_eq!(asked.load(Ordering::SeqCst), times);
        drop(waiting);
    }
}
