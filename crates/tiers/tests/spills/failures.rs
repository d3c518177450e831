//! How spillable memory may fail, and does not: each test names the failure that it looks for.

use crate::site::{MIB, Site, poll, work};
use std::error::Error;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Clock, Fault, SimDevice};
use weirpool::extend::{BoundedPool, Bounds, CapacitySource, Joining};
use weirpool::{AllocError, Pool};
use weirpool_tiers::{Fetched, HostTier, IntoSpillable, SpillError, Spillable};

/// Failure: a device call fails in the middle of a copy out or back, and the contents are lost, or the memory is.
#[test]
fn device_error_anywhere_loses_no_contents() {
    let calls = [
        Call::Create,
        Call::Map,
        Call::Unmap,
        Call::Allocate,
        Call::Copy,
        Call::Record,
        Call::Query,
        Call::Wait,
        Call::CreateEvent,
        Call::Reserve,
        Call::MemoryInfo,
    ];
    let mut met = 0;
    for call in calls {
        for nth in 1..8 {
            let site = Site::new(8 * MIB, 16 * MIB);
            let memory = [1, 2].map(|value| site.spillable(4 * MIB, value));
            let other = site.pool.create_stream().unwrap();
            let fault = Fault::Fails(DeviceErrorKind::Other);
            site.device.faults().script(call, nth, fault);
            let mut errors = 0;
            for round in 0..3 {
                let all = site.pool.allocate(&other, 8 * MIB);
                let all = all.timeout(Duration::from_millis(100));
                let all = site.device.block_on(all);
                errors += usize::from(all.is_err());
                drop(all);
                for (memory, value) in memory.iter().zip(1..) {
                    let fetched = loop {
                        match site.fetch(memory) {
                            Ok(fetched) => break fetched,
                            Err(error) if errors < 3 => {
                                errors += 1;
                                let is_of_stream = matches!(error, SpillError::Stream(_));
                                assert!(is_of_stream || !memory.is_resident());
                            }
                            Err(error) => panic!("{call:?} {nth} {round}: {error}"),
                        }
                    };
                    let bytes = fetched.download(&other, 0..4 * MIB);
                    match bytes.map(|bytes| site.device.block_on(bytes)) {
                        Ok(Ok(bytes)) => assert!(
                            bytes.iter().all(|byte| *byte == value),
                            "{call:?} {nth} {round}: contents of {value}"
                        ),
                        _ if errors < 3 => errors += 1,
                        other => panic!("{call:?} {nth} {round}: {other:?}"),
                    }
                }
            }
            let figures = site.tier.figures();
            assert_eq!(figures.resident + figures.spilled, 8 * MIB);
            met += errors + figures.refusals as usize;
            drop((memory, other));
            let _ = site.device.block_on(site.pool.drain());
            let _ = site.device.block_on(site.host.drain());
            site.pool.inspect().check_conserved().unwrap();
            site.host.inspect().check_conserved().unwrap();
            site.device.assert_ordered();
        }
    }
    assert!(met > 30, "{met} faults were met");
}

/// Failure: a fetch that is dropped after any number of polls takes the contents with it, or its position in the queue, or
/// memory.
#[test]
fn fetch_can_be_dropped_after_any_poll() {
    for polls in 0..8 {
        let site = Site::new(8 * MIB, 16 * MIB);
        let memory = [1, 2, 3].map(|value| site.spillable(2 * MIB, value));
        let holder = site.take_all();
        work(&site.stream, &holder, Duration::from_micros(100));
        let mut fetch = Box::pin(memory[1].fetch(&site.stream));
        let mut also = Box::pin(memory[1].fetch(&site.stream));
        let mut holder = Some(holder);
        for at in 0..polls {
            if at == 2 {
                holder = None;
            }
            if poll(fetch.as_mut()).is_ready() {
                break;
            }
            let _ = poll(also.as_mut());
            site.device.advance(Duration::from_micros(40));
        }
        drop((fetch, holder));
        let fetched = site.device.block_on(also).unwrap();
        site.assert_is(&fetched, 2);
        drop(fetched);
        for (memory, value) in memory.iter().zip(1..) {
            site.assert_is(&site.fetch(memory).unwrap(), value);
        }
        assert_eq!(site.pool.inspect().statistics().used.current, 6 * MIB);
        drop(memory);
        site.end();
    }
}

