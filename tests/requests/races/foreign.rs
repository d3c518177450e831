//! Owners of streams, wakers and values whose destructors ask the pool for everything: none is dropped, cloned or called
//! while the pool holds a lock. If one were, its thread would wait for itself.

use super::*;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, RawWaker, RawWakerVTable, Waker};
use weirpool::device::sim::{Checker, Clock, SimStream};
use weirpool::device::*;

/// What destructors ask. They ask nothing while it is empty, before a test and after it.
#[derive(Clone, Default)]
struct Asked(Arc<(Mutex<Option<Pool>>, AtomicU64)>);

impl Asked {
    fn of(pool: &Pool) -> Self {
        let asked = Self::default();
        *asked.0.0.lock().unwrap() = Some(pool.clone());
        asked
    }

    /// Calls whatever takes a lock of the pool.
    fn ask(&self) {
        let pool = self.0.0.lock().unwrap().clone();
        let Some(pool) = pool else { return };
        self.0.1.fetch_add(1, Ordering::Relaxed);
        let _ = (
            pool.inspect().health(),
            pool.inspect().statistics(),
            pool.inspect().waiting_requests(4),
        );
        let _ = (
            pool.inspect().statistics_by_stream(),
            pool.maintain().reap(),
            pool.tag(tag()).statistics().limit,
        );
        if let Ok(stream) = pool.create_stream() {
            drop(pool.try_allocate(&stream, 512));
            let _ = stream.seal();
        }
    }

    fn count(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }

    fn end(&self) {
        let pool = self.0.0.lock().unwrap().take();
        drop(pool);
    }

    /// Returns a waker that asks whenever it is cloned, called or dropped, and panics after that if it `panics`.
    fn waker(&self, panics: bool) -> Waker {
        let asks = Box::new(Asks(self.clone(), panics));
        let data = Box::into_raw(asks).cast_const().cast();
        // SAFETY: the functions of the table treat the data as what it is: a box of `Asks`, owned by the waker.
        unsafe { Waker::new(data, &TABLE) }
    }
}

fn tag() -> Tag {
    Tag::new("asked")
}

/// Asks when it is dropped.
struct Asks(Asked, bool);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.ask();
        if self.1 && !std::thread::panicking() {
            // Without a message of the panic hook.
            std::panic::resume_unwind(Box::new("a destructor that panics"));
        }
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: see `Asked::waker`; the waker is borrowed for the call.
        let asks = unsafe { &*data.cast::<Asks>() };
        asks.0.ask();
        let clone = Box::new(Asks(asks.0.clone(), asks.1));
        RawWaker::new(Box::into_raw(clone).cast_const().cast(), &TABLE)
    },
    // SAFETY: see `Asked::waker`; the call takes the data over.
    |data| drop(unsafe { Box::from_raw(data.cast_mut().cast::<Asks>()) }),
    // SAFETY: see `Asked::waker`; the waker is borrowed for the call.
    |data| unsafe { &*data.cast::<Asks>() }.0.ask(),
    // SAFETY: see `Asked::waker`; the call takes the data over.
    |data| drop(unsafe { Box::from_raw(data.cast_mut().cast::<Asks>()) }),
);

/// A stream whose owner asks when it is dropped, as a library's wrapper around a stream.
struct Wrapped {
    work: SimStream,
    owner: Arc<(SimStream, Asks)>,
}

impl Wrapped {
    fn new(device: &SimDevice, asked: &Asked, panics: bool) -> Self {
        let work = device.create_stream();
        let owner = Arc::new((work.clone(), Asks(asked.clone(), panics)));
        Self { work, owner }
    }
}

// SAFETY: the owner keeps the stream of the simulated device.
unsafe impl DeviceStream for Wrapped {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        Ok(StreamProperties::new(
            self.work.device_id(),
            self.work.raw(),
        ))
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.owner.clone()
    }
}

/// Polls once with a waker. Returns whether the future is to be polled again.
fn poll_as<F: Future + Unpin>(future: &mut F, waker: &Waker) -> bool {
    std::pin::Pin::new(future)
        .poll(&mut Context::from_waker(waker))
        .is_pending()
}

/// A request joins the queue and leaves it, and its stream has no other handle.
fn newcomer_that_leaves(device: &SimDevice, pool: &Pool, asked: &Asked, panics: bool) {
    let wrapped = Wrapped::new(device, asked, panics);
    let stream = pool.register(&wrapped).unwrap();
    drop(wrapped);
    let waker = asked.waker(panics);
    let mut request = Box::pin(pool.allocate(&stream, 6 * MIB));
    if poll_as(&mut request, &waker) {
        // With another waker: the first one is replaced.
        poll_as(&mut request, &asked.waker(panics));
    }
    drop(request);
}

/// Runs a test on a thread of its own. One that waits for itself fails the test instead of hanging it.
fn bounded(test: impl FnOnce() + Send + 'static) {
    let (sender, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = sender.send(());
    });
    match ended.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => {
            panic!("a foreign value was dropped or called under a lock")
        }
        _ => thread.join().unwrap(),
    }
}

