//! No wake-up is missed: a change that makes memory reachable, against a request that joins the queue.
//!
//! Tasks are polled only when they are woken. Once they are quiet, a fresh search must not grant a request that was not
//! woken.

use super::*;
use loom::thread;
use weirpool::device::DeviceErrorKind::Unsupported;
use weirpool::device::sim::Call;
use weirpool::{Overtaking, Tag};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

type Answer = Result<Block, weirpool::AllocError>;

/// A task that is polled when it is woken, and keeps the block that it was granted.
struct Task<'a> {
    future: Option<Pin<Box<dyn Future<Output = Answer> + 'a>>>,
    output: Option<Block>,
    count: Arc<Count>,
    waker: Waker,
}

impl<'a> Task<'a> {
    /// Polls the future once.
    fn new(future: impl Future<Output = Answer> + 'a) -> Self {
        let (count, waker) = Count::new();
        let mut task = Self {
            future: Some(Box::pin(future)),
            output: None,
            count,
            waker,
        };
        task.poll();
        task
    }

    fn poll(&mut self) {
        let Some(future) = &mut self.future else {
            return;
        };
        let context = &mut Context::from_waker(&self.waker);
        if let Poll::Ready(answer) = future.as_mut().poll(context) {
            self.output = Some(answer.unwrap());
            self.future = None;
        }
    }
}

/// Polls tasks that were woken until none is. Then a fresh search grants none of those that still wait.
fn expect_no_lost_wake(pool: &Pool, tasks: &mut [Task<'_>]) {
    loop {
        let woken = tasks.iter_mut().filter(|task| task.count.take() > 0);
        if woken.map(Task::poll).count() == 0 {
            break;
        }
    }
    // New terms, which are the old ones: every request is searched for.
    drop(pool.resize(2 * MIB).unwrap());
    for task in tasks.iter_mut().filter(|task| task.future.is_some()) {
        task.poll();
        assert!(
            task.future.is_some(),
            "it could be granted and was not woken"
        );
    }
}

/// A pool of 2 MiB that passes its allocations through, whose streams keep spares.
fn passed_through(device: &SimDevice) -> Pool {
    let driver_pool = DriverPool::builder(device).build().unwrap();
    let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
    let builder = Pool::builder(device.clone()).capacity(2 * MIB);
    builder.segment_source(segments).build().unwrap()
}

#[test]
fn free_that_is_passed_through_leaves_no_spare_beside_a_request_that_joins() {
    model("free that is passed through", || {
        let device = unwatched();
        let pool = passed_through(&device);
        let [(_, a), (_, b)] = streams(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let request = Task::new(pool.allocate(&b, 2 * MIB));
        freeing.join().unwrap();
        let mut tasks = [request];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some());
    });
}

/// The room of a spare is one request's: its stream's, or that of a request that removes it.
#[test]
fn spare_is_taken_or_removed() {
    model("spare is taken or removed", || {
        let device = unwatched();
        let pool = passed_through(&device);
        let [(_, a), (_, b)] = streams(&device, &pool);
        drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        let (other, at) = (pool.clone(), a.clone());
        let taking = thread::spawn(move || other.try_allocate(&at, 2 * MIB).ok());
        let second = pool.try_allocate(&b, 2 * MIB).ok();
        let first = taking.join().unwrap();
        assert!(first.is_none() || second.is_none(), "room for one");
        let live = first.iter().chain(&second).count() as u64;
        assert_eq!(pool.inspect().statistics().used.current, live * 2 * MIB);
        drop((first, second));
        pool.inspect().check_conserved().unwrap();
        drop(pool.try_allocate(&b, 2 * MIB).expect("nothing is lost"));
    });
}

#[test]
fn free_wakes_requests_that_join() {
    model("free wakes requests that join", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let first = Task::new(pool.allocate(&b, MIB));
        let freeing = thread::spawn(move || drop(block));
        let second = Task::new(pool.allocate(&b, MIB));
        freeing.join().unwrap();
        let mut tasks = [first, second];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks.iter().all(|task| task.output.is_some()));
    });
}