/// Failure: fetches that are dropped leave the wakers of their tasks behind.
#[test]
fn fetch_that_is_dropped_leaves_no_waker() {
    struct Idle;
    impl Wake for Idle {
        fn wake(self: Arc<Self>) {}
    }
    let site = Site::new(8 * MIB, 16 * MIB);
    let memory = site.spillable(2 * MIB, 1);
    let holder = site.take_all();
    let task = Arc::new(Idle);
    for _ in 0..3 {
        let waker = Waker::from(task.clone());
        let mut fetch = Box::pin(memory.fetch(&site.stream));
        let polled = fetch.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending() && Arc::strong_count(&task) > 2);
    }
    assert_eq!(Arc::strong_count(&task), 1);
    drop((holder, memory));
    site.end();
}

/// Failure: memory that is dropped resident, during a copy in either direction, or spilled, is lost or freed too early.
#[test]
fn memory_can_be_dropped_in_every_state() {
    for state in 0..6 {
        let device = SimDevice::builder()
            .memory(8 * MIB)
            .host_memory(8 * MIB)
            .clock(Clock::Manual)
            .build();
        let site = Site::on(device.clone(), 8 * MIB, 8 * MIB);
        let memory = site.spillable(8 * MIB, 1);
        work(
            &site.stream,
            &site.pool.try_allocate(&site.stream, 0).unwrap(),
            Duration::from_micros(10),
        );
        let mut kept = None;
        if state > 0 {
            site.spill_all();
        }
        if state > 1 {
            device.advance_to_end();
        }
        if state > 2 {
            let mut fetch = Box::pin(memory.fetch(&site.stream));
            let Poll::Ready(fetched) = poll(fetch.as_mut()) else {
                panic!("memory is free");
            };
            kept = Some(fetched.unwrap());
        }
        if state == 4 {
            kept = None;
        }
        if state == 5 {
            device.advance_to_end();
        }
        drop(memory);
        assert_eq!(
            site.tier.figures().resident + site.tier.figures().spilled,
            0
        );
        let at_work = device.now();
        drop(kept);
        let others = [&site.pool, &site.host].map(|pool| {
            let stream = pool.create_stream().unwrap();
            let granted = pool.try_allocate(&stream, 8 * MIB);
            // Behind a copy at the earliest: on the stream itself, which the checker watches.
            if let Ok(mut block) = granted {
                block.fill(&stream, 7).unwrap();
            }
            stream
        });
        device.advance_to_end();
        assert!(device.now() > at_work, "state {state}");
        drop(others);
        site.end();
    }
}

/// Failure: a pool that stops or closes loses contents, hangs fetches, or spills by submitting work that fails.
#[test]
fn contents_stay_where_they_are_once_the_pool_is_stopping_or_closed() {
    for is_closed in [false, true] {
        let site = Site::new(8 * MIB, 16 * MIB);
        let memory = [1, 2].map(|value| site.spillable(4 * MIB, value));
        let holder = site.pool.allocate(&site.stream, 4 * MIB);
        let holder = site.device.block_on(holder).unwrap();
        let mut waiting = Box::pin(memory[0].fetch(&site.stream));
        let fetched = site.fetch(&memory[1]).unwrap();
        assert!(poll(waiting.as_mut()).is_pending());
        if is_closed {
            site.pool.close();
        } else {
            site.pool.stop_admitting();
        }
        let expected = |result: Result<Fetched, SpillError>| match result {
            Err(SpillError::Alloc(AllocError::Closed)) => assert!(is_closed),
            Err(SpillError::Alloc(AllocError::Stopping)) => assert!(!is_closed),
            other => panic!("{other:?}"),
        };
        expected(site.device.block_on(waiting));
        drop((holder, fetched));
        expected(site.fetch(&memory[0]));
        assert!(site.fetch(&memory[1]).is_ok(), "it is resident");
        site.spill_all();
        let figures = site.tier.figures();
        assert_eq!(figures.resident + figures.spilled, 8 * MIB);
        drop(memory);
        site.end();
    }
}

/// Failure: a drain waits for memory that could be on the host, or drops its contents.
#[test]
fn drain_spills() {
    let site = Site::new(8 * MIB, 4 * MIB);
    let memory = site.spillable(4 * MIB, 1);
    let parked = site.spillable(4 * MIB, 2);
    let drain = site.pool.drain().timeout(Duration::from_millis(20));
    assert!(site.device.block_on(drain).is_err(), "one has no room");
    assert!(!memory.is_resident() && parked.is_resident());
    drop(parked);
    site.device.block_on(site.pool.drain()).unwrap();
    site.assert_is(&site.fetch(&memory).unwrap(), 1);
    drop(memory);
    site.end();
}

