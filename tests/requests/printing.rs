//! What futures and handles print of themselves.

use crate::common::*;
use std::fmt::Debug;
use weirpool::device::sim::SimDevice;
use weirpool::*;

/// Each is a line, while hundreds of requests wait: what they own of the pool is not printed.
#[test]
fn futures_and_handles_print_a_line() {
    let (device, pool, [(work, a)]) = set_up(8 * MIB);
    let tag = Tag::new("printing");
    let evictable = pool.try_allocate(&a, MIB).unwrap().into_evictable();
    let shared = pool.try_allocate(&a, 4096).unwrap();
    let shared = weirpool_share::Share::share(shared);
    let mut block = pool.try_allocate(&a, 4096).unwrap();
    let mut reservation = now(pool.reserve(MIB)).unwrap();
    let spare = pool.try_allocate(&a, 4096).unwrap();
    use_block(&work, &spare, us(100));
    let deallocation = spare.deallocate();
    let event = a.event().unwrap();
    let pin = evictable.pin();
    let _held = pool.allocate(&a, 5 * MIB).try_now().unwrap();
    let waiting: Vec<_> = (0..300)
        .map(|_| not_ready(pool.allocate_owned(&a, 4 * MIB).tag(tag)))
        .collect();
    let check = |value: &dyn Debug| {
        let text = format!("{value:?}");
        assert!(
            text.len() < 1000 && !text.contains('\n'),
            "{} bytes: {text}",
            text.len()
        );
    };
    check(&pool);
    check(&a);
    check(&block);
    check(&event);
    check(&evictable);
    check(&pin);
    check(&shared);
    check(&reservation);
    check(&deallocation);
    check(&pool.tag(tag));
    check(&waiting[7]);
    check(&pool.allocate(&a, MIB).timeout(us(7)));
    check(&pool.allocate_owned(&a, MIB));
    check(&pool.allocate_many(&a, [MIB, MIB]));
    check(&pool.reserve(MIB));
    check(&pool.reserve_many([MIB, MIB].map(Layout::new)));
    check(&not_ready(pool.reserve(4 * MIB)));
    check(&block.grow(MIB));
    check(&reservation.grow(MIB));
    check(&pool.drain());
    check(&not_ready(pool.drain()));
    check(&pool.maintain().reclaimer());
    check(&not_ready(pool.maintain().reclaimer()));
    check(&a.synchronize());
    check(&not_ready(a.synchronize()));
    check(&(&event).into_future());
    check(&a.task("task"));
    check(&pool.inspect().statistics_scope());
    check(&pool.inspect().waiting_requests(1));
    let _: &SimDevice = &device;
}