/// Blocks that a reservation keeps go back to the heap while their streams end, and figures are read meanwhile.
#[test]
fn owner_of_a_stream_is_not_dropped_while_a_reservation_gives_back_what_it_keeps() {
    bounded(|| {
        for device in devices() {
            let pool = pool(&device, 16 * MIB);
            let asked = Asked::of(&pool);
            for _ in 0..20 {
                let wrapped = Wrapped::new(&device, &asked, false);
                let stream = pool.register(&wrapped).unwrap();
                let reservation = pool.reserve(4 * MIB).try_now().unwrap();
                for _ in 0..3 {
                    drop(reservation.allocate(&stream, 4096).unwrap());
                }
                drop((wrapped, stream));
                let _ = pool.inspect().statistics();
                drop(reservation);
            }
            assert!(asked.count() > 0, "the owners were dropped");
            asked.end();
        }
    });
}

/// Threads do all of it at once, with destructors and wakers that also panic. No thread waits for itself, no wake-up of
/// another task is lost, and no memory.
#[test]
fn threads_with_owners_wakers_and_values_that_ask_the_pool() {
    for virtual_memory in [true, false] {
        bounded(move || {
            let device = SimDevice::builder()
                .memory(1 << 30)
                .virtual_memory(virtual_memory)
                .clock(Clock::Wall)
                .checker(Checker::Off)
                .build();
            let pool = builder(&device, 8 * MIB).made();
            let asked = Asked::of(&pool);
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for seed in 0..5 {
                    let (device, pool, asked, is_over) = (&device, &pool, &asked, &is_over);
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(seed);
                        for _ in 0..60 {
                            act(device, pool, asked, &mut random);
                        }
                        is_over.store(true, Ordering::Relaxed);
                    });
                }
                // A task like any other: each of its requests is served, although others panic when they are woken.
                scope.spawn(|| {
                    let stream = pool.create_stream().unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        drop(futures::executor::block_on(pool.allocate(&stream, MIB)).unwrap());
                    }
                });
            });
            assert!(asked.count() > 0);
            asked.end();
            eventually(|| pool.inspect().statistics().used.current == 0);
            pool.inspect().check().unwrap();
        });
    }
}

/// One action of a thread. A panic is that of a destructor which its own thread runs.
fn act(device: &SimDevice, pool: &Pool, asked: &Asked, random: &mut fastrand::Rng) {
    let panics = random.u8(..4) == 0;
    let action = random.u8(..6);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match action {
        0 | 1 => newcomer_that_leaves(device, pool, asked, panics),
        2 => {
            pool.tag(tag()).set_limit(Some(random.u64(1..8) * MIB));
            let _ = (
                pool.inspect().statistics(),
                pool.inspect().waiting_requests(8),
            );
        }
        3 => {
            let wrapped = Wrapped::new(device, asked, panics);
            let stream = pool.register(&wrapped).unwrap();
            if let Ok(reservation) = pool.reserve(MIB).try_now() {
                for _ in 0..3 {
                    drop(reservation.allocate(&stream, 4096));
                }
            }
        }
        4 => {
            let wrapped = Wrapped::new(device, asked, panics);
            let stream = pool.register(&wrapped).unwrap();
            let value = Asks(asked.clone(), panics);
            let mut task = stream.run(move || value).unwrap();
            poll_as(&mut task, &asked.waker(panics));
            drop(pool.try_allocate(&stream, 4096));
            let mut event = stream.event().unwrap().into_future();
            poll_as(&mut event, &asked.waker(panics));
        }
        _ => {
            let stream = pool.create_stream().unwrap();
            if let Ok(block) = pool.try_allocate(&stream, 2 * MIB) {
                let evictable = block.into_evictable();
                drop(pool.try_allocate(&stream, 8 * MIB));
                drop(evictable);
            }
        }
    }));
    // The payload is a message.
    drop(outcome);
}

/// The pool wakes several tasks at once when it is closed, and the device when a point is passed.
#[test]
fn waker_that_panics_loses_no_other_wake_up() {
    let (device, pool, [(work, stream)]) = set_up(8 * MIB);
    pool.tag(tag()).set_limit(Some(MIB));
    let held = pool.allocate(&stream, MIB).tag(tag()).try_now().unwrap();
    let request = || pool.allocate(&stream, MIB).tag(tag());
    let mut throttled = vec![Woken::panicking(request())];
    throttled.extend((0..3).map(|_| Woken::new(request())));
    run(&work, us(10));
    let passed = || stream.event().unwrap().into_future();
    let mut passing = vec![Woken::panicking(passed())];
    passing.extend((0..3).map(|_| Woken::new(passed())));
    device.advance(us(10));
    assert!(passing.iter().all(Woken::is_woken), "by the device");
    pool.close();
    assert!(throttled.iter().all(Woken::is_woken), "by the pool");
    drop(held);
}