/// Failure: a device that breaks makes fetches hang or drops panic.
#[test]
fn broken_device_fails_fetches_and_nothing_hangs() {
    for is_spilled in [false, true] {
        let site = Site::new(8 * MIB, 8 * MIB);
        let memory = [1, 2].map(|value| site.spillable(2 * MIB, value));
        if is_spilled {
            site.spill_all();
        }
        let mut all = Box::pin(site.pool.allocate(&site.stream, 8 * MIB));
        let asked = poll(all.as_mut());
        site.device.faults().break_device("a test");
        drop((asked, all));
        if is_spilled {
            let failed = site.fetch(&memory[0]).unwrap_err();
            assert!(
                matches!(failed, SpillError::Alloc(AllocError::Device(_))),
                "{failed:?}"
            );
        }
        site.spill_all();
        drop(memory);
    }
}

/// A source of the capacity that a test commands.
#[derive(Debug, Default)]
pub(crate) struct Source(Mutex<Option<BoundedPool>>);

impl Source {
    pub(crate) fn set(&self, bound: u64) {
        let bounds = Bounds {
            first: bound,
            bound,
            is_binding: true,
            granted: 0,
        };
        let mut pool = self.0.lock().unwrap();
        pool.as_mut().expect("it has started").apply(bounds);
    }
}

impl CapacitySource for Source {
    fn join(&self, pool: &Joining<'_>) -> Result<Option<u64>, Box<dyn Error + Send + Sync>> {
        Ok(Some(pool.capacity))
    }

    fn start(&self, pool: BoundedPool) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self.0.lock().unwrap() = Some(pool);
        Ok(())
    }

    fn memory_returned(&self) {}

    fn ended(&self) {}
}

/// Failure: memory that a broker recalls is not spilled, or given back before its copy is complete, or is not fetched again
/// once the bound rises.
#[test]
fn recalled_memory_is_spilled_and_comes_back_once_the_bound_rises() {
    let device = SimDevice::builder()
        .memory(16 * MIB)
        .host_memory(16 * MIB)
        .build();
    let source = Arc::new(Source::default());
    let mut site = Site::on(device.clone(), 16 * MIB, 16 * MIB);
    site.pool = Pool::builder(device.clone())
        .capacity(16 * MIB)
        .chunk_bytes(2 * MIB)
        .capacity_source(source.clone())
        .build()
        .unwrap();
    site.stream = site.pool.create_stream().unwrap();
    source.set(16 * MIB);
    let memory: Vec<_> = (0..8).map(|value| site.spillable(2 * MIB, value)).collect();
    for bound in [8, 0, 6] {
        source.set(bound * MIB);
        device.advance_to_end();
        source.set(bound * MIB);
        let reserved = site.pool.inspect().statistics().reserved.current;
        assert!(
            reserved <= bound * MIB,
            "{reserved} bytes within {bound} MiB"
        );
        let mut fetch = pin!(
            memory[0]
                .fetch(&site.stream)
                .timeout(Duration::from_secs(1))
        );
        if bound == 0 {
            assert!(poll(fetch.as_mut()).is_pending());
        }
    }
    source.set(16 * MIB);
    for (memory, value) in memory.iter().zip(0..) {
        site.assert_is(&site.fetch(memory).unwrap(), value);
    }
    drop(memory);
    device.block_on(site.pool.drain()).unwrap();
    site.pool.inspect().check_conserved().unwrap();
    device.assert_ordered();
}

