//! A lease that a broker grants and recalls, against requests and frees.

use super::*;
use loom::thread;
use weirpool::{LeaseModel, Leased};

fn leased(device: &SimDevice) -> (Pool, Leased) {
    let model = LeaseModel::default();
    let pool = Pool::builder(device.clone())
        .capacity(4 * MIB)
        .chunk_bytes(2 * MIB)
        .lane_bytes(4096)
        .lease_model(&model)
        .build()
        .unwrap();
    let leased = model.attach(&pool);
    (pool, leased)
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

/// A free that comes after the look wakes the lender: memory that a broker waits for is not overlooked.
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
                lease.asked()
            );
            polled = request.as_mut().poll(context);
        }
        // A need that was met is asked for no more.
        assert_eq!(lease.asked(), 0);
    });
}

/// A grant ends a binding recall while a request finds that it would exceed the bound on memory in use. It asks for no
/// more than it needs: bytes that are granted meanwhile count.
#[test]
fn grant_that_ends_a_recall_against_a_request_that_is_held_back() {
    model_with(3, "grant that ends a recall against a held request", || {
        let device = device();
        let model = LeaseModel::default();
        let pool = Pool::builder(device.clone())
            .capacity(16 * MIB)
            .chunk_bytes(2 * MIB)
            .lane_bytes(4096)
            .lease_model(&model)
            .build()
            .unwrap();
        let lease = model.attach(&pool);
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
        let most = lease.most_asked();
        assert!(most <= 8 * MIB, "{most} bytes asked for");
    });
}
