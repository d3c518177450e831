//! A pool whose capacity a source of the test's own lends: its limit changes as an orchestrator's does.

use crate::common::*;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::extend::{BoundedPool, Bounds, CapacitySource, Holding, Joining};
use weirpool::{AllocError, BuildError, Pool, ReleaseThreshold, Stream, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Call = Box<dyn Fn(&str, u64) + Send + Sync>;

/// Applies what the test says, and calls what the test sets.
struct Orchestrated {
    pool: Mutex<Option<BoundedPool>>,
    limit: Option<u64>,
    /// Called with the name of each call, and its bytes.
    call: Call,
    ends: AtomicUsize,
}

impl std::fmt::Debug for Orchestrated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Orchestrated")
    }
}

impl Orchestrated {
    fn new(call: impl Fn(&str, u64) + Send + Sync + 'static) -> Arc<Self> {
        Self::of(Some(u64::MAX), call)
    }

    fn of(limit: Option<u64>, call: impl Fn(&str, u64) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            pool: Mutex::new(None),
            limit,
            call: Box::new(call),
            ends: AtomicUsize::new(0),
        })
    }

    fn take(&self) -> BoundedPool {
        self.pool.lock().unwrap().take().expect("the pool started")
    }

    fn set_limit(&self, bound: u64) -> Option<Holding> {
        apply(self.pool.lock().unwrap().as_mut().unwrap(), bound)
    }
}

fn apply(pool: &mut BoundedPool, bound: u64) -> Option<Holding> {
    pool.apply(Bounds {
        first: bound,
        bound,
        is_binding: true,
        ..Bounds::default()
    })
}

impl CapacitySource for Orchestrated {
    fn join(&self, pool: &Joining<'_>) -> Answer<Option<u64>> {
        (self.call)("join", pool.capacity);
        Ok(self.limit)
    }

    fn start(&self, pool: BoundedPool) -> Answer<()> {
        *self.pool.lock().unwrap() = Some(pool);
        (self.call)("start", 0);
        Ok(())
    }

    fn need(&self, bytes: u64) {
        (self.call)("need", bytes);
    }

    fn need_now(&self, bytes: u64) -> bool {
        (self.call)("need_now", bytes);
        false
    }

    fn satisfied(&self) {
        (self.call)("satisfied", 0);
    }

    fn memory_returned(&self) {
        (self.call)("memory_returned", 0);
    }

    fn ended(&self) {
        self.ends.fetch_add(1, Ordering::SeqCst);
        (self.call)("ended", 0);
    }

    fn trouble(&self) -> Option<String> {
        (self.call)("trouble", 0);
        Some("away".into())
    }
}

fn pool_with(source: &Arc<Orchestrated>) -> (TestPool, Stream) {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(Clock::Wall)
        .build();
    let builder = Pool::builder(device).capacity(64 * MIB).chunk_bytes(CHUNK);
    let pool = builder.capacity_source(source.clone()).made();
    let stream = pool.create_stream().unwrap();
    (pool, stream)
}

#[test]
fn pool_holds_what_its_source_lends() {
    let source = Orchestrated::of(Some(32 * MIB), |_, _| {});
    let (pool, stream) = pool_with(&source);
    assert_eq!((pool.capacity(), figures(&pool).leased), (32 * MIB, 0));
    let refused = pool.try_allocate(&stream, 4 * MIB).unwrap_err();
    assert_matches!(refused, AllocError::Exhausted(shortfall) if shortfall.leased == 0);
    let refused = now(pool.allocate(&stream, 33 * MIB)).unwrap_err();
    assert_matches!(refused, AllocError::TooLarge { .. });
    let mut request = not_ready(pool.allocate(&stream, 4 * MIB));
    let holding = source.set_limit(8 * MIB).unwrap();
    assert_eq!((holding.held, holding.waiting), (4 * MIB, 0));
    let block = soon(&mut request).unwrap();
    drop(block);
    assert_eq!(
        source.set_limit(0).unwrap().held,
        0,
        "free memory goes back"
    );
    assert!(
        pool.inspect()
            .health()
            .to_string()
            .starts_with("serving, away; ")
    );
    let shown: &dyn std::any::Any = pool.inspect().capacity_source().unwrap();
    assert!(shown.is::<Orchestrated>());
    pool.inspect().check_conserved().unwrap();
    let kept = Arc::downgrade(&source);
    drop(request);
    drop((stream, pool, source));
    eventually(|| kept.upgrade().is_none());
}