/// Failure: threads that fetch, use, drop and evict the same memory see contents of another, hang, or lose memory.
#[test]
fn threads_fetch_evict_and_drop_at_once() {
    let device = SimDevice::builder()
        .memory(4 * MIB)
        .host_memory(8 * MIB)
        .clock(Clock::Wall)
        .build();
    let site = Site::on(device.clone(), 4 * MIB, 8 * MIB);
    let bytes = MIB / 4;
    let shared: Vec<_> = (0..24)
        .map(|_| Mutex::new(None::<Arc<Spillable>>))
        .collect();
    let make = |stream: &weirpool::Stream, value: usize| {
        let mut block = futures::executor::block_on(site.pool.allocate(stream, bytes)).unwrap();
        block.fill(stream, value as u8).unwrap();
        block.into_spillable(&site.tier)
    };
    for (value, slot) in shared.iter().enumerate() {
        *slot.lock().unwrap() = Some(Arc::new(make(&site.stream, value)));
    }
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (shared, site, make) = (&shared, &site, &make);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let stream = site.pool.create_stream().unwrap();
                for _ in 0..150 {
                    let at = random.usize(0..shared.len());
                    let memory = shared[at].lock().unwrap().clone();
                    match random.u8(0..10) {
                        0 => {
                            let new = Arc::new(make(&stream, at));
                            drop(memory);
                            let old = shared[at].lock().unwrap().replace(new);
                            drop(old);
                        }
                        1 => drop(site.pool.maintain().evict(random.u64(..2 * MIB))),
                        2 => {
                            let mut fetch = pin!(memory.as_ref().unwrap().fetch(&stream));
                            let _ = poll(fetch.as_mut());
                        }
                        _ => {
                            let fetch = memory.as_ref().unwrap().fetch(&stream);
                            let fetched = futures::executor::block_on(fetch).unwrap();
                            let download = fetched.download(&stream, 0..bytes).unwrap();
                            let bytes = futures::executor::block_on(download).unwrap();
                            assert!(bytes.iter().all(|byte| *byte == at as u8));
                        }
                    }
                }
            });
        }
    });
    let figures = site.tier.figures();
    assert!(figures.fetches > 50, "{figures:?}");
    assert_eq!(figures.resident + figures.spilled, 24 * bytes);
    drop(shared);
    assert_eq!(
        site.tier.figures().resident + site.tier.figures().spilled,
        0
    );
    futures::executor::block_on(site.pool.drain()).unwrap();
    futures::executor::block_on(site.host.drain()).unwrap();
    for pool in [&site.pool, &site.host] {
        pool.inspect().check_conserved().unwrap();
    }
    device.assert_ordered();
}

/// Failure: a waker that calls the tier, or panics, blocks for ever or breaks the books.
#[test]
fn wakers_may_call_the_tier() {
    struct Calls(HostTier, Arc<Spillable>, AtomicBool);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            let _ = (self.0.figures(), self.1.is_resident());
            self.2.store(true, Ordering::Relaxed);
            panic!("a waker panics");
        }
    }

    let site = Site::new(4 * MIB, 8 * MIB);
    let memory = Arc::new(site.spillable(4 * MIB, 1));
    let holder = site.take_all();
    let calls = Arc::new(Calls(
        site.tier.clone(),
        memory.clone(),
        AtomicBool::new(false),
    ));
    let waker = Waker::from(calls.clone());
    let mut context = Context::from_waker(&waker);
    let mut fetch = Box::pin(memory.fetch(&site.stream));
    assert!(fetch.as_mut().poll(&mut context).is_pending());
    let mut other = Box::pin(memory.fetch(&site.stream));
    assert!(poll(other.as_mut()).is_pending());
    drop(fetch);
    let mut fetch = Box::pin(memory.fetch(&site.stream));
    assert!(fetch.as_mut().poll(&mut context).is_pending());
    drop(holder);
    let fetched = site.device.block_on(other).unwrap();
    assert!(
        calls.2.load(Ordering::Relaxed),
        "the fetch is served by another"
    );
    site.assert_is(&fetched, 1);
    let served = fetch.as_mut().poll(&mut context);
    assert!(matches!(served, Poll::Ready(Ok(_))));
    drop((served, fetch, fetched, waker, calls));
    drop(memory);
    site.end();
}

/// Failure: a fetch that waits is polled all the time, or copies that cannot be made are tried again and again.
#[test]
fn waiting_does_not_spin() {
    let site = Site::new(4 * MIB, 4 * MIB);
    let memory = site.spillable(4 * MIB, 1);
    let holder = site.take_all();
    let parked = holder.into_spillable(&site.tier);
    let mut polls = 0;
    let mut fetch = Box::pin(memory.fetch(&site.stream).timeout(Duration::from_secs(100)));
    let fetched = site.device.block_on(std::future::poll_fn(|context| {
        polls += 1;
        fetch.as_mut().poll(context)
    }));
    assert!(fetched.is_err(), "the host has no room");
    assert!(polls < 20, "{polls} polls");
    assert_eq!(site.tier.figures().refusals, 0);
    drop((fetch, fetched));
    drop((memory, parked));
    site.end();
}
