//! A lease that a source of capacity grants and recalls, against requests and frees.

use super::*;
use loom::thread;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weirpool::extend::{BoundedPool, Bounds, CapacitySource, Joining};

/// A source whose bounds the model applies.
#[derive(Debug, Default)]
struct Leased {
    pool: Mutex<Option<BoundedPool>>,
    asked: AtomicU64,
    /// The largest need that was ever stated.
    most_asked: AtomicU64,
    looks: AtomicU64,
}

impl CapacitySource for Leased {
    fn join(&self, _: &Joining<'_>) -> Result<Option<u64>, Box<dyn Error + Send + Sync>> {
        Ok(Some(u64::MAX))
    }

    fn start(&self, pool: BoundedPool) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self.pool.lock().unwrap() = Some(pool);
        Ok(())
    }

    fn need(&self, bytes: u64) {
        self.asked.store(bytes, Ordering::SeqCst);
        self.most_asked.fetch_max(bytes, Ordering::SeqCst);
    }

    fn satisfied(&self) {
        self.asked.store(0, Ordering::SeqCst);
    }

    fn memory_returned(&self) {
        self.looks.fetch_add(1, Ordering::SeqCst);
    }
}

impl Leased {
    /// Applies bounds, with needs counted from 0. Returns the bytes that are held afterwards.
    fn apply(&self, first: u64, bound: u64, is_binding: bool) -> u64 {
        self.apply_after(0, first, bound, is_binding)
    }

    /// Applies bounds after that many bytes were granted. Returns the bytes that are held afterwards.
    fn apply_after(&self, granted: u64, first: u64, bound: u64, is_binding: bool) -> u64 {
        // Taken out, so that no lock of the model's own is held when threads change.
        let mut pool = self
            .pool
            .lock()
            .unwrap()
            .take()
            .expect("one thread applies");
        let holding = pool.apply(Bounds {
            granted,
            first,
            bound,
            is_binding,
        });
        *self.pool.lock().unwrap() = Some(pool);
        holding.expect("the pool lives").held
    }

    /// Returns whether memory came back since this was called last.
    fn take_look(&self) -> bool {
        self.looks.swap(0, Ordering::SeqCst) > 0
    }
}

fn leased_of(device: &SimDevice, capacity: u64) -> (Pool, Arc<Leased>) {
    let source = Arc::new(Leased::default());
    let pool = Pool::builder(device.clone())
        .capacity(capacity)
        .chunk_bytes(2 * MIB)
        .tuning(|tuning| tuning.lane_bytes = 4096)
        .capacity_source(source.clone())
        .build()
        .unwrap();
    (pool, source)
}

fn leased(device: &SimDevice) -> (Pool, Arc<Leased>) {
    leased_of(device, 4 * MIB)
}

/// Runs a model with up to two preemptions: these go through the whole pool.
fn model(name: &str, body: impl Fn() + Send + Sync + 'static) {
    model_with(2, name, body);
}

fn model_with(preemptions: usize, name: &str, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
    println!("{name}: done");
}

/// A free that comes after the look wakes the source: memory that it waits for is not overlooked.
#[test]
fn free_against_a_binding_recall() {
    model("free against a binding recall", || {
        let device = device();
        let (pool, lease) = leased(&device);
        lease.apply(2 * MIB, 2 * MIB, false);
        let stream = pool.register(&device.create_stream()).unwrap();
        let block = pool.try_allocate(&stream, 2 * MIB).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let mut held = lease.apply(0, 0, true);
        freeing.join().unwrap();
        while held > 0 {
            assert!(lease.take_look(), "the free was overlooked");
            held = lease.apply(0, 0, true);
        }
        lease.apply(2 * MIB, 2 * MIB, false);
        drop(pool.try_allocate(&stream, 2 * MIB).unwrap());
    });
}

/// A region that is suspended drops its charge: the source hears of that as of a free.
#[test]
fn dropped_charge_against_a_binding_recall() {
    model("dropped charge against a binding recall", || {
        let device = device();
        let (pool, lease) = leased(&device);
        lease.apply(2 * MIB, 2 * MIB, false);
        let charge = pool.charge(2 * MIB).unwrap();
        let dropping = thread::spawn(move || drop(charge));
        let mut held = lease.apply(0, 0, true);
        dropping.join().unwrap();
        while held > 0 {
            assert!(lease.take_look(), "the end of the charge was overlooked");
            held = lease.apply(0, 0, true);
        }
        pool.inspect().check_conserved().unwrap();
    });
}

/// A request that joins while its memory is granted asks for it, or gets it.
#[test]
fn grant_against_a_request_that_joins() {
    model("grant against a request that joins", || {
        let device = device();
        let (pool, lease) = leased(&device);
        let stream = pool.register(&device.create_stream()).unwrap();
        let (count, waker) = Count::new();
        let granting = thread::spawn(move || {
            lease.apply(2 * MIB, 2 * MIB, false);
            lease
        });
        let mut request = Box::pin(pool.allocate(&stream, 2 * MIB));
        let context = &mut Context::from_waker(&waker);
        let mut polled = request.as_mut().poll(context);
        let lease = granting.join().unwrap();
        while polled.is_pending() {
            assert!(
                count.take() > 0,
                "it was granted and not woken; asked {}",
                lease.asked.load(Ordering::SeqCst)
            );
            polled = request.as_mut().poll(context);
        }
        // A need that was met is asked for no more.
        assert_eq!(lease.asked.load(Ordering::SeqCst), 0);
    });
}

/// A grant ends a binding recall while a request finds that it would exceed the bound on memory in use. It asks for no
/// more than it needs: bytes that are granted meanwhile count.
#[test]
fn grant_that_ends_a_recall_against_a_request_that_is_held_back() {
    model_with(3, "grant that ends a recall against a held request", || {
        let device = device();
        let (pool, lease) = leased_of(&device, 16 * MIB);
        lease.apply_after(4 * MIB, 4 * MIB, 4 * MIB, false);
        let stream = pool.register(&device.create_stream()).unwrap();
        let block = pool.try_allocate(&stream, 4 * MIB).unwrap();
        lease.apply_after(4 * MIB, 2 * MIB, 2 * MIB, true);
        let granting = thread::spawn(move || {
            lease.apply_after(8 * MIB, 8 * MIB, 8 * MIB, false);
            lease
        });
        // 6 MiB in use, of which 2 were recalled.
        let mut request = Box::pin(pool.allocate(&stream, 2 * MIB));
        let mut polled = poll(&mut request);
        let lease = granting.join().unwrap();
        for _ in 0..3 {
            if polled.is_pending() {
                polled = poll(&mut request);
            }
        }
        assert!(polled.is_ready(), "8 MiB are granted");
        drop((polled, request, block));
        let most = lease.most_asked.load(Ordering::SeqCst);
        assert!(most <= 8 * MIB, "{most} bytes asked for");
    });
}