#[test]
fn limit_that_falls_while_requests_wait_holds_them_back_until_it_rises() {
    let needed = Arc::new(AtomicUsize::new(0));
    let returned = Arc::new(AtomicBool::new(false));
    let source = Orchestrated::new({
        let (needed, returned) = (needed.clone(), returned.clone());
        move |call, bytes| match call {
            "need" => needed.store(bytes as usize, Ordering::SeqCst),
            "satisfied" => needed.store(0, Ordering::SeqCst),
            "memory_returned" => returned.store(true, Ordering::SeqCst),
            _ => {}
        }
    });
    let (pool, stream) = pool_with(&source);
    source.set_limit(16 * MIB);
    let held = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut request = not_ready(pool.allocate(&stream, 8 * MIB));
    assert!(needed.load(Ordering::SeqCst) as u64 >= 8 * MIB);
    // In use: it cannot go back yet.
    assert_eq!(source.set_limit(4 * MIB).unwrap().held, 16 * MIB);
    drop(held);
    eventually(|| returned.load(Ordering::SeqCst));
    assert!(source.set_limit(4 * MIB).unwrap().held <= 4 * MIB);
    assert!(poll(&mut request).is_pending(), "it needs 8 MiB");
    source.set_limit(8 * MIB);
    drop(soon(&mut request).unwrap());
    assert_eq!(needed.load(Ordering::SeqCst), 0, "no request waits");
}

/// The freed memory is pending: nothing but the request asks how far its stream is.
#[test]
fn pending_memory_within_a_binding_bound_is_granted_to_a_waiting_request() {
    let source = Orchestrated::new(|_, _| {});
    let (pool, stream) = pool_with(&source);
    source.set_limit(8 * MIB);
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    let mut request = not_ready(pool.allocate(&stream, 8 * MIB));
    drop(held);
    drop(soon(&mut request).unwrap());
}

#[test]
fn source_that_panics_leaves_the_pool_within_its_bounds() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let source = Orchestrated::new({
        let is_broken = is_broken.clone();
        move |call, _| assert!(!is_broken.load(Ordering::SeqCst), "{call} panics")
    });
    let (pool, stream) = pool_with(&source);
    source.set_limit(8 * MIB);
    is_broken.store(true, Ordering::SeqCst);
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert!(pool.try_allocate(&stream, 4 * MIB).is_err(), "need_now");
    let mut request = not_ready(pool.allocate(&stream, 4 * MIB));
    assert_eq!(pool.inspect().health().source_trouble, None);
    source.set_limit(6 * MIB);
    drop(held); // memory_returned
    source.set_limit(6 * MIB);
    drop(soon(&mut request).unwrap()); // satisfied
    pool.inspect().check_conserved().unwrap();
    drop(request);
    drop((stream, pool));
    eventually(|| source.ends.load(Ordering::SeqCst) == 1);
}

/// Starts a thread that raises the limit by what requests need.
fn answering(source: &Arc<Orchestrated>, needs: Receiver<u64>) -> thread::JoinHandle<()> {
    let mut pool = source.take();
    thread::spawn(move || {
        let mut bound = 0;
        for need in needs {
            bound += need;
            if apply(&mut pool, bound).is_none() {
                return;
            }
        }
    })
}

#[test]
fn source_answers_from_another_thread() {
    let (sender, needs) = sync_channel(64);
    let source = Orchestrated::new(move |call, bytes| {
        if matches!(call, "need" | "ended") {
            let _ = sender.try_send(bytes);
        }
    });
    let (pool, stream) = pool_with(&source);
    let answering = answering(&source, needs);
    let blocks: Vec<_> = (1..5)
        .map(|number| {
            let request = pool.allocate(&stream, number * 2 * MIB);
            request.blocking().unwrap()
        })
        .collect();
    assert!(pool.inspect().statistics().leased >= 20 * MIB);
    drop(blocks);
    pool.inspect().check_conserved().unwrap();
    drop((pool, stream, source));
    answering.join().unwrap();
}

#[test]
fn no_lock_is_held_while_a_slow_source_is_asked() {
    let (entered, has_entered) = sync_channel(1);
    let (leave, may_leave) = sync_channel::<()>(1);
    let may_leave = Mutex::new(may_leave);
    let source = Orchestrated::new(move |call, _| {
        if call == "need" && entered.try_send(()).is_ok() {
            let _ = may_leave.lock().unwrap().recv();
        }
    });
    let (pool, stream) = pool_with(&source);
    source.set_limit(8 * MIB);
    let held = several(&pool, &stream, 2, 4 * MIB);
    let waiting = thread::spawn({
        let (pool, stream) = (pool.clone(), stream.clone());
        move || pool.allocate(&stream, 8 * MIB).blocking().map(drop)
    });
    has_entered.recv().unwrap();
    eprintln!("step 0");
    // Whatever takes a lock of the pool.
    let other = pool.create_stream().unwrap();
    assert_eq!(pool.inspect().statistics().live_blocks, 2);
    assert!(pool.try_allocate(&other, 4 * MIB).is_err());
    eprintln!("step 1");
    drop(not_ready(pool.allocate(&other, 4 * MIB)));
    assert_eq!(pool.inspect().waiting_requests(9).len(), 1);
    eprintln!("step 2");
    source.set_limit(10 * MIB);
    drop(held);
    pool.inspect().check().unwrap();
    eprintln!("step 3");
    drop(leave);
    waiting.join().unwrap().unwrap();
    pool.inspect().check_conserved().unwrap();
}