/// The records of the free and of one search fail, as during a capture.
#[test]
fn seal_wakes_a_request_that_joins() {
    model("seal wakes a request that joins", || {
        let (device, pool, [(_, a), (_, b)]) = start();
        drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        device.faults().fail_next(Call::Record, Unsupported);
        let sealing = thread::spawn(move || {
            let sealed = a.seal();
            (a, sealed)
        });
        let waiting = Task::new(pool.allocate(&b, 2 * MIB));
        let (a, sealed) = sealing.join().unwrap();
        if sealed.is_err() {
            a.seal().unwrap();
        }
        let mut tasks = [waiting];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some());
    });
}

/// While a user's event closes the ticket that the memory waits for, a search finds neither an unsealed free nor an
/// event.
#[test]
fn users_event_wakes_a_request_that_joins() {
    model("user's event wakes a request that joins", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        let recording = thread::spawn(move || (a.event().unwrap(), a));
        let waiting = Task::new(pool.allocate(&b, 2 * MIB));
        let _kept = recording.join().unwrap();
        let mut tasks = [waiting];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some());
    });
}

/// The record of the user's event fails, or that of the search.
#[test]
fn failed_record_wakes_a_request_that_joins() {
    model("failed record wakes a request that joins", || {
        let (device, pool, [(_, a), (_, b)]) = start();
        device.faults().fail_next(Call::Record, Unsupported);
        drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        let recording = thread::spawn(move || (a.event().is_err(), a));
        let waiting = Task::new(pool.allocate(&b, 2 * MIB));
        let (has_failed, _a) = recording.join().unwrap();
        let mut tasks = [waiting];
        expect_no_lost_wake(&pool, &mut tasks);
        if !has_failed {
            // The search's own record may have failed: it is tried again some time later.
            device.advance(Duration::from_secs(1));
            expect_no_lost_wake(&pool, &mut tasks);
        }
        assert!(tasks[0].output.is_some());
    });
}

/// Lets a stream proceed past a free, and then has another thread notice it in passing, against a request that joins.
fn progress_noticed_by<T: Send + 'static>(name: &'static str, notice: fn(&Pool, SimStream) -> T) {
    model(name, move || {
        let (device, pool, [(work, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 100);
        drop((block, a));
        let noticing = thread::spawn({
            let (device, pool) = (device.clone(), pool.clone());
            move || {
                device.advance(Duration::from_micros(100));
                notice(&pool, work)
            }
        });
        let waiting = Task::new(pool.allocate(&b, 2 * MIB));
        let _kept = noticing.join().unwrap();
        let mut tasks = [waiting];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some());
    });
}

#[test]
fn progress_that_a_registration_notices_wakes_a_request_that_joins() {
    let name = "progress that a registration notices wakes a request that joins";
    progress_noticed_by(name, |pool, work| pool.register(&work).unwrap());
}

#[test]
fn progress_that_a_trim_notices_wakes_a_request_that_joins() {
    let name = "progress that a trim notices wakes a request that joins";
    progress_noticed_by(name, |pool, _| pool.trim_to(2 * MIB).unwrap());
}

/// The search for a request that may overtake the head finds memory complete that only the head can use.
#[test]
fn progress_found_for_another_request_serves_the_head() {
    let name = "progress found for another request serves the head";
    model(name, || {
        let device = device();
        let overtaking = Overtaking {
            times: 1,
            bytes: 2 * MIB,
        };
        let pool = builder(&device)
            .tuning(|tuning| tuning.overtaking = overtaking)
            .build()
            .unwrap();
        let [(work, a), (_, b)] = streams(&device, &pool);
        let _held = pool.try_allocate(&b, MIB).unwrap();
        let block = pool.try_allocate(&a, MIB).unwrap();
        run(&work, 100);
        let head = Task::new(pool.allocate(&b, MIB));
        let behind = Task::new(pool.allocate(&b, MIB).alignment(2 * MIB));
        let mut tasks = [head, behind];
        let advancing = thread::spawn({
            let pool = pool.clone();
            move || {
                // A step of the model before that of the device.
                let _ = pool.inspect().statistics();
                device.advance(Duration::from_micros(100));
            }
        });
        drop(block);
        tasks.iter_mut().for_each(Task::poll);
        advancing.join().unwrap();
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some());
    });
}

