//! Times, in percentiles.

use super::*;
use std::time::Duration;

#[test]
fn wait_times_have_percentiles() {
    let (device, pool, stream) = site();
    for micros in 1..=100 {
        wait_for(&device, &pool, &stream, None, micros);
    }
    let full = pool.try_allocate(&stream, 64 * MIB).unwrap();
    let given_up = not_ready(pool.allocate(&stream, MIB));
    drop((given_up, full));

    let times = pool.inspect().statistics().waits.times;
    assert_eq!(times.count(), 100, "those that were served");
    assert_eq!((times.longest(), times.total()), (us(100), us(5050)));
    assert_eq!(times.mean(), Duration::from_nanos(50_500));
    for percent in [1.0, 50.0, 90.0, 99.0, 100.0] {
        let (told, exact) = (times.percentile(percent), us(percent as u64));
        assert!(
            exact <= told && told <= exact + exact / 16,
            "{percent}: {told:?}"
        );
    }
    let counts: u64 = times.buckets().map(|bucket| bucket.count).sum();
    assert_eq!(counts, 100);
    wait_for(&device, &pool, &stream, None, 7);
    let last = pool.inspect().statistics().waits.times.since(&times);
    assert_eq!((last.count(), last.total()), (1, us(7)));
    assert!((us(7)..us(8)).contains(&last.longest()), "{last:?}");
}

/// The age runs from the free's event to its being seen complete; an event that covers no free has none.
#[test]
fn pending_ages_are_of_frees() {
    let (device, pool, [(work, stream)]) = set_up(64 * MIB);
    let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
    use_block(&work, &block, us(30));
    let event = stream.event().unwrap();
    drop(block);
    device.advance(us(80));
    pool.maintain().reap().unwrap();
    assert!(event.is_complete().unwrap());
    let ages = pool.inspect().statistics().pending_ages;
    assert_eq!(
        (ages.count(), ages.total()),
        (1, us(80)),
        "seen late, but told so"
    );
    let small = pool.try_allocate(&stream, 4096).unwrap();
    drop(small);
    assert_eq!(figures(&pool).pending_ages.count(), 1, "not sealed yet");
    now(stream.synchronize()).unwrap();
    assert_eq!(pool.inspect().statistics().pending_ages.count(), 2);
}