#[test]
fn pool_may_be_dropped_while_its_source_answers() {
    for round in 0..50 {
        let source = Orchestrated::new(|_, _| {});
        let (pool, stream) = pool_with(&source);
        let mut bounded = source.take();
        let answering = thread::spawn(move || {
            let mut bound = 0;
            while apply(&mut bounded, bound % (16 * MIB)).is_some() {
                bound += 2 * MIB;
            }
        });
        match round % 2 {
            0 => drop(pool.allocate(&stream, 4 * MIB).blocking().unwrap()),
            _ => drop(poll(&mut pool.allocate(&stream, 4 * MIB))),
        }
        drop((stream, pool));
        answering.join().unwrap();
        eventually(|| source.ends.load(Ordering::SeqCst) == 1);
    }
}

#[test]
fn source_without_capacity_fails_the_build_or_is_left_out() {
    let build = |source: Arc<dyn CapacitySource>| {
        let builder = Pool::builder(SimDevice::new()).capacity(64 * MIB);
        builder.capacity_source(source).build()
    };
    let absent = Orchestrated::of(None, |_, _| {});
    let pool = build(absent.clone()).unwrap();
    assert!(pool.inspect().capacity_source().is_none() && pool.capacity() == 64 * MIB);
    let small = Orchestrated::of(Some(MIB), |_, _| {});
    let refused = build(small.clone()).unwrap_err();
    assert_matches!(refused, BuildError::CapacityTooSmall { .. });
    assert_eq!(small.ends.load(Ordering::SeqCst), 1);
    drop(pool);
    assert_eq!(absent.ends.load(Ordering::SeqCst), 0);

    #[derive(Debug)]
    struct Refuses(bool);
    impl CapacitySource for Refuses {
        fn join(&self, _: &Joining<'_>) -> Answer<Option<u64>> {
            self.0.then_some(Some(u64::MAX)).ok_or("no room".into())
        }

        fn start(&self, _: BoundedPool) -> Answer<()> {
            Err("no thread".into())
        }
    }
    for (joins, reason) in [(false, "no room"), (true, "no thread")] {
        let refused = build(Arc::new(Refuses(joins))).unwrap_err();
        let text = format!("no capacity for this pool: {reason}");
        assert_eq!(refused.to_string(), text);
        assert_matches!(refused, BuildError::CapacitySource(error) if error.get().to_string() == reason);
    }
}

#[test]
fn settings_that_no_source_covers_are_refused() {
    let conflict = |builder: weirpool::PoolBuilder| {
        let source = Orchestrated::new(|_, _| {});
        match builder.capacity_source(source).build() {
            Err(BuildError::Conflict {
                one: "capacity_source",
                other,
            }) => other,
            other => panic!("{other:?}"),
        }
    };
    let builder = || Pool::builder(SimDevice::new());
    assert_eq!(
        conflict(builder().tuning(|tuning| tuning.initial_size = 2 * MIB)),
        "initial_size"
    );
    assert_eq!(conflict(builder().upstream(Upstream::Pinned)), "upstream");
}

/// The bound holds for what a pool of the driver keeps of the memory that it got back, too.
#[test]
fn recall_reaches_what_a_source_of_segments_keeps() {
    for how in [DriverPoolUse::SubAllocated, DriverPoolUse::PassedThrough] {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .clock(Clock::Wall)
            .build();
        let driver_pool = DriverPool::builder(&device).build().unwrap();
        let keep = ReleaseThreshold::Keep;
        driver_pool.set_release_threshold(keep).unwrap();
        let source = Orchestrated::new(|_, _| {});
        let builder = Pool::builder(device).segment_source(driver_pool.segments(how));
        let pool = builder.capacity_source(source.clone()).made();
        let stream = pool.create_stream().unwrap();
        let reserved = || driver_pool.reserved().unwrap().current;
        assert!(pool.try_allocate(&stream, MIB).is_err(), "the bound is 0");
        let mut request = not_ready(pool.allocate(&stream, 16 * MIB));
        assert_eq!(source.set_limit(32 * MIB).unwrap().held, 16 * MIB);
        let first = soon(&mut request).unwrap();
        let second = pool.try_allocate(&stream, 16 * MIB).unwrap();
        assert!(pool.try_allocate(&stream, MIB).is_err(), "all is held");
        drop(second);
        assert_eq!(source.set_limit(16 * MIB).unwrap().held, 16 * MIB);
        eventually(|| reserved() == 16 * MIB);
        let mut request = not_ready(pool.allocate(&stream, 16 * MIB));
        drop(first);
        let again = soon(&mut request).unwrap();
        assert_eq!(source.set_limit(0).unwrap().held, 16 * MIB, "in use");
        drop(again);
        eventually(|| source.set_limit(0).unwrap().held == 0 && reserved() == 0);
    }
}