/// A request that joins at the limit of its tag sees first that a free allows the one before it.
#[test]
fn free_at_a_limit_wakes_the_first_while_another_joins() {
    model(
        "free at a limit wakes the first while another joins",
        || {
            let (_, pool, [(_, a)]) = start();
            let tag = Tag::new("limited");
            pool.tag(tag).set_limit(Some(MIB));
            let allocate = || pool.allocate(&a, MIB).tag(tag);
            let held = allocate().try_now().unwrap();
            let first = Task::new(allocate());
            let freeing = thread::spawn(move || drop(held));
            let second = Task::new(allocate());
            freeing.join().unwrap();
            let mut tasks = [first, second];
            expect_no_lost_wake(&pool, &mut tasks);
            assert!(tasks[0].output.is_some());
        },
    );
}

#[test]
fn users_ordering_wakes_a_request_that_joins() {
    model("user's ordering wakes a request that joins", || {
        let (device, pool, [(work, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work, 1000);
        drop(block);
        let event = a.event().unwrap();
        let waiting = b.clone();
        let ordering = thread::spawn(move || waiting.wait(&event).unwrap());
        let task = Task::new(pool.allocate(&b, 2 * MIB));
        ordering.join().unwrap();
        let mut tasks = [task];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some(), "the work is still running");
        device.advance(Duration::from_millis(1));
    });
}

#[test]
fn return_to_a_reservation_wakes_a_request_that_joins_in_its_scope() {
    model("return to a reservation wakes a request that joins", || {
        let (_, pool, [(_, a)]) = start();
        let reservation = loom::future::block_on(pool.reserve(2 * MIB)).unwrap();
        let drawn = reservation.allocate(&a, 2 * MIB).unwrap();
        let freeing = thread::spawn(move || drop(drawn));
        let task = Task::new(reservation.scope(async { pool.allocate(&a, MIB).await }));
        freeing.join().unwrap();
        let mut tasks = [task];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some());
    });
}

/// Memory becomes evictable while a request joins that needs it.
#[test]
fn unpinned_memory_wakes_a_request_that_joins() {
    model("unpinned memory wakes a request that joins", || {
        let (_, pool, [(_, stream)]) = start();
        let cached = pool
            .try_allocate(&stream, 2 * MIB)
            .unwrap()
            .into_evictable();
        let pin = cached.pin().unwrap();
        let unpinning = thread::spawn(move || drop(pin));
        let request = Task::new(pool.allocate(&stream, MIB));
        unpinning.join().unwrap();
        let mut tasks = [request];
        expect_no_lost_wake(&pool, &mut tasks);
        assert!(tasks[0].output.is_some() && !cached.is_present());
    });
}

/// The last pin, its owner and an eviction let go of the same memory: it is freed once, and a pin is never of memory
/// that is free.
#[test]
fn memory_is_evicted_or_pinned() {
    model("memory is evicted or pinned", || {
        let (_, pool, [(_, stream)]) = start();
        let cached = pool
            .try_allocate(&stream, 2 * MIB)
            .unwrap()
            .into_evictable();
        let evicting = {
            let pool = pool.clone();
            thread::spawn(move || pool.maintain().evict(1))
        };
        let pin = cached.pin();
        let is_pinned = pin.is_some();
        assert!(!is_pinned || pool.inspect().statistics().live_blocks == 1);
        drop(cached);
        drop(pin);
        // The other thread may still have the memory in its hands.
        pool.inspect().check_conserved().unwrap();
        let evicted = evicting.join().unwrap();
        assert!(evicted == 0 || !is_pinned || evicted == 2 * MIB);
        let figures = pool.inspect().statistics();
        assert_eq!((figures.live_blocks, figures.evictable), (0, 0));
        pool.inspect().check_conserved().unwrap();
    });
}
