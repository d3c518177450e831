//! Tasks whose allocations draw from a reservation.

use super::*;
use weirpool::testing::Invariants;

/// In its scope the pool's allocations draw from it: of that task, and of that pool.
#[test]
fn a_scope_draws_from_the_reservation() {
    let device = manual();
    let pool = small(&device);
    let elsewhere = small(&device);
    let (_, stream_here) = stream(&device, &pool);
    let (_, stream_there) = stream(&device, &elsewhere);
    let tag = Tag::new("reservations: scope");
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    let inner = pool.reserve(2 * MIB).try_now().unwrap();
    let left = || (reservation.left(), inner.left());
    let blocks = now(Box::pin(reservation.scope(async {
        let awaited = pool.allocate(&stream_here, 4 * MIB).await.unwrap();
        let tried = pool.try_allocate(&stream_here, MIB).unwrap();
        assert_eq!(left(), (3 * MIB, 2 * MIB));
        let nested = inner.scope(async { pool.try_allocate(&stream_here, MIB).unwrap() });
        let nested = nested.await;
        assert_eq!(left(), (3 * MIB, MIB));
        let other_pool = elsewhere.try_allocate(&stream_there, MIB).unwrap();
        let other_tag = pool.allocate(&stream_here, MIB).tag(tag).try_now().unwrap();
        let too_large = pool.try_allocate(&stream_here, 4 * MIB).unwrap();
        assert_eq!(left(), (3 * MIB, MIB));
        (awaited, tried, nested, other_pool, other_tag, too_large)
    })));
    let outside = pool.try_allocate(&stream_here, MIB).unwrap();
    assert_eq!(left(), (3 * MIB, MIB));
    drop((blocks, outside));
    assert_eq!(left(), (8 * MIB, 2 * MIB));
    drop((reservation, inner));
    pool.check_conserved().unwrap();
}

/// A future in a scope may end with its thread, whatever of the thread is gone by then.
#[test]
fn a_scope_may_end_with_its_thread() {
    type Held = std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>;
    thread_local! {
        static HELD: std::cell::RefCell<Option<Held>> = const { std::cell::RefCell::new(None) };
    }
    let device = manual();
    let pool = small(&device);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let scope = |pool: Pool, device: SimDevice| {
        let (_, stream) = stream(&device, &pool);
        reservation.scope(async move {
            let _block = pool.allocate(&stream, MIB).await.unwrap();
            std::future::pending::<()>().await;
        })
    };
    let scoped = scope(pool.clone(), device.clone());
    let ended = std::thread::spawn(move || {
        // Before the thread is in a scope: what was made first is dropped last.
        HELD.set(None);
        let mut scoped: Held = Box::pin(scoped);
        assert!(poll(&mut scoped).is_pending());
        HELD.set(Some(scoped));
    });
    ended.join().unwrap();
    assert_eq!(reservation.left(), 4 * MIB, "its block was freed");
}
