//! Activations on the simulated device.

use super::*;
use weirpool::device::sim::SimDevice;

const MIB: u64 = 1 << 20;

fn pool() -> (Pool, Stream) {
    let pool = Pool::builder(SimDevice::new()).capacity(64 * MIB).build();
    let pool = pool.unwrap();
    let stream = pool.create_stream().unwrap();
    (pool, stream)
}

fn held(pool: &Pool, bytes: u64) -> Arc<Held> {
    Held::new(pool.reserve(bytes).try_now().unwrap())
}

fn begin(held: &Arc<Held>, stream: Option<u64>) -> Arc<Activation> {
    let source = Source::Reservation(held.clone());
    Activation::begin(held.pool(), source, "test".to_owned(), stream)
}

fn is_active(pool: &Pool, stream: u64) -> bool {
    source(pool, stream).is_some()
}

#[test]
fn innermost_activation_of_the_pool_is_the_source() {
    let ((pool, _), (other, _)) = (pool(), pool());
    let (outer, inner) = (held(&pool, MIB), held(&pool, 2 * MIB));
    let first = begin(&outer, None);
    let second = begin(&inner, None);
    let size = || match source(&pool, 0) {
        Some(Source::Reservation(held)) => held.size(),
        _ => 0,
    };
    assert_eq!(size(), 2 * MIB);
    assert!(!is_active(&other, 0));
    // Not in the reverse order.
    assert!(first.end() && !first.end());
    assert_eq!(size(), 2 * MIB);
    assert!(second.end());
    assert_eq!(size(), 0);
}

#[test]
fn activation_is_of_its_thread_alone_unless_it_names_a_stream() {
    let (pool, stream) = pool();
    let held = held(&pool, MIB);
    let handle = stream.raw().0;
    let elsewhere = |handle| {
        std::thread::scope(|scope| scope.spawn(|| is_active(&pool, handle)).join().unwrap())
    };
    let of_thread = begin(&held, None);
    assert!(is_active(&pool, handle) && !elsewhere(handle));
    of_thread.end();
    let of_stream = begin(&held, Some(handle));
    assert!(elsewhere(handle) && !elsewhere(handle + 1));
    of_stream.end();
    assert!(!elsewhere(handle));
}

#[test]
fn activation_ends_with_its_thread() {
    let (pool, stream) = pool();
    let held = held(&pool, MIB);
    let handle = stream.raw().0;
    let thread = std::thread::spawn({
        let held = held.clone();
        move || begin(&held, Some(handle))
    });
    let activation = thread.join().unwrap();
    assert!(activation.has_ended() && !is_active(&pool, handle));
    drop(held);
    assert_eq!(pool.inspect().statistics().used.current, 0);
}

#[test]
fn released_reservation_lasts_until_its_activation_ends() {
    let (pool, stream) = pool();
    let held = held(&pool, 4 * MIB);
    let activation = begin(&held, None);
    drop(held);
    let Some(Source::Reservation(active)) = source(&pool, 0) else {
        panic!("the activation has a reservation");
    };
    let block = active.allocate(&stream, MIB).unwrap();
    drop(active);
    activation.end();
    // The live block became an ordinary one.
    assert_eq!(pool.inspect().statistics().used.current, block.size());
}

#[test]
fn reasons_name_the_holders() {
    let (pool, stream) = pool();
    let request = pool.reserve(48 * MIB).tag(Tag::new("chat of the holders"));
    let held = Held::new(request.try_now().unwrap());
    let activation = begin(&held, None);
    let block = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let error = pool.try_allocate(&stream, 16 * MIB).unwrap_err();
    let text = explained(&pool, &error);
    for part in [
        "reservation",
        "for tag chat of the holders",
        "active on thread test",
        "48.0 MiB not allocated",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    activation.end();
    drop(block);
    let none = explained(&pool, &AllocError::Closed);
    assert!(!none.contains("Held by"), "{none}");
}
